"""Jobs of gpulease as gpulimit's tasks: their states, their order, and what is shown of them."""

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
