"""What `gpulimit help` says: gpulimit's commands and options in its order, in words of our own."""

from typing import Optional

HEAD = """
GPU Task Manage:
    usage:

        gpulimit -h                   show this
        gpulimit add [cmds]           queue the command [cmds]

    other commands:

"""
# command -> its usage, what it does, and more about it
COMMANDS = {
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
        return HEAD + "".join(_first(name) for name in COMMANDS)
    name = {"-h": "help", "--help": "help", "move": "mv"}.get(command, command)
    if name not in COMMANDS:
        return "[Error]: Can not found command: `{}`.\n Please use help to find more infomation.".format(command)
    return "\n{}{}".format(_first(name), COMMANDS[name][2])


def _first(name: str) -> str:
    usage, does, _ = COMMANDS[name]
    return "        {:<29} {}\n".format(usage, does)
