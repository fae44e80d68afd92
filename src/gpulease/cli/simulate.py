"""`gpulease simulate`: a machine of simulated GPUs for one command, and the means to change it live."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from gpulease.errors import SimulationError, UsageError
from gpulease.simulation import state

EXAMPLES = """\
Inside, gpulease, gpustat, nvitop, nvidia-smi and all that reads NVML see the
same simulated GPUs. `set`, `show` and `use` work inside it, or wherever
GPULEASE_SIMULATE=N is set.

examples:
  gpulease simulate -n 4                              a shell with four GPUs
  gpulease simulate -n 8 --profile mixed -- gpulease status
  gpulease simulate set gpu.0.utilization=90 gpu.1.lost=1
  gpulease simulate use 0 --memory 8G -- sleep 60     occupy GPU 0 until it ends
  gpulease simulate show                              every key and its value
"""
USAGE = """\
gpulease simulate [-n N] [--profile PROFILE] [--set KEY=VALUE] [--shared] [-- CMD …]
       gpulease simulate set KEY=VALUE …
       gpulease simulate show [--json]
       gpulease simulate use [DEVICES] [--memory SIZE] [--graphics] -- CMD …"""
NO_MACHINE = "Run this inside `gpulease simulate -n 4`, or set GPULEASE_SIMULATE=4."


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.usage = USAGE
    parser.set_defaults(command=[], action=None)
    parser.add_argument("-n", "--gpus", type=int, default=4, metavar="N", help="how many GPUs (default 4)")
    parser.add_argument(
        "--profile", default=state.DEFAULT_PROFILE, help="which cards: a100 (default), rtx4090 or mixed"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as `simulate set`, before CMD starts"
    )
    parser.add_argument("--shared", action="store_true", help="let other users of this host occupy its GPUs")
    actions = parser.add_subparsers(
        dest="action",
        metavar="[set | show | use] …",
        title="in a simulated machine",
        help="each has its own --help",
        prog="gpulease simulate",
    )
    _configure_actions(actions.add_parser)


def _configure_actions(add_parser) -> None:  # type: ignore[no-untyped-def]  # argparse keeps its type private
    setting = add_parser("set", help="change the machine while it runs")
    setting.add_argument("assignments", nargs="+", metavar="KEY=VALUE", help="such as gpu.0.utilization=90")
    show = add_parser("show", help="print every key of the machine")
    show.add_argument("--json", action="store_true", help="print one JSON document")
    use = add_parser("use", help="run CMD as a process that occupies devices until it ends")
    use.add_argument("devices", nargs="?", help="such as 0 or 0,2 (default: those of CUDA_VISIBLE_DEVICES)")
    use.add_argument("--memory", default="1G", metavar="SIZE", help="on each device, such as 8G (default 1G)")
    use.add_argument("--graphics", action="store_true", help="as a process that draws, not one that computes")


def run(arguments: Namespace) -> int:
    if arguments.action is None:
        return _run_machine(arguments)
    if arguments.command and arguments.action != "use":
        raise UsageError(f"`gpulease simulate {arguments.action}` takes no command.", "Leave out what follows `--`.")
    actions = {"set": _set, "show": _show, "use": _use}
    return actions[arguments.action](arguments)


def _run_machine(arguments: Namespace) -> int:
    from tempfile import TemporaryDirectory

    from gpulease.simulation.child import run_child, signals_held
    from gpulease.simulation.environment import simulated_environment

    with (
        signals_held() as mask,
        TemporaryDirectory(prefix="gpulease-simulated-", ignore_cleanup_errors=True) as folder,
    ):
        directory = Path(folder)
        state.create(directory, arguments.gpus, arguments.profile, shared=arguments.shared)
        if arguments.set:
            state.set_values(directory, arguments.set)
        environ = simulated_environment(directory, os.environ)
        return run_child(arguments.command or _shell(arguments), environ, mask)


def _shell(arguments: Namespace) -> list[str]:
    print(f"SIMULATED: {arguments.gpus} GPUs ({arguments.profile}). Leave with `exit`.", file=sys.stderr)
    return [os.environ.get("SHELL") or "/bin/sh"]


def _directory() -> Path:
    from gpulease.simulation.activate import directory_from_environment

    directory = directory_from_environment(os.environ)
    if directory is None:
        raise SimulationError("There is no simulated machine here.", NO_MACHINE)
    return directory


def _set(arguments: Namespace) -> int:
    state.set_values(_directory(), arguments.assignments)
    return 0


def _show(arguments: Namespace) -> int:
    directory = _directory()
    machine = state.read_machine(directory)
    uses = state.live_uses(directory)
    if arguments.json:
        import json

        processes = [use._asdict() for use in uses]
        document = {"directory": str(directory), "machine": machine, "processes": processes}
        print(json.dumps(document, indent=2))
        return 0
    print(f"# SIMULATED machine in {directory}")
    for key, value in machine.items():
        print(f"{key}={value}")
    for use in uses:
        label = use.gpu if use.instance is None else f"{use.gpu}:{use.instance}"
        print(f"# process {use.pid} uses {use.memory} bytes of {label}")
    return 0


def _use(arguments: Namespace) -> int:
    from gpulease.execution import become
    from gpulease.quantities import parse_bytes

    if not arguments.command:
        raise UsageError(
            "There is no command to run.", "Give one after `--`: gpulease simulate use 0 --memory 8G -- CMD."
        )
    memory = parse_bytes(arguments.memory)
    directory = _directory()
    state.occupy(directory, _devices(arguments, directory), memory, graphics=arguments.graphics)
    become(arguments.command, {})


def _devices(arguments: Namespace, directory: Path) -> str:
    if arguments.devices:
        return str(arguments.devices)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not visible:
        raise UsageError("No device was named, and CUDA_VISIBLE_DEVICES names none.", "Name one, such as `0`.")
    from gpulease.simulation.labels import labels_of

    return ",".join(labels_of(state.read_machine(directory), visible))
