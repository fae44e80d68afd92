"""Tables without borders, as gpulimit prints them, and lines of its log."""

import time
import unicodedata
from typing import Any, Dict, List, Optional, Sequence

from gpulimit.tasks import Task

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
