"""Jobs of gpulease as gpulimit's tasks: their states, their order, and the tables and lines of a log that show them."""

import hashlib
import json
import os
import time
import unicodedata
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


# -------------------------------------------------------------------- tables

WIDE = 80  # letters of a command in a short list
GIB = 1024.0**3


def table(rows: Sequence[Sequence[object]]) -> str:
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(_width(row[column]) for row in texts) for column in range(len(texts[0]))]
    return "\n".join(" " + "  ".join(_filled(*cell) for cell in zip(row, widths)) + " " for row in texts)


def _width(text: str) -> int:
    """In columns of a terminal, where a Chinese character has two."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def _filled(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def listing(tasks: Sequence[Task], whole: bool) -> str:
    if not tasks:
        return ""
    rows: List[List[object]] = [["[ID]", "num", "status", "run_times", "pwd", "cmds"]]
    for number, task in enumerate(tasks):
        status = task.status if task.gpu is None else "{}(GPU:{})".format(task.status, task.gpu)
        cmds = " ".join(task.cmds)
        rows.append([task.id, number, status, task.run_times, task.pwd + "#", cmds if whole else cmds[:WIDE]])
    return table(rows)


def removed(tasks: Sequence[Task]) -> str:
    if not tasks:
        return ""
    rows: List[List[object]] = [["id", "status", "run_times", "pwd", "cmds"]]
    rows += [[task.id, task.status, task.run_times, task.pwd, " ".join(task.cmds)] for task in tasks]
    return table(rows)


def details(task: Task) -> str:
    return table(
        [
            ["name", "value"],
            ["task id:", task.id],
            ["task pid:", task.pid],
            ["priority:", task.priority],
            ["use gpu:", task.gpu],
            ["run times:", task.run_times],
            ["status:", task.status],
            ["out file:", task.log],
            ["pwd:", task.pwd],
            ["cmds:", " ".join(task.cmds)],
        ]
    )


def machine(status: Dict[str, Any], tasks: Sequence[Task]) -> str:
    total, free = status["host_memory_total"], status["host_memory_available"]
    used = None if None in (total, free) else total - free
    host: List[List[object]] = [["CPU utilization", "memory total", "memory free", "memory used"]]
    host.append([None, _gib(total), _gib(free), _gib(used)])
    gpus: List[List[object]] = [
        ["GPU[ID]", "memory total", "memory free", "memory used", "utilization", "running tasks num"]
    ]
    for device in status["devices"]:
        total, used = device["memory_total"], device["memory_used"]
        free = None if None in (total, used) else total - used
        running = sum(task.pid is not None and device["label"] in (task.gpu or "").split(",") for task in tasks)
        gpus.append([device["label"], _gib(total), _gib(free), _gib(used), None, running])
    return "{}\n\n{}".format(table(host), table(gpus))


def _gib(size: Optional[int]) -> Optional[float]:
    return None if size is None else size / GIB


def main_log(
    events: Sequence[Dict[str, Any]], tasks: Sequence[Task], removed: Optional[Dict[int, Dict[str, Any]]] = None
) -> List[str]:
    """What the broker did to jobs, as gpulimit's server tells it; of removed ones by what this user's `add` noted."""
    known = {"J{}".format(task.id): task for task in tasks}
    for id, noted in (removed or {}).items():
        known.setdefault("J{}".format(id), Task(id, 0, "", None, 0, None, 0, "", noted["pwd"], noted["cmds"], None))
    return [
        "{} - {}".format(_stamp(event["time"]), line)
        for event in events
        if event.get("kind") == "job"
        for line in _lines(event, known)
    ]


def _lines(event: Dict[str, Any], known: Dict[str, Task]) -> List[str]:
    name, gpu = event["id"], ",".join(event.get("devices") or ())
    where = "{}: GPU:{}".format(name[1:], gpu)
    if event["what"] == "added":
        first, _, last = event["why"].partition(" ")[2].partition("-")
        ids = range(int(first), int(last or first) + 1)
        return ["add task(id:{}): {})".format(id, _command(known.get("J{}".format(id)))) for id in ids]
    task = known.get(name)
    invalid = task is not None and task.status == "CMD_ERROR"
    if event["what"] == "granted":
        line = "[starting({})]: {}".format(where, _command(task))
        return ["start task {} in GPU({}).".format(name[1:], gpu)] + ([] if invalid else [line])
    if event["what"] != "ended":
        return []
    if task is not None and invalid:
        return ["[CMD_ERROR({})]: {} \nerror:\n{}".format(where, _command(task), task.why)]
    return ["[finish({})]: {}".format(where, _command(task))]


def _command(task: Optional[Task]) -> str:
    return "(removed)" if task is None else "{}$ {}".format(task.pwd, task.cmds)


def _stamp(moment: float) -> str:
    whole = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    return "{},{:03d}".format(whole, int(moment % 1 * 1000))
