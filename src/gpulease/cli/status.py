"""`gpulease status`: the devices of this machine, what they do, and who uses them."""

from __future__ import annotations

import os
import sys

from gpulease.cli.parsing import Any, ArgumentParser, Namespace, add_json, print_json
from gpulease.cli.render import Terminal
from gpulease.errors import Unavailable, UsageError

EXAMPLES = """\
examples:
  gpulease status
  gpulease status --watch        redraw as things change, Ctrl-C ends it
  gpulease status --visible      only what CUDA_VISIBLE_DEVICES shows
  gpulease status --list free    their indices, as 0,3; --count: how many
  gpulease status --json | jq '.devices[] | select(.state == "free") | .index'
"""


STATES = ("all", "free", "leased", "shared", "outside", "draining", "excluded", "lost")
SMOOTH = 0.05  # seconds in which nothing more changes before it is drawn
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.subscription import Subscription


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_json(parser)
    parser.add_argument(
        "--watch",
        "-w",
        nargs="?",
        const="2s",
        metavar="TIME",
        help="redraw in place at each change, and this often (default 2s)",
    )
    parser.add_argument("--visible", action="store_true", help="only the devices that CUDA_VISIBLE_DEVICES shows")
    parser.add_argument("--fresh", action="store_true", help="look at the devices now; a broker does so each second")
    of_state = f"in this state ({', '.join(STATES[1:])}), or all"
    parser.add_argument("--count", choices=STATES, metavar="STATE", help=f"only how many devices are {of_state}")
    parser.add_argument(
        "--list", choices=STATES, metavar="STATE", help=f"only the indices, as 0,3, of those {of_state}"
    )


def run(arguments: Namespace) -> int:
    if arguments.count or arguments.list:
        return _one_line(arguments)
    if arguments.watch is None:
        _show(arguments, _document(arguments))
        return 0
    from gpulease.request_fields import seconds

    arguments.watch = seconds(arguments.watch, "--watch")
    if not 0.1 <= arguments.watch <= 86400:
        raise UsageError(f"--watch is {arguments.watch:g}.", "Give a time between 0.1s and 1d.")
    return _watch(arguments)


def _one_line(arguments: Namespace) -> int:
    """For scripts: a number, or indices as `get` and `select` print them."""
    if arguments.json or arguments.watch is not None or (arguments.count and arguments.list):
        raise UsageError("--count and --list print one line, and more was asked for.", "Leave one of the two out.")
    wanted = arguments.count or arguments.list
    found = [row["label"] for row in _document(arguments)["devices"] if wanted in ("all", row["state"])]
    print(len(found) if arguments.count else ",".join(found))
    return 0


def _document(arguments: Namespace) -> dict[str, Any]:
    from gpulease.api import status

    shown = status(only_visible=arguments.visible, fresh=arguments.fresh)
    if arguments.visible and not shown["devices"]:
        from gpulease.visible import check

        check(os.environ.get("CUDA_VISIBLE_DEVICES"), ())
    return shown


def _show(arguments: Namespace, document: dict[str, Any]) -> None:
    if arguments.json:
        print_json(document, None if arguments.watch else 2)
        return
    from gpulease.cli.status_table import lines

    print("\n".join(lines(document, Terminal())))


def _watch(arguments: Namespace) -> int:
    """Redraw until interrupted. Where there is no terminal the pictures follow one another."""
    in_place = Terminal().redraws and not arguments.json
    changes = _Changes()
    try:
        if in_place:
            print("\x1b[2J", end="")
        while True:
            try:
                document = _document(arguments)
            except Unavailable as trouble:  # a driver in trouble may recover: go on looking
                document = None
                print(f"gpulease: {trouble.what} {trouble.next_step}", file=sys.stderr)
            if document is not None and in_place:
                _redraw(document)
            elif document is not None:
                _show(arguments, document)
            sys.stdout.flush()
            changes.wait(arguments.watch)
    except KeyboardInterrupt:
        return 0


class _Changes:
    """The broker tells when something changed; where there is none, only time passes."""

    def __init__(self) -> None:
        self._told: Subscription | None = None

    def wait(self, seconds: float) -> None:
        import time

        from gpulease.client import Client
        from gpulease.subscription import Subscription

        try:
            if self._told is None:
                self._told = Subscription("leases", "line", client=Client(start=False))
                self._told.receive(seconds)  # the snapshot, which was drawn already
            self._told.receive(seconds)
            for _ in range(4):  # what changes together is drawn once
                if not self._told.receive(SMOOTH):
                    break
        except (Unavailable, OSError):
            self._told = None
            time.sleep(seconds)


def _redraw(document: dict[str, Any]) -> None:
    import time

    from gpulease.cli.status_table import lines

    terminal = Terminal()
    stamp = time.strftime("%H:%M:%S")
    shown = [terminal.paint(f"{stamp}  (Ctrl-C ends)", "dim"), *lines(document, terminal)]
    cut = shown[: terminal.height - 1]
    if len(cut) < len(shown):
        cut[-1] = f"and {len(shown) - len(cut) + 1} more lines"
    print("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in cut) + "\x1b[J", end="")
