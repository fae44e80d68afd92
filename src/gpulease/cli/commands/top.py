"""`gpulease top`: the machine on a full screen, as it changes."""

from __future__ import annotations

import sys

from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.errors import UsageError

EXAMPLES = """\
It shows the GPUs with their recent use and holders, the queue with reasons and
expected starts, and jobs with their logs. `?` lists the keys; `q` leaves.

examples:
  gpulease top
  ssh -t gpuserver gpulease top
  NO_COLOR=1 gpulease top
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES


def run(arguments: Namespace) -> int:
    from gpulease.render.terminal import Terminal

    if not (Terminal().redraws and sys.stdin.isatty()):
        raise UsageError(
            "`top` needs a terminal that can be drawn on.", "Elsewhere `gpulease status --watch` shows the same."
        )
    try:
        from gpulease.tui.screen import show
    except ImportError as error:
        if error.name not in ("curses", "_curses"):
            raise
        raise UsageError("This Python has no curses.", "`gpulease status --watch` needs none.") from None
    show()
    return 0
