"""The options of a verb in full, by argparse: its help, and what is wrong about words that are not right.

It takes as long to load as the rest of a command, so `parsing` does without it for words that are right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from gpulease.cli.parsing import add_where

# an option of another tool, or an older one of ours -> options here; the first that the verb has is meant
OPTIONS = {
    "--name": ("--model", "--label"),
    "--name-like": ("--model",),
    "--name-job": ("--name",),
    "--job-name": ("--name",),
    "-J": ("--name",),
    "--gpu": ("--gpus", "--devices"),
    "--gres": ("--gpus",),
    "--num-gpus": ("--gpus",),
    "--ngpus": ("--gpus",),
    "--count": ("--gpus",),
    "-c": ("--gpus",),
    "-g": ("--gpus",),
    "-G": ("--gpus",),
    "--gpu-id": ("--devices",),
    "--gpu-ids": ("--devices",),
    "--ids": ("--devices",),
    "--memory": ("--mem", "--min-memory"),
    "--gpu-memory": ("--mem", "--min-memory"),
    "--gpu-mem": ("--mem", "--min-memory"),
    "--time": ("--time-limit", "--for"),
    "-t": ("--time-limit", "--for", "--tail", "--state"),
    "-u": ("--user",),
    "--wrap": ("--shell",),
    "--duration": ("--for",),
    "--timeout": ("--wait", "--time-limit"),
    "--dependency": ("--after",),
    "--begin": ("--at",),
    "--output": ("--log",),
    "-o": ("--log",),
    "--chdir": ("--cwd",),
    "--workdir": ("--cwd",),
    "--retries": ("--retry",),
    "--array": ("--sweep",),
    "--nice": ("--priority",),
    "--export-env": ("--export",),
    "--comment": ("--note",),
    "--watch": ("--follow",),
    "--exclude-devices": ("--exclude",),
}

QUEUE = "The queue is `gpulease ls`."
GPUS = "`gpulease status` shows the GPUs, their users and processes."
WATCH = "`gpulease top` shows the machine as it changes."
QUEUED = "`gpulease add -- CMD` queues a command."
RUN = "`gpulease run -- CMD` waits for a GPU and runs a command on it."
END = "`gpulease kill ID` ends a job; `gpulease ls` has the ids."
LOG = "`gpulease log ID` prints a job's output, with -f as it grows."
TAKE = "`gpulease get` takes a GPU for this script; `gpulease run -- CMD` for a command."
CONTAINER = "Write `gpulease run -- sh -c 'docker run $(gpulease docker-args) IMAGE'`; see `gpulease help containers`."
# what somebody types as a verb -> what does that here
HABITS = {
    **dict.fromkeys(("queue", "squeue", "qstat", "q", "ps", "jobs", "list"), QUEUE),
    **dict.fromkeys(("nvidia-smi", "smi", "sinfo", "info", "gpus", "devices", "who", "gpustat"), GPUS),
    **dict.fromkeys(("htop", "nvtop", "nvitop", "watch", "monitor"), WATCH),
    **dict.fromkeys(("sbatch", "qsub", "enqueue", "batch", "schedule"), QUEUED),
    **dict.fromkeys(("srun", "exec", "launch"), RUN),
    **dict.fromkeys(("cancel", "scancel", "qdel", "kill-job", "killjob", "end", "abort", "terminate"), END),
    **dict.fromkeys(("logs", "tail", "output", "follow", "attach", "cat"), LOG),
    **dict.fromkeys(("acquire", "take", "lock", "alloc", "allocate", "reserve", "lease"), TAKE),
    **dict.fromkeys(("free", "unlock", "return"), "`gpulease release` gives GPUs back."),
    **dict.fromkeys(("salloc", "interactive", "bash"), "`gpulease shell` is a shell that holds GPUs."),
    **dict.fromkeys(("remove", "delete", "del"), "`gpulease rm ID` removes a job from the queue."),
    **dict.fromkeys(("rerun", "requeue", "restart"), "`gpulease retry ID` queues a job again."),
    **dict.fromkeys(("suspend", "hold", "scontrol"), "`gpulease pause ID` stops a job, `gpulease edit ID` changes it."),
    **dict.fromkeys(("sacct", "history"), "`gpulease events` tells who had what, `gpulease ls --all` what ended."),
    **dict.fromkeys(("sreport", "report", "stats"), "`gpulease usage` tells who used how many GPU-hours."),
    **dict.fromkeys(("why", "reason"), "`gpulease explain ID` tells why something waits."),
    **dict.fromkeys(("config", "settings", "quota", "limits"), "`gpulease set` shows and changes parameters."),
    **dict.fromkeys(("daemon", "server", "serve"), "`gpulease broker` is the broker; it also starts by itself."),
    **dict.fromkeys(("docker", "podman", "apptainer", "singularity"), CONTAINER),
    "version": "`gpulease --version` prints it.",
}  # fmt: skip
# a word that somebody asks help for -> the page about it
TOPICS = {
    **dict.fromkeys(("docker", "podman", "apptainer", "singularity"), "containers"),
    **dict.fromkeys(("notebook", "notebooks", "ipython"), "jupyter"),
    **{tool: f"from-{tool}" for tool in ("gpuget", "gpulimit", "gpuselect", "safe-gpu")},
    **dict.fromkeys(("sweep", "sweeps", "array"), "queue"),
    **dict.fromkeys(("中文", "zh", "zh_cn", "zh-cn", "chinese"), "from-gpulimit.zh-CN"),
    "pack": "packing",
}
# a state of another tool's -> ours
STATES = {
    **dict.fromkeys(("pd", "pending", "queued"), "waiting"),
    **dict.fromkeys(("cd", "completed", "done"), "complete"),
    **dict.fromkeys(("ca", "cancelled", "canceled"), "killed"),
    "r": "running",
    "f": "failed",
}


def verb_meant(typed: str, there: Iterable[str]) -> str:
    """What to type instead of a verb that is not there."""
    if typed in HABITS:
        return HABITS[typed]
    close = near(typed, there)
    if close:
        return f"Did you mean `gpulease {close}`?"
    from shutil import which

    if which(typed):  # `run --` was forgotten
        return f"To run it on a GPU, write `gpulease run -- {typed} …`."
    return "See `gpulease --help` for what there is."


def option_meant(typed: str, there: Iterable[str]) -> str | None:
    """The option of a verb that somebody means who types one that it has not."""
    options = set(there)
    typed = typed.partition("=")[0]
    known = [option for option in OPTIONS.get(typed, ()) if option in options]
    return known[0] if known else near(typed, options) if typed.startswith("--") else None


def state_meant(message: str) -> str:
    """What to say to argparse's complaint about a state, if another tool calls one so."""
    _, mark, rest = message.partition("argument --state: invalid choice: '")
    meant = STATES.get(rest.partition("'")[0].lower()) if mark else None
    return f"Did you mean {meant}? " if meant else ""


def words_meant(verb: str, unknown: str, there: Iterable[str]) -> str:
    """What to say to a word that a verb does not take; of options, to a verb that is written as one."""
    from gpulease.cli.main import VERBS

    if verb == "status" and unknown.startswith("--") and unknown[2:] in VERBS:
        return f"Did you mean `gpulease {unknown[2:]}`? "
    if verb == "stop" and unknown.isdecimal():
        return f"`gpulease kill {unknown}` ends a job, `gpulease pause {unknown}` stops it for a while. "
    return f"Did you mean -n {unknown}? " if unknown.isdecimal() and "--gpus" in set(there) else ""


def near(typed: str, there: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    found = get_close_matches(typed, sorted(there), 1, 0.75)
    return found[0] if found else None


class Help(argparse.RawDescriptionHelpFormatter):
    """With a width: to ask the terminal for it argparse loads half the standard library, help wanted or not."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=78)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """`-n, --gpus N`, as Python 3.13 writes it, with any Python."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class VerbParser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where help is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, "allow_abbrev": False, **options})
        self.register("action", "once", Once)

    def error(self, message: str, hint: str = "") -> NoReturn:
        text = "".join(letter if letter.isprintable() else "?" for letter in message[:500])
        print(f"{self.prog}: {text[:1].upper()}{text[1:]}.", file=sys.stderr)
        print(f"{hint or state_meant(message)}See `{self.prog} --help`.", file=sys.stderr)
        sys.exit(2)

    def refuse(self, unknown: list[str]) -> NoReturn:
        option = next((word for word in unknown if word.startswith("-")), None)
        hint = words_meant(self.prog.partition(" ")[2], option or unknown[0], self._option_string_actions)
        if option is None:
            self.error(f"unrecognized arguments: {' '.join(unknown)}", hint)
        meant = option_meant(option, self._option_string_actions)
        self.error(
            f"there is no option {option.partition('=')[0]}", hint or (f"Did you mean {meant}? " if meant else "")
        )


class Once(argparse.Action):
    """An option of which a second one would silently replace the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{option_string} was given twice, and takes one value")
        setattr(namespace, self.dest, values)


def parse_words(verb: str, words: list[str]) -> argparse.Namespace:
    parser = make_parser(verb)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        below = next((inner for name, inner in parsers_below(parser).items() if name in words), parser)
        below.refuse(unknown)
    return arguments


def parsers_below(parser: VerbParser) -> dict[str, VerbParser]:
    """Of a verb with verbs of its own."""
    groups = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: inner for group in groups for name, inner in group.items()}


def make_parser(verb: str) -> VerbParser:
    from gpulease.cli.main import ALIASES, VERBS, load

    also = "".join(f" `gpulease {alias}` is the same." for alias, meant in ALIASES.items() if meant == verb)
    parser = VerbParser(
        prog=f"gpulease {verb}",
        description=f"{VERBS[verb][1][:1].upper()}{VERBS[verb][1][1:]}.{also}",
    )
    load(verb).configure(parser)
    add_where(parser, verb, argparse.SUPPRESS)
    if parser.get_default("command_behind"):
        options = parser.format_usage().removeprefix("usage: ").rstrip()
        parser.usage = f"{options}\n{' ' * len(f'usage: {parser.prog} ')}[-- CMD …]"
    return parser
