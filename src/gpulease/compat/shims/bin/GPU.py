#!/usr/bin/env python3
"""gpuget's command, on leases of gpulease instead of lists in Redis.

What `--get` takes is held until it is released, by whatever script. Which GPUs are managed is a view of each user: it
says which ones `--get` takes, and nothing to others. Not here: who gets a GPU; the broker decides.
"""

import argparse
import fcntl
import hashlib
import json
import os
import pwd
import sys
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "python"))

try:
    import gpulease_shim as gpulease
except ImportError:
    sys.exit("GPU.py: Its folder `python` is not found. Link to it instead of copying it, or set PYTHONPATH.")

OUT_OF_SERVICE = ("excluded", "lost")
PURGED = "released, since the process that asked is gone"  # how gpulease says that `release --gone` did it
ERROR = 255
KEPT = 90 * 86400  # seconds that gpulease keeps events
AGAIN = 1.0  # seconds between looks while no GPU is managed

Document = Dict[str, Any]
Words = argparse.Namespace


def words() -> Words:
    parser = argparse.ArgumentParser(prog="GPU.py", description="Share GPUs: gpuget's command, on leases of gpulease.")
    flag = {"action": "store_true"}  # type: Any
    parser.add_argument("--gpu-count", help="print how many GPUs there are", **flag)
    parser.add_argument("--managed-gpu-count", help="print how many are managed", **flag)
    parser.add_argument("--redis-server", default="localhost", help="names a set of GPUs; no Redis is asked")
    parser.add_argument("--redis-port", default=6379, type=int, help="names a set of GPUs, too")
    parser.add_argument("--redis-db", default=0, type=int, help="names a set of GPUs, too")
    parser.add_argument("--redis-prefix", default="GPU", help="names a set of GPUs, too")
    manage = parser.add_mutually_exclusive_group()
    manage.add_argument("--redis-manage-all", help="manage all GPUs", **flag)
    manage.add_argument("--redis-manage", help="manage these, as 0,2")
    manage.add_argument("--redis-manage-count", type=int, help="manage so many of them")
    parser.add_argument("--force", help="manage anew; what this command holds is released", **flag)
    parser.add_argument("--get", help="wait for a GPU, hold it until it is released, print its index", **flag)
    parser.add_argument("--release", type=int, help="give this GPU back")
    parser.add_argument("--log", help="who acquired and released what", **flag)
    parser.add_argument("--info", help="how many there are, are managed, are idle", **flag)
    parser.add_argument("--idle", help="which are idle", **flag)
    parser.add_argument("--managed", help="which are managed", **flag)
    parser.add_argument("--active", help="which are in use, and by whom", **flag)
    parser.add_argument("--redis-delete", help="manage none; what this command holds is released", **flag)
    parser.add_argument("--redis-purge", help="release what processes acquired that have ended", **flag)
    return parser.parse_args()


class View:
    """Which GPUs are managed under one name, in the order in which they are handed out; a file of the user's."""

    def __init__(self, name: str, status: Document) -> None:
        self.name = name
        inside = os.environ.get("GPULEASE_DIR") or (status["simulated"] and status["broker"]["directory"]) or ""
        folder = os.path.abspath(inside) if inside and os.access(inside, os.W_OK) else gpulease.state_folder()
        key = hashlib.sha256("{} {}".format(name, inside).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self.path = os.path.join(folder, "gpuget", key + ".json")
        self.shared = bool(status["broker"]) and status["broker"]["kind"] != "own"
        self.devices = sorted(int(row["label"]) for row in status["devices"] if row["label"].isdigit())

    def read(self) -> Optional[Document]:
        """`order`, `since` and `after`, the time of the last event before; None while nothing is managed.

        On a broker for everybody all GPUs are managed from the start; on one's own, none.
        """
        kept = self._kept()
        if kept is None and self.shared:
            return {"order": self.devices, "since": 0, "after": 0}
        return kept or None

    def _kept(self) -> Optional[Document]:
        """What was written; nothing in it after it was deleted; None when it never was."""
        try:
            with open(self.path) as file:
                return dict(json.load(file))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def is_new(self) -> bool:
        return self._kept() is None and not self.shared

    def manage(self, devices: List[int]) -> None:
        events = gpulease.ask("events", "--most", "1")["events"]
        after = events[-1]["time"] if events else 0
        self._write({"order": sorted(devices), "since": time.time(), "after": after})

    def delete(self) -> None:
        self._write({})

    def move_behind(self, devices: List[int]) -> None:
        """They were given back, and are handed out after those that were idle before."""
        with self._locked():
            view = self.read()
            if view is not None:
                rest = [index for index in view["order"] if index not in devices]
                behind = [index for index in devices if index in view["order"]]
                self._write(dict(view, order=rest + behind))

    def _write(self, view: Document) -> None:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        new = "{}.{}".format(self.path, os.getpid())
        with open(new, "w") as file:
            json.dump(view, file)
        os.replace(new, self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        with open(self.path + ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Gpus:
    """The GPUs as gpulease shows them, seen through a view."""

    def __init__(self, name: str) -> None:
        self.note = "GPU.py" if name == "GPU@localhost:6379/0" else "GPU.py {}".format(name)
        self.status = gpulease.status()
        if self.status["simulated"] and not self.status["broker"]:  # where the view is kept, its broker says
            gpulease.ask("ls", "--most", "1")
            self.status = gpulease.status()
        self.view = View(name, self.status)
        self.rows = {int(row["label"]): row for row in self.status["devices"] if row["label"].isdigit()}
        self.leases = {lease["id"]: lease for lease in self.status.get("leases") or ()}

    def order(self) -> List[int]:
        """The managed ones that are in service, first those that have been idle for longest."""
        view = self.view.read() or {"order": []}
        return [index for index in view["order"] if self._in_service(index)]

    def _in_service(self, index: int) -> bool:
        return index in self.rows and self.rows[index]["state"] not in OUT_OF_SERVICE

    def managed(self) -> List[int]:
        return sorted(self.order())

    def idle(self) -> List[int]:
        return [index for index in self.managed() if self.rows[index]["state"] == "free"]

    def active(self) -> List[int]:
        return [index for index in self.managed() if self.rows[index]["state"] != "free"]

    def on(self, index: int) -> List[Document]:
        """The leases on a GPU."""
        return [self.leases[id] for id in self.rows.get(index, {}).get("leases") or () if id in self.leases]

    def ours(self) -> List[str]:
        """Ids of what this command took under this name and the user may give back, the last GPU first."""
        user = user_name() if os.geteuid() else None
        found = [one for one in self.leases.values() if one["note"] == self.note and one["kind"] == "reservation"]
        found = [one for one in found if user in (None, one["user"])]
        return [one["id"] for one in sorted(found, key=lambda one: one["labels"], reverse=True)]

    def holder(self, index: int) -> Tuple[int, float]:
        """Pid and time of who is on a GPU."""
        for lease in self.on(index):
            return lease["pid"] or lease.get("asked_by") or 0, lease["since"]
        for process in self.rows[index]["processes"] or ():
            return process["pid"], begun(process["start_time"])
        return 0, self.status["time"]


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def begun(ticks: Optional[int]) -> float:
    """Unix seconds, from what the kernel counts since the start of the machine."""
    with open("/proc/stat") as file:
        booted = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    return booted + (ticks or 0) / os.sysconf("SC_CLK_TCK")


def date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def listed(indices: List[int]) -> str:
    return ",".join(map(str, indices))


# What each option does. Of several options the first in this order counts.


def manage(gpus: Gpus, args: Words) -> int:
    wanted = gpus.view.devices
    if args.redis_manage_count:
        if args.redis_manage_count >= len(wanted):
            text = "Can not manage more GPUs than available but you requested {} out of {} possible!"
            print(text.format(args.redis_manage_count, len(wanted)))
            return ERROR
        if args.redis_manage_count < 0:
            return fail("--redis-manage-count is {}.".format(args.redis_manage_count), "Give 1 or more.")
        wanted = wanted[: args.redis_manage_count]
    elif args.redis_manage:
        try:
            named = set(map(int, args.redis_manage.split(",")))
        except ValueError:
            return fail("--redis-manage is {!r}.".format(args.redis_manage), "Give indices, as 0,2.")
        wanted = sorted(named.intersection(wanted))
    if gpus.view.read() is not None and not args.force:
        print("Objects already initialized, add force to proceed.")
        return 0
    release_ours(gpus)
    gpus.view.manage(wanted)
    print(len(gpus.managed()))
    return 0


def release_ours(gpus: Gpus, *words: str) -> List[int]:
    """What this command holds under this name; the GPUs that were given back."""
    ids = gpus.ours()
    if not ids:
        return []
    done = gpulease.ask("release", "--if-held", *(ids + list(words)))
    return [int(label) for lease in done["released"] for label in lease["devices"] if label.isdigit()]


def get(gpus: Gpus, args: Words) -> int:
    if gpus.view.is_new():
        gpus.view.manage(gpus.view.devices)  # else it would wait until somebody manages GPUs
    while not gpus.order():
        time.sleep(AGAIN)
        gpus = Gpus(name_of(args))
    sys.stdout.flush()
    gpulease.exec_gpulease("get", "--until-released", "--quiet", "--note", gpus.note, "--devices", listed(gpus.order()))
    return 0  # never: it is another program now


def release(gpus: Gpus, args: Words) -> int:
    index = args.release
    leases = gpus.on(index)
    held = [lease["id"] for lease in leases if lease["id"] in gpus.ours()]
    if not held and index not in gpus.managed():
        print("GPU {} is not managed.".format(index))
        return 0
    if not leases:
        print("GPU {} is already idle.".format(index))
        return 0
    gpulease.release(*(held or [str(index)]))
    gpus.view.move_behind([index])
    print("GPU {} released.".format(index))
    return 0


def log(gpus: Gpus, args: Words) -> int:
    view = gpus.view.read()
    if view is None:
        return 0
    if view["since"]:
        print("{}: Redis initialized, {} managed GPUs.".format(date(view["since"]), len(view["order"])))
    age = min(KEPT, max(0, int(time.time() - view["after"])) + 3600)  # the clock may have been set meanwhile
    for event in gpulease.ask("events", "--since", "{}s".format(age))["events"]:
        if event["time"] > view["after"] and event["what"] in ("granted", "ended") and ours_to_tell(event, gpus.note):
            for label in event["devices"]:
                if label.isdigit() and int(label) in view["order"]:
                    print("{}: GPU {} {}".format(date(event["time"]), label, told(event)))
    return 0


def ours_to_tell(event: Document, note: str) -> bool:
    """Everybody's leases, but for what this command took under another name."""
    other = event.get("note") or ""
    return other == note or not other.startswith("GPU.py")


def told(event: Document) -> str:
    holder = event.get("pid") or event.get("asked_by") or 0
    if event["what"] == "granted":
        return "acquired by PID {}.".format(holder)
    if event.get("why") == PURGED:
        return (
            "acquired by process with PID {}, was released by redis purge"
            " as the process with given PID does no longer exist.".format(holder)
        )
    return "released by PID {}.".format(event.get("releaser_pid") or holder)


def info(gpus: Gpus, args: Words) -> int:
    managed = "managed:{} idle:{}".format(len(gpus.managed()), len(gpus.idle())) if gpus.managed() else "no managed"
    print("GPU total:{} {}".format(len(gpus.rows), managed))
    return 0


def idle(gpus: Gpus, args: Words) -> int:
    print("There is {} IDDLE GPUs, IDs: {}".format(len(gpus.idle()), listed(gpus.idle())))
    return 0


def managed(gpus: Gpus, args: Words) -> int:
    print("There is {} MANAGED GPUs, IDs: {}".format(len(gpus.managed()), listed(gpus.managed())))
    return 0


def active(gpus: Gpus, args: Words) -> int:
    if not gpus.active():
        print("There are no active GPUs.")
        return 0
    print("There is {} ACTIVE GPUs, IDs: {}".format(len(gpus.active()), listed(gpus.active())))
    for index in gpus.active():
        pid, since = gpus.holder(index)
        print("GPU {} acquired by PID {} at {}".format(index, pid, date(since)))
    return 0


def delete(gpus: Gpus, args: Words) -> int:
    release_ours(gpus)
    gpus.view.delete()
    print("All Redis objects related to GPU management were deleted.")
    return 0


def purge(gpus: Gpus, args: Words) -> int:
    released = release_ours(gpus, "--gone")
    if released:
        gpus.view.move_behind(released)
    return 0


def count(gpus: Gpus, args: Words) -> int:
    print(len(gpus.rows))
    return 0


def managed_count(gpus: Gpus, args: Words) -> int:
    print(len(gpus.managed()))
    return 0


DOES = (
    ("gpu_count", count),
    ("managed_gpu_count", managed_count),
    ("redis_manage_all", manage),
    ("redis_manage", manage),
    ("redis_manage_count", manage),
    ("get", get),
    ("release", release),
    ("log", log),
    ("idle", idle),
    ("managed", managed),
    ("info", info),
    ("redis_delete", delete),
    ("redis_purge", purge),
    ("active", active),
)


def name_of(args: Words) -> str:
    server = "localhost" if args.redis_server == "127.0.0.1" else args.redis_server
    return "{}@{}:{}/{}".format(args.redis_prefix, server, args.redis_port, args.redis_db)


def fail(what: str, next_step: str) -> int:
    sys.stderr.write("GPU.py: {} {}\n".format(what, next_step))
    return 1


def given(args: Words, name: str) -> bool:
    value = getattr(args, name)
    return value is not None if name == "release" else bool(value)


def main() -> int:
    gpulease.end_with_reader()
    args = words()
    asked = [do for name, do in DOES if given(args, name)]
    if not asked:
        return 0
    gpulease.pass_by()
    try:
        return asked[0](Gpus(name_of(args)), args)
    except gpulease.GpuleaseFailed as error:
        fail(error.what, error.next_step)
        return ERROR if error.code == gpulease.UNAVAILABLE else 1
    except OSError as trouble:
        return fail("{}: {}.".format(trouble.filename, trouble.strerror), "Set XDG_STATE_HOME to a folder of yours.")


if __name__ == "__main__":
    sys.exit(main())
