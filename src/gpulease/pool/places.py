"""Where named pools live, how one is started, and how to ask one: a socket and a log for each."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpulease.errors import NotFound, NotPermitted, PoolBroken, PoolClosed, PoolError, UsageError, by_code
from gpulease.pool import link
from gpulease.pool.plan import check_devices, check_function_name, make_plan
from gpulease.system import places as system_places
from gpulease.system.identity import peer

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}")
ENDING = 5.0  # seconds for a pool that was stopped to be gone
ANSWER = 10.0  # seconds for an answer, which needs no worker


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:60]!r} is not a valid name for a pool.",
            "Use up to 41 letters, digits, dots, dashes and underscores.",
        )
    return name


def folder(ending: str) -> str:
    """Sockets are in the run folder of the user's own place, and what lasts is in its state folder."""
    place = system_places.own(os.environ)
    return os.path.join(place.run if ending == "socket" else place.state, "pools")


def prepare_folder() -> None:
    for ending in ("socket", "log"):
        system_places.prepare(os.path.dirname(folder(ending)), everyone=False)
        system_places.prepare(folder(ending), everyone=False)


def path_of(name: str, ending: str) -> str:
    return os.path.join(folder(ending), f"{check_name(name)}.{ending}")


def socket_path(name: str) -> str:
    path = path_of(name, "socket")
    if len(os.fsencode(path)) > system_places.LONGEST_SOCKET:
        raise UsageError(f"The path {path!r} is too long for a socket.", "Set GPULEASE_DIR to a shorter one.")
    return path


def listens(name: str) -> bool:
    """Whether a process answers for that pool."""
    try:
        connect(name).close()
    except NotFound:
        return False
    return True


def claim(name: str) -> int:
    """The name, as a descriptor to keep open: the process that has it is the only one, and has it until it ends.

    The file stays. To remove it would let two processes each lock one of their own.
    """
    lock = os.open(path_of(name, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + ENDING
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            pass
        if listens(name) or time.monotonic() > until:
            os.close(lock)
            raise already_running(name)
        time.sleep(0.02)  # it starts, or is about to end


def already_running(name: str) -> UsageError:
    return UsageError(f"The pool {name!r} is already running.", f"gpulease pool stop {name}")


def open_log(name: str) -> int:
    """For its user alone: what workers print may be anything."""
    log = os.open(path_of(name, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(log, 0o600)  # one from before too
    return log


def names() -> list[str]:
    """Of the pools that have a socket, whether anybody still listens there or not."""
    return sorted(path.stem for path in Path(folder("socket")).glob("*.socket"))


def connect(name: str) -> socket.socket:
    """A connection with the pool's process, which is this user's for certain: pickles will come from it."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.connect(socket_path(name))
    except OSError:
        connected.close()
        raise NotFound(
            f"There is no pool {name!r}.",
            f"Start it: `gpulease pool start {name} --gpus N`; `gpulease pool ls` lists them.",
        ) from None
    if peer(connected)[1] != os.geteuid():
        connected.close()
        raise NotPermitted(f"The pool {name!r} belongs to another user.", "Start one of your own.")
    return connected


def ask(name: str, verb: str, **more: Any) -> dict[str, Any]:
    """One question to a named pool, one answer."""
    with connect(name) as connected:
        connected.settimeout(ANSWER)
        receiver = link.Receiver(connected)
        try:
            connected.sendall(link.pack_json({"do": verb, **more}))
            while not (received := receiver.receive()):
                pass
        except EOFError:
            raise PoolClosed(f"The pool {name!r} ended while it was asked.") from None
        except TimeoutError:
            pid = peer(connected)[0]
            step = f"It may be stopped or stuck: `kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends it."
            raise PoolError(f"The pool {name!r}, process {pid}, does not answer.", step) from None
    answer: dict[str, Any] = json.loads(received[0].body)
    if "error" in answer:
        error = answer["error"]
        raise by_code(error.get("code", PoolError.code), error["what"], error["next_step"], {})
    return answer["ok"]  # type: ignore[no-any-return]


# -------------------------------------------------------------------- starting

POLL = 0.05  # seconds between looks at a pool that starts
GRACE = 1.0  # seconds for workers in the line: a GPU that was just given back is theirs in a moment
PLANNED = ("gpus", "gpus_per_worker", "request", "max_items")
SETTLED = ("ready", "waiting", "failed")


def start(pool: str, **options: Any) -> None:
    """Returns when its process is there; workers may still start. Raises UsageError where one has that name."""
    path = socket_path(pool)
    prepare_folder()
    if os.path.exists(path) and listens(pool):
        raise already_running(pool)
    _launch(checked_options(pool, **options))


def checked_options(
    pool: str,
    gpus: int | str = 1,
    gpus_per_worker: int = 1,
    init: str | None = None,  # as module:function
    shared: tuple[str, ...] = (),  # files
    max_items: int | None = None,
    **request: Any,
) -> dict[str, Any]:
    """What the process of a pool gets. Raises NotEnoughDevices if this machine can never serve it."""
    if init is not None:
        check_function_name(init)
    request["note"] = request.get("note") or f"pool {pool}"
    options = {
        "name": pool,
        "gpus": gpus,
        "gpus_per_worker": gpus_per_worker,
        "init": init,
        "shared": [os.path.abspath(file) for file in shared],
        "max_items": max_items,
        "request": request,
    }
    check_devices(make_plan(**{part: options[part] for part in PLANNED}))  # type: ignore[arg-type]
    return options


def _launch(options: dict[str, Any]) -> None:
    place = os.getcwd()
    path = os.environ.get("PYTHONPATH")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpulease.pool.daemon"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{place}:{path}" if path else place},
        start_new_session=True,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(options) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline() or '{"error": ["pool", "The pool did not start.", null]}')
    if "error" in answer:
        code, what, next_step = answer["error"]
        raise by_code(code, what, next_step, {})


def wait_for_workers(name: str) -> list[str]:
    """The states of all, once each is ready, waits in the queue or has failed. Raises PoolBroken when none can work."""
    until: float | None = None
    while True:
        try:
            error = ask(name, "status")
        except (NotFound, PoolClosed):
            raise _broken(name) from None
        states = [worker["state"] for worker in error["workers"]]
        if states and all(state in SETTLED for state in states):
            until = until or time.monotonic() + GRACE
            late = time.monotonic() > until
            if set(states) != {"failed"} and (late or "waiting" not in states):
                return states
            if late and "waiting" not in states:  # it ends by itself, and before that its log says why
                raise _broken(name)
        time.sleep(POLL)


def _broken(name: str) -> PoolBroken:
    return PoolBroken(f"The pool {name!r} ended at once: {_last_trouble(name)}", f"See `gpulease pool log {name}`.")


def _last_trouble(name: str) -> str:
    with open(path_of(name, "log"), errors="replace") as file:
        ends = [line for line in file if f"pool {name} ends: " in line]
    return ends[-1].partition(" ends: ")[2].strip() if ends else "its log says why."
