"""Jobs of gpulease as gpulimit's tasks: their states, their order, and what is shown of them."""

import hashlib
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import gpulease_shim

MOST = "5000"  # of each kind
STATES = {"failed": "runtime_error", "lost": "runtime_error", "invalid": "CMD_ERROR", "held": "waiting"}
NAMES = ("waiting", "running", "complete", "runtime_error", "CMD_ERROR", "killed", "paused")
ON_GPU = ("running", "paused", "CMD_ERROR")  # in these gpulimit shows the GPU

Task = NamedTuple(
    "Task",
    [
        ("id", int),
        ("uid", int),
        ("status", str),
        ("gpu", Optional[str]),
        ("run_times", int),
        ("pid", Optional[int]),
        ("priority", int),
        ("log", str),
        ("pwd", str),
        ("cmds", List[str]),
        ("why", Optional[str]),
    ],
)


LARGEST = 4 << 20  # bytes of the file below, of which one more is kept


def noted_in() -> str:
    """The file in which `add` notes what it queues, as gpulimit's server does in its log: also what is removed."""
    machine = os.environ.get("GPULEASE_SIMULATION") or os.environ.get("GPULEASE_SIMULATE") or ""
    folder = os.environ.get("GPULEASE_DIR") or gpulease_shim.state_folder()
    key = hashlib.sha256(machine.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return os.path.join(folder, "gpulimit", "{}-{}.jsonl".format(os.getuid(), key))


def note(id: int, cmds: Sequence[str]) -> None:
    path = noted_in()
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if os.path.exists(path) and os.path.getsize(path) > LARGEST:
            os.replace(path, path + ".old")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
            file.write(json.dumps({"id": id, "pwd": os.getcwd(), "cmds": list(cmds)}) + "\n")
    except OSError:
        pass  # it is queued all the same


def noted() -> Dict[int, Dict[str, Any]]:
    """What `add` of this user noted, by id."""
    found: Dict[int, Dict[str, Any]] = {}
    for path in (noted_in() + ".old", noted_in()):
        try:
            with open(path) as file:
                lines = file.readlines()
        except OSError:
            continue
        for line in lines:
            try:
                row = json.loads(line)
                found[int(row["id"])] = {"pwd": str(row["pwd"]), "cmds": list(row["cmds"])}
            except (ValueError, KeyError, TypeError):
                pass  # it was cut off
    return found


def all_tasks() -> List[Task]:
    """In the order of their ids, but for waiting ones that were moved."""
    return in_order([task_of(job) for job in gpulease_shim.ask("ls", "--all", "--most", MOST)["jobs"]])


def number_of_tasks() -> int:
    return sum(gpulease_shim.ask("ls", "--most", "1")["counts"].values())


def find(id: int) -> Optional[Task]:
    try:
        return task_of(gpulease_shim.ask("show", str(id))["jobs"][0])
    except gpulease_shim.GpuleaseFailed as failed:
        if failed.code == gpulease_shim.FAILED:
            return None
        raise


def task_of(job: Dict[str, Any]) -> Task:
    status = STATES.get(job["state"], job["state"])
    return Task(
        id=job["id"],
        uid=job["uid"],
        status=status,
        gpu=",".join(job["devices"]) if job["devices"] and status in ON_GPU else None,
        run_times=job["tries"],
        pid=job["pid"] if status in ("running", "paused") else None,
        priority=job["request"]["priority"],
        log=job["log"],
        pwd=job["cwd"],
        cmds=job["command"],
        why=job["why"],
    )


def in_order(found: Sequence[Task]) -> List[Task]:
    """By id; the waiting ones of one priority have their places among themselves in the order of the line.

    `found` has the waiting ones in that order. gpulimit's list is in the order of arrival whatever the priority is.
    """
    listed = sorted(found, key=lambda task: task.id)
    line: Dict[int, List[Task]] = {}
    for task in found:
        if task.status == "waiting":
            line.setdefault(task.priority, []).append(task)
    return [line[task.priority].pop(0) if task.status == "waiting" else task for task in listed]


def place_in_line(found: Sequence[Task], moved: Task, index: int) -> int:
    """The place in the line that puts a waiting task at `index` of the list: before the one that waits behind it."""
    rest = [task for task in in_order(found) if task.id != moved.id]
    behind = [task.id for task in rest[index:] if task.status == "waiting"]
    line = [task.id for task in found if task.status == "waiting" and task.id != moved.id]
    return line.index(behind[0]) if behind else len(line)
