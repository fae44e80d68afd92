"""Waiting for a lease at a terminal: one line on stderr that says the place in the line and why."""

from __future__ import annotations

import sys

from gpulease.client import Client, acquire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpulease.messages import Granted, StillWaiting


def wait_for(fields: dict[str, Any], quiet: bool = False) -> tuple[Granted, Client]:
    """What was granted. Shows nothing when it is granted at once."""
    line = None if quiet else _Line()
    try:
        granted, client = acquire(fields, None if line is None else line.show)
    finally:
        if line is not None:
            line.clear()
    if not quiet and granted["until"] is not None and fields["kind"] != "reservation":
        _tell_end(granted["until"] - granted["since"])
    return granted, client


def _tell_end(seconds: float) -> None:
    """Nobody asked for it, so nobody would expect it."""
    from gpulease.cli.ls import span

    print(f"gpulease: this lease ends after {span(seconds)}, by the limit `longest-lease`.", file=sys.stderr)


def environment_of(granted: Granted, visible_by: str | None) -> dict[str, str]:
    """The variables with which a command sees just its devices, and knows its lease."""
    import os
    from types import SimpleNamespace

    from gpulease.visible import variables, wanted

    devices = [SimpleNamespace(**device) for device in granted["devices"]]
    labels = ",".join(device.label for device in devices)
    by = wanted(visible_by, os.environ) or granted.get("visible")
    return {"GPULEASE_LEASE": granted["id"], "GPULEASE_DEVICES": labels, **variables(devices, by)}


class _Line:
    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = ""

    def show(self, told: StillWaiting) -> None:
        text = f"gpulease: {told['id']} waits, number {told['place']} in the line. {told['why']}"
        # Into a file only what is news: the place; the reason's estimate changes all the time.
        news = text if self._terminal else f"{told['id']} {told['place']}"
        if news == self._shown:
            return
        self._shown = news
        if self._terminal:
            from gpulease.cli.render import Terminal, fit

            terminal = Terminal(sys.stderr)
            print(f"\r\x1b[K{fit(text, terminal.width - 1, terminal).rstrip()}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
