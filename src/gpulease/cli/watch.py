"""`--watch`: the same picture again and again, whenever the broker tells of a change, and as time passes."""

from __future__ import annotations

import sys

from gpulease.cli.parsing import Any, Namespace, print_json
from gpulease.errors import Unavailable, UsageError
from gpulease.render.terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulease.client.subscriptions import Subscription

SMOOTH = 0.05  # seconds in which nothing more changes before it is drawn


def watch(
    arguments: Namespace,
    topics: tuple[str, ...],
    document: Callable[[], Any],
    lines: Callable[[Any, Terminal], list[str]],
) -> int:
    """Until it is interrupted. Where there is no terminal the pictures follow one another; as JSON, one a line."""
    from gpulease.model.fields import seconds

    often = seconds(arguments.watch, "--watch")
    if not 0.1 <= often <= 86400:
        raise UsageError(f"--watch is {often:g}.", "Give a time between 0.1s and 1d.")
    in_place = Terminal().redraws and not arguments.json
    changes = _Changes(topics)
    try:
        if in_place:
            print("\x1b[2J", end="")
        while True:
            changes.listen(often)
            try:
                seen = document()
            except Unavailable as trouble:  # a driver in trouble may recover: go on looking
                print(f"gpulease: {trouble.what} {trouble.next_step}", file=sys.stderr)
            else:
                if arguments.json:
                    print_json(seen)
                elif in_place:
                    _redraw(lines(seen, Terminal()))
                else:
                    print("\n".join(lines(seen, Terminal())))
            sys.stdout.flush()
            changes.wait(often)
    except KeyboardInterrupt:
        return 0


class _Changes:
    """The broker tells when something changed; where there is none, only time passes."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self._topics = topics
        self._told: Subscription | None = None

    def listen(self, seconds: float) -> None:
        """Before it is drawn: what changes from then on is told."""
        from gpulease.client.connection import opened
        from gpulease.client.subscriptions import Subscription

        if self._told is not None:
            return
        try:
            subscription = Subscription(*self._topics, client=opened(start=False))
            subscription.receive(seconds)  # the snapshot
            self._told = subscription
        except (Unavailable, OSError):
            pass

    def wait(self, seconds: float) -> None:
        import time

        try:
            if self._told is None:
                return time.sleep(seconds)
            self._told.receive(seconds)
            for _ in range(4):  # what changes together is drawn once
                if not self._told.receive(SMOOTH):
                    break
        except (Unavailable, OSError):
            self._told = None


def _redraw(shown: list[str]) -> None:
    """In place, line over line: what did not change does not flicker."""
    import time

    terminal = Terminal()
    shown = [terminal.paint(f"{time.strftime('%H:%M:%S')}  (Ctrl-C ends)", "dim"), *shown]
    cut = shown[: terminal.height - 1]
    if len(cut) < len(shown):
        cut[-1] = f"and {len(shown) - len(cut) + 1} more lines"
    print("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in cut) + "\x1b[J", end="")
