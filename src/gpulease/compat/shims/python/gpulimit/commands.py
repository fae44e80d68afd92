"""What each command of gpulimit does on gpulease's queue: words in, the text that it prints out."""

import os
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Union

import gpulease_shim

from gpulimit import tasks as queue
from gpulimit.tasks import Task

PATIENCE = "20"  # seconds until a killed task has ended; the grace between TERM and KILL is 10
STARTABLE = ("waiting", "runtime_error", "killed")
CLEANED = ("complete", "CMD_ERROR")
PARAMETERS = (
    "TIMER_POLLING_TIME",
    "MAX_ERR_TIMES",
    "MAX_RUNNING_TASKS",
    "SAFETY_KEEP_MEMORY",
    "SAFETY_KEEP_GPU_MEMORY",
)


class Refused(Exception):
    """What was typed is wrong: the text says how."""


def answer(words: Sequence[str]) -> str:
    """What a command prints."""
    name, rest = words[0], list(words[1:])
    if name == "add":
        return add(rest)
    if name not in COMMANDS:
        return "[error]: no cmd found."
    act, least, most, known = COMMANDS[name]
    options = [word for word in rest if word.startswith("--")]
    given = [word for word in rest if not word.startswith("--")]
    wrong = ["[Error]: not support param `{}`. \n".format(key) for key in map(_key, options) if key not in known]
    if len(given) < least:
        wrong.append("[Error]: have min {} input, but you input {} args. \n".format(least, len(given)))
    if most is not None and len(given) > most:
        wrong.append("[Error]: have max {} input, but you input {} args. \n".format(most, len(given)))
    return "".join(wrong) or act(given, list(map(_key, options)))


def _key(option: str) -> str:
    return option[2:].partition("=")[0]


def _number(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise Refused("[error]: input {} is not type `int`.\n".format(word))


def _task(word: str, absent: str = "[error]: can not found id {} in task queue.") -> Task:
    id = _number(word)
    task = queue.find(id) if id >= 0 else None
    if task is None:
        raise Refused(absent.format(id))
    return task


def _do(*words: str, silent: bool = False) -> str:
    done = gpulease_shim.run(*words)
    if done.code != 0:
        raise gpulease_shim.failure(done)
    if not silent:
        sys.stderr.write(done.err)
    return done.out


# ---- the queue


def add(words: List[str]) -> str:
    options: Dict[str, str] = {}
    while words and words[0].startswith("--"):
        key, _, value = words.pop(0)[2:].partition("=")
        options[key] = value
    unknown = [
        "[Error]: add not support kwargs {}".format(key) for key in options if key not in ("priority", "logpath")
    ]
    if unknown:
        return "".join(unknown)
    if not words:
        return "[Error]: no command was given."
    # Old programs read a number there, and gpulimit queues what does not exist.
    request = ["--visible-by", "index", "--force"]
    if options.get("priority"):  # `--priority 2` without `=` means nothing to gpulimit
        request += ["--priority", str(_number(options["priority"]))]
    if options.get("logpath"):
        request += ["--log", options["logpath"]]
    id = _do("add", *request, "--", *words).strip()
    queue.note(int(id), words)
    return "add task(id:{}) to queue(len: {})\n".format(id, queue.number_of_tasks())


def ls(given: List[str], options: List[str]) -> str:
    found = queue.all_tasks()
    if not found:
        gpulease_shim.status()  # without a driver this fails and says so; an empty list would hide it
    return queue.listing(found, "all" in options)


def show(given: List[str], options: List[str]) -> str:
    return queue.details(_task(given[0]))


def rm(given: List[str], options: List[str]) -> str:
    task = _task(given[0], "[error]: can not found {} in task queue.")
    _remove([task])
    return "[info]: del task {}".format(task.id)


def _remove(gone: Sequence[Task]) -> None:
    """At once, as gpulimit has it: running ones are waited for."""
    _do("rm", ",".join(str(task.id) for task in gone))
    for task in gone:
        if task.status in ("running", "paused"):  # a pid may come only later
            gpulease_shim.run("wait", str(task.id), "--quiet", "--timeout", PATIENCE)
            _until_gone(task.id)


def _until_gone(id: int) -> None:
    until = time.time() + float(PATIENCE)
    while queue.find(id) is not None and time.time() < until:
        time.sleep(0.1)


def clean(given: List[str], options: List[str]) -> str:
    wanted = ["killed" if word == "kill" else word for word in given] or list(CLEANED)
    unknown = [word for word in wanted if word not in queue.NAMES]
    if unknown:
        raise Refused("[error]: `{}` is no status. There are: {}.".format(unknown[0], ", ".join(queue.NAMES)))
    gone = [task for task in queue.all_tasks() if task.status in wanted and task.uid == os.getuid()]
    if gone:
        _remove(gone)
    shown = [task._replace(status="killed") if task.status == "running" else task for task in gone]
    return "[info]: rm task as follows:\n{}".format(queue.removed(shown))


def kill(given: List[str], options: List[str]) -> str:
    task = _task(given[0])
    if task.status not in ("running", "paused"):
        return "[warning]: can not kill task {} which have status `{}`".format(task.id, task.status)
    _do("kill", str(task.id))
    gpulease_shim.run("wait", str(task.id), "--quiet", "--timeout", PATIENCE)
    return "[info]: kill task {} succeed.".format(task.id)


def mv(given: List[str], options: List[str]) -> str:
    if len(given) > 2:
        raise Refused("".join("[error]: can not identify param `{}`.\n".format(word) for word in given[2:]))
    index = _number(given[1]) if len(given) > 1 else 0
    task = _task(given[0], "[error]: can not found task {}")
    found = [queue.task_of(job) for job in gpulease_shim.ask("ls", "--all", "--most", queue.MOST)["jobs"]]
    if index > len(found):
        return "[error]: index {} is bigger than task queue length({})".format(index, len(found))
    if task.status == "waiting":
        _do("move", str(task.id), str(queue.place_in_line(found, task, max(0, index % len(found)))))
    return "[info]: move {} to the first".format(task.id)


def start(given: List[str], options: List[str]) -> str:
    if not given:
        return ""  # what can start has started
    task = _task(given[0])
    if task.status not in (*STARTABLE, "paused"):
        return "[info]: can not start task {} which have status `{}`".format(task.id, task.status)
    _do("resume" if task.status == "paused" else "start", str(task.id), silent=True)
    return "[info]: start task {} succeed.".format(task.id)


# ---- parameters


def set_parameter(given: List[str], options: List[str]) -> str:
    if not given:
        found = {row["gpulimit"]: row["number"] for row in gpulease_shim.ask("set")["parameters"]}
        return "\n".join("{} = {}".format(name, _shown(found[name])) for name in PARAMETERS)
    name = given[0]
    if name not in PARAMETERS:
        return "[error]: name `{}` can not set.".format(name)
    if len(given) == 1:
        return "{} = {}".format(name, _shown(gpulease_shim.ask("set", name)["parameters"][0]["number"]))
    value = _value(given[1])
    _do("set", name, str(value))
    return "[info]: seted {} = {}".format(name, value)


def _value(word: str) -> Union[int, float]:
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        raise Refused("[error]: input {} is not type `float`.\n".format(word))


def _shown(value: Union[int, float, None]) -> str:
    return "-1" if value is None else "{:.12g}".format(value)


# ---- looking


def status(given: List[str], options: List[str]) -> str:
    return queue.machine(gpulease_shim.status(), queue.all_tasks())


def debug(given: List[str], options: List[str]) -> str:
    task = _task(given[0], "[error]: can not found task[{}]")
    if task.status != "CMD_ERROR":
        return "None"
    why = task.why or ""
    if why.endswith("does not exist") and why.startswith("the command"):
        why = "FileNotFoundError: [Errno 2] No such file or directory: {!r}".format(task.cmds[0])
    return "cmds: {}\n{}\n".format(task.cmds, why)


def log(given: List[str], options: List[str]) -> str:
    """The path, and behind it what is in the file; of `main` the command that tells more."""
    if given[0] == "main":
        events = gpulease_shim.ask("events", "--most", "10000")["events"]
        lines = queue.main_log(events, queue.all_tasks(), queue.noted())
        return "\n".join(["gpulease log main", *lines])
    task = _task(given[0], "Error\n[error]: please check task id.")
    print(task.log, flush=True)
    _page(task.log)
    raise SystemExit(0)


def _page(path: str) -> None:
    """Through `less` on a terminal, as gpulimit does it."""
    if sys.stdout.isatty() and shutil.which("less"):
        subprocess.call(["less", path])
        return
    try:
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    except OSError as error:
        sys.stderr.write("{}: {}\n".format(path, error.strerror))
    sys.stdout.flush()


def help_text(given: List[str], options: List[str]) -> str:
    return about(given[0] if given else None)


# command -> what it does; how many words it takes; its options
COMMANDS: Dict[str, Any] = {
    "help": (help_text, 0, 1, ()),
    "-h": (help_text, 0, 1, ()),
    "--help": (help_text, 0, 1, ()),
    "ls": (ls, 0, 0, ("all",)),
    "show": (show, 1, 1, ()),
    "rm": (rm, 1, 1, ()),
    "clean": (clean, 0, None, ()),
    "kill": (kill, 1, 1, ()),
    "mv": (mv, 1, None, ()),
    "move": (mv, 1, None, ()),
    "set": (set_parameter, 0, 2, ()),
    "start": (start, 0, 1, ()),
    "log": (log, 1, 1, ()),
    "status": (status, 0, 0, ()),
    "debug": (debug, 1, 1, ()),
}


# -------------------------------------------------------------------- help

# gpulimit's commands and options in its order, in words of our own.
HEAD = """
GPU Task Manage:
    usage:

        gpulimit -h                   show this
        gpulimit add [cmds]           queue the command [cmds]

    other commands:

"""
# command -> its usage, what it does, and more about it
USAGES = {
    "help": ("help [cmd]", "what there is, or all about [cmd]", ""),
    "add": (
        "add [cmds]",
        "queue a command",
        """
        Options:

            --priority [priority]     smaller is sooner; 5 if nothing is said
            --logpath  [path]         file, or folder, for its output
""",
    ),
    "ls": (
        "ls",
        "the queue",
        """
        Options:

            --all                     whole commands; else 80 letters of each
""",
    ),
    "show": ("show [id]", "all about a task", ""),
    "rm": ("rm [id]", "remove a task; a running one is killed first", ""),
    "clean": (
        "clean [type(default=None)]",
        "remove tasks that are complete or CMD_ERROR",
        """
        Example:

            gpulimit clean            what is `complete` or `CMD_ERROR`
            gpulimit clean killed     what is `killed`
""",
    ),
    "kill": ("kill [id]", "end a running task", ""),
    "mv": ("mv [id] [index(default=0)]", "give a waiting task another place; `move` is the same", ""),
    "set": (
        "set [name] [value]",
        "show or change parameters",
        """
        Can Set Params:

            TIMER_POLLING_TIME        seconds between looks at the GPUs
            MAX_ERR_TIMES             how often a task that fails is run in all
            MAX_RUNNING_TASKS         most tasks that share a GPU; -1: no limit
            SAFETY_KEEP_MEMORY        part of the host's memory that stays free
            SAFETY_KEEP_GPU_MEMORY    part of a GPU's memory that stays free

        Example:

            gpulimit set MAX_ERR_TIMES 2
""",
    ),
    "start": (
        "start [iddefalut=None]",  # as gpulimit spells it
        "start a waiting task now, or an ended one again",
        """
        Information:

            gpulimit start            does nothing: tasks start by themselves
            gpulimit start 1          this one
""",
    ),
    "log": (
        "log [id]",
        "the output of a task",
        """
        Example:

            gpulimit log 1
            gpulimit log main         what was added, started and ended
""",
    ),
    "status": ("status", "the host's memory, and the GPUs", ""),
    "debug": ("debug [id]", "why a task is `CMD_ERROR`", ""),
}


def about(command: Optional[str]) -> str:
    if command is None:
        return HEAD + "".join(_first(name) for name in USAGES)
    name = {"-h": "help", "--help": "help", "move": "mv"}.get(command, command)
    if name not in USAGES:
        return "[Error]: Can not found command: `{}`.\n Please use help to find more infomation.".format(command)
    return "\n{}{}".format(_first(name), USAGES[name][2])


def _first(name: str) -> str:
    usage, does, _ = USAGES[name]
    return "        {:<29} {}\n".format(usage, does)
