"""`gpulease status`: the devices of this machine, what they do, and who uses them."""

from __future__ import annotations

import os

from gpulease.cli.parsing import Any, ArgumentParser, Namespace, add_hosts, add_json, add_watch, print_json
from gpulease.errors import BrokerUnavailable, UsageError
from gpulease.render.terminal import Terminal

EXAMPLES = """\
examples:
  gpulease status
  gpulease status --watch        redraw at each change; Ctrl-C ends it
  gpulease status --hosts        one row for each host
  gpulease status --visible      only the GPUs in CUDA_VISIBLE_DEVICES
  gpulease status --list free    the indices of free GPUs, as 0,3
  gpulease status --json | jq '.devices[] | select(.state == "free") | .index'
"""


STATES = ("all", "free", "leased", "shared", "outside", "draining", "excluded", "lost", "unknown")


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_json(parser)
    add_watch(parser)
    add_hosts(parser)
    parser.add_argument("--visible", action="store_true", help="show only the GPUs in CUDA_VISIBLE_DEVICES")
    parser.add_argument("--fresh", action="store_true", help="read the GPUs now, not the broker's last sample")
    of_state = f"in this state ({', '.join(STATES[1:])}), or all"
    parser.add_argument("--count", choices=STATES, metavar="STATE", help=f"print only the number of GPUs {of_state}")
    parser.add_argument(
        "--list", choices=STATES, metavar="STATE", help=f"print only the indices, as 0,3, of the GPUs {of_state}"
    )


def run(arguments: Namespace) -> int:
    if arguments.hosts is not None:
        from gpulease.cli import all_hosts

        return all_hosts.status(arguments)
    if arguments.count or arguments.list:
        return _one_line(arguments)
    if arguments.watch is None:
        _show(arguments, _document(arguments))
        return 0
    from gpulease.cli.watch import watch

    return watch(arguments, ("leases", "line"), lambda: _document(arguments), _lines)


def _one_line(arguments: Namespace) -> int:
    """For scripts: a number, or indices as `get` and `select` print them."""
    if arguments.json or arguments.watch is not None or (arguments.count and arguments.list):
        raise UsageError("--count and --list print one line, and more was asked for.", "Leave one of the two out.")
    wanted, shown = arguments.count or arguments.list, _document(arguments)
    if wanted not in ("all", "lost", "unknown") and any(row["state"] == "unknown" for row in shown["devices"]):
        raise BrokerUnavailable("The broker is down, so the state of the GPUs is unknown.", shown["trouble"])
    found = [row["label"] for row in shown["devices"] if wanted in ("all", row["state"])]
    print(len(found) if arguments.count else ",".join(found))
    return 0


def _document(arguments: Namespace) -> dict[str, Any]:
    from gpulease.api.status import status

    shown = status(only_visible=arguments.visible, fresh=arguments.fresh)
    if arguments.visible and not shown["devices"]:
        from gpulease.model.visible import check

        check(os.environ.get("CUDA_VISIBLE_DEVICES"), ())
    return shown


def _show(arguments: Namespace, document: dict[str, Any]) -> None:
    if arguments.json:
        print_json(document, 2)
        return
    print("\n".join(_lines(document, Terminal())))


def _lines(document: dict[str, Any], terminal: Terminal) -> list[str]:
    from time import time

    from gpulease.render.status import lines

    return lines(document, terminal, time())
