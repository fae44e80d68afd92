"""`gpulease select`: idle devices by gpuselect's rules, with no lease; prints them or runs a command on them."""

from __future__ import annotations

import os
import sys

from gpulease.cli.options import add_of_job
from gpulease.cli.parsing import ArgumentParser, Namespace, add_command, add_json, print_json
from gpulease.errors import GpuleaseError, UsageError
from gpulease.model.device_selection import ORDERS
from gpulease.model.values import Device

EXAMPLES = """\
A GPU is idle if its utilization and memory utilization are 0 and no process is
on it. --util, --mem-util and --processes allow more; `any` drops a rule.

examples:
  gpulease select                              print the index of an idle GPU
  gpulease select -n 2 --model 3090            two idle 3090s
  gpulease select -d 0,1                       both, if they are idle
  gpulease select -- python train.py           run on an idle GPU
  gpulease select --util 5 --mem-util 10 -- python train.py
  eval "$(gpulease select --export)" || exit   for the current shell
  docker run --gpus "\\"device=$(gpulease select -n 2)\\"" IMAGE nvidia-smi

Another program may pick the same GPU a moment later; `gpulease run` prevents
that. The exit code is 75 if GPUs match but are in use now.
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "-n", "--gpus", "--count", type=int, metavar="N", help="number of GPUs (default: all of --devices, otherwise 1)"
    )
    parser.add_argument(
        "--model", "--name", metavar="MODELS", help="only this GPU model, or one of several, as A100,V100"
    )
    parser.add_argument("--devices", "-d", metavar="IDS", help="only among these GPUs: indices or UUIDs, as 0,2")
    parser.add_argument("--min-memory", metavar="SIZE", help="at least this much memory in total, as 40G")
    parser.add_argument("--mig", action="store_true", help="pick MIG instances instead of whole GPUs")
    parser.add_argument("--util", type=threshold, default=0, metavar="PERCENT", help="maximum utilization (default 0)")
    parser.add_argument(
        "--mem-util", "--mem_util", type=threshold, default=0, metavar="PERCENT", help="the same for memory (default 0)"
    )
    parser.add_argument("--processes", type=threshold, default=0, metavar="N", help="at most N processes (default 0)")
    parser.add_argument("--order", choices=ORDERS, default="random", help="which idle GPUs to prefer (default random)")
    parser.add_argument("--visible", action="store_true", help="only among the GPUs in CUDA_VISIBLE_DEVICES")
    add_of_job(parser, "visible_by")
    parser.add_argument("--uuid", action="store_true", help="print UUIDs instead of indices")
    parser.add_argument("--export", action="store_true", help="print `export` commands for `eval`")
    parser.add_argument("--silent", action="store_true", help="print no message on failure, only exit with a code")
    parser.add_argument("--debug", action="store_true", help="print to stderr what was read of each GPU")
    add_json(parser)
    add_command(parser)


def threshold(text: str) -> float | None:
    """A number, or `any` for no such rule."""
    return None if text == "any" else float(text)


def run(arguments: Namespace) -> int:
    if arguments.debug:
        _log_to_stderr()
    try:
        chosen, shown = _choose(arguments)
    except UsageError:
        raise
    except GpuleaseError as error:
        if arguments.silent:
            return error.exit_code
        raise
    if arguments.command:
        return _become(arguments, shown)
    _print(arguments, chosen, shown)
    return 0


def _choose(arguments: Namespace) -> tuple[tuple[Device, ...], dict[str, str]]:
    """The devices, and the variables that show just them."""
    from gpulease.api.status import rules_of, select_devices
    from gpulease.model.visible import variables, wanted

    by = wanted(arguments.visible_by, os.environ)
    chosen, usual = select_devices(rules_of(vars(arguments)), only_visible=arguments.visible)
    return chosen, variables(chosen, by or usual)


def _become(arguments: Namespace, shown: dict[str, str]) -> int:
    if arguments.json or arguments.export:
        raise UsageError("--json and --export print, and a command was given too.", "Leave one of the two out.")
    from gpulease.system.execution import become

    become(arguments.command, shown)


def _print(arguments: Namespace, chosen: tuple[Device, ...], shown: dict[str, str]) -> None:
    if arguments.json:
        fields = ("index", "label", "uuid", "name")
        print_json({"devices": [{field: getattr(device, field) for field in fields} for device in chosen]})
    elif arguments.export:
        from gpulease.cli.options import export_lines

        print(export_lines(shown))
    else:
        print(",".join(device.uuid if arguments.uuid else device.label for device in chosen))


def _log_to_stderr() -> None:
    import logging

    logging.basicConfig(stream=sys.stderr, format="%(name)s: %(message)s")
    logging.getLogger("gpulease").setLevel(logging.DEBUG)
