"""`gpulease simulate`: a machine of simulated GPUs for one command, and the means to change it live."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gpulease.cli.argument_parser import VerbParser
from gpulease.cli.parsing import ArgumentParser, Namespace, add_json
from gpulease.errors import SimulationError, UsageError
from gpulease.simulator import state

EXAMPLES = """\
in a simulated machine, each with its own --help:
  set KEY=VALUE …       change the machine while it runs
  show                  print every key of the machine
  use [DEVICES] CMD …   run CMD as a process that occupies devices until it ends

Inside, gpulease, gpustat, nvitop, nvidia-smi and every other program that reads
NVML see the same simulated GPUs. gpulease uses a broker of its own there,
whatever GPULEASE_DIR says. A shell's prompt begins with `(simulated N)`. `set`,
`show` and `use` work inside it, or where GPULEASE_SIMULATE=N is set.

examples:
  gpulease simulate -n 4                              a shell with four GPUs
  gpulease simulate -n 8 --profile mixed -- gpulease status
  gpulease simulate set gpu.0.utilization=90 gpu.1.lost=1
  gpulease simulate use 0 --memory 8G -- sleep 60     occupy GPU 0 until it ends
  gpulease simulate show                              every key and its value
"""
USAGE = """\
gpulease simulate [-n N] [--profile PROFILE] [--set KEY=VALUE]
                         [--shared] [-- CMD …]
       gpulease simulate set KEY=VALUE …
       gpulease simulate show [--json]
       gpulease simulate use [DEVICES] [--memory SIZE] [--graphics] -- CMD …"""
NO_MACHINE = "Run this inside `gpulease simulate -n 4`, or set GPULEASE_SIMULATE=4."
SHOWN = 80  # so many characters of what was typed are repeated in an error
ACTIONS = {
    "set": "change the machine while it runs",
    "show": "print every key of the machine",
    "use": "run CMD as a process that occupies devices until it ends",
}


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.usage = USAGE
    parser.set_defaults(command=[])
    parser.add_argument("-n", "--gpus", type=_count, default=4, metavar="N", help="number of GPUs (default 4)")
    parser.add_argument(
        "--profile", default=state.DEFAULT_PROFILE, help="the GPU models: a100 (default), rtx4090 or mixed"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="do `simulate set` before CMD starts"
    )
    parser.add_argument("--shared", action="store_true", help="let other users of this machine use the simulated GPUs")
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        choices=list(ACTIONS),  # for completion; argparse checks none of the rest
        metavar="-- CMD …",
        help="the command to run (default: a shell); or set, show, use",
    )


def _count(text: str) -> int:
    if not state.is_number(text) or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text[:SHOWN]!r} is not a number of GPUs")
    return int(text)


def run(arguments: Namespace) -> int:
    words, behind = arguments.words, arguments.command
    if words and words[0] in ACTIONS:
        return _act(words[0], words[1:], behind)
    if words:
        _refuse_unknown(words[0])
    arguments.command = _joined(words, behind)
    return _run_machine(arguments)


def _joined(words: list[str], behind: list[str]) -> list[str]:
    """The command, whether or not `--` stood before it; one that is its own stays."""
    return [*words, "--", *behind] if words and behind else words or behind


def _refuse_unknown(word: str) -> None:
    """Without `--` a word that is no command may be a slip of an action."""
    from shutil import which

    if which(word) is None:
        raise UsageError(
            f"{word[:SHOWN]!r} is neither set, show or use nor a command.",
            "Put `--` before a command; see `gpulease simulate --help`.",
        )


# ---- a machine for one command


def _run_machine(arguments: Namespace) -> int:
    from gpulease.cli.foreground import run_child, signals_held
    from gpulease.simulator.folder import broker_folder, temporary_folder

    with signals_held() as mask, temporary_folder() as directory, broker_folder(directory) as broker:
        environ = _prepare(directory, broker, arguments)
        command, marks = (arguments.command, {}) if arguments.command else _shell(arguments)
        return run_child(command, {**environ, **marks}, mask)


def _prepare(directory: Path, broker: Path, arguments: Namespace) -> dict[str, str]:
    from gpulease.simulator.folder import apart, simulated_environment

    state.create(directory, arguments.gpus, arguments.profile, shared=arguments.shared)
    if arguments.set:
        state.set_values(directory, arguments.set)
    try:
        return simulated_environment(directory, apart(os.environ, broker))
    except OSError as error:
        raise SimulationError(
            f"The simulated machine cannot be made in {directory}: {error.strerror}.",
            "Set TMPDIR to a folder that can be written to.",
        ) from None


def _shell(arguments: Namespace) -> tuple[list[str], dict[str, str]]:
    from gpulease.cli.foreground import marked_shell

    print(f"SIMULATED: {arguments.gpus} GPUs ({arguments.profile}). Leave with `exit`.", file=sys.stderr)
    return marked_shell(f"simulated {arguments.gpus}", os.environ)


# ---- in a machine


def _act(action: str, words: list[str], behind: list[str]) -> int:
    if action == "use":
        return _use(words, behind)
    if behind:
        raise UsageError(f"`gpulease simulate {action}` takes no command.", "Leave out what follows `--`.")
    return _set(words) if action == "set" else _show(words)


def _parser(action: str) -> VerbParser:
    description = f"{ACTIONS[action][:1].upper()}{ACTIONS[action][1:]}."
    return VerbParser(prog=f"gpulease simulate {action}", description=description)


def _directory() -> Path:
    from gpulease.simulator.activate import directory_from_environment

    directory = directory_from_environment(os.environ)
    if directory is None:
        raise SimulationError("There is no simulated machine here.", NO_MACHINE)
    return directory


def _set(words: list[str]) -> int:
    parser = _parser("set")
    parser.add_argument("assignments", nargs="+", metavar="KEY=VALUE", help="such as gpu.0.utilization=90")
    assignments = parser.parse_args(words).assignments
    state.set_values(_directory(), assignments)
    return 0


def _show(words: list[str]) -> int:
    from gpulease.simulator.nvidia_smi import print_anything

    parser = _parser("show")
    add_json(parser)
    as_json = parser.parse_args(words).json
    directory = _directory()
    print_anything()
    if as_json:
        _print_json(directory)
    else:
        _print_keys(directory)
    return 0


def _print_json(directory: Path) -> None:
    import json

    processes = [use._asdict() for use in state.live_uses(directory)]
    document = {"directory": str(directory), "machine": state.read_machine(directory), "processes": processes}
    print(json.dumps(document, indent=2))


def _print_keys(directory: Path) -> None:
    from gpulease.simulator.nvidia_smi import printable

    print(f"# SIMULATED machine in {printable(str(directory))}")
    for key, value in state.read_machine(directory).items():
        print(printable(f"{key}={value}"))
    for use in state.live_uses(directory):
        label = use.gpu if use.instance is None else f"{use.gpu}:{use.instance}"
        print(f"# process {use.pid} uses {use.memory} bytes of {label}")


def _use(words: list[str], behind: list[str]) -> int:
    from gpulease.model.quantities import parse_bytes
    from gpulease.system.execution import become

    place = _where_the_command_begins(words, bool(behind))
    arguments = _use_parser().parse_args(words[:place])
    command = _joined(words[place:], behind)
    if not command:
        raise UsageError(
            "There is no command to run.", "Give one after `--`: gpulease simulate use 0 --memory 8G -- CMD."
        )
    memory = parse_bytes(arguments.memory)
    state.occupy(_directory(), arguments.devices or _visible_devices(), memory, graphics=arguments.graphics)
    become(command, {})


def _use_parser() -> VerbParser:
    parser = _parser("use")
    parser.usage = "gpulease simulate use [DEVICES] [--memory SIZE] [--graphics] -- CMD …"
    parser.add_argument(
        "devices", nargs="?", help="indices or UUIDs, such as 0 or 0,2 (default: those of CUDA_VISIBLE_DEVICES)"
    )
    parser.add_argument("--memory", default="1G", metavar="SIZE", help="memory on each GPU, such as 8G (default 1G)")
    parser.add_argument("--graphics", action="store_true", help="appear as a graphics process, not a compute process")
    return parser


def _where_the_command_begins(words: list[str], is_marked: bool) -> int:
    """At the second word that is no option; where no `--` marks it, at the first that can be no device."""
    from gpulease.simulator.labels import looks_like_devices

    seen_devices = is_value = False
    for place, word in enumerate(words):
        if is_value or (word.startswith("-") and word != "-"):
            is_value = not is_value and word == "--memory"
        elif seen_devices or not (is_marked or looks_like_devices(word)):
            return place
        else:
            seen_devices = True
    return len(words)


def _visible_devices() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not visible:
        raise UsageError("No device was named, and CUDA_VISIBLE_DEVICES names none.", "Name one, such as `0`.")
    return visible
