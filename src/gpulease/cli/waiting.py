"""Waiting for a lease, as `run`, `get` and `shell` do, and what the command is told of it."""

from __future__ import annotations

import sys

from gpulease.client.connection import acquire
from gpulease.client.waiting import WaitNotice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpulease.client.engines import BackendConnection
    from gpulease.protocol.messages import Granted


def wait_for(fields: dict[str, Any], quiet: bool = False) -> tuple[Granted, BackendConnection]:
    """What was granted. Says nothing when it is granted at once."""
    waiting, labels = WaitNotice(quiet, log=True), None
    try:
        granted, client = acquire(fields, waiting.tell)
        labels = ",".join(device["label"] for device in granted["devices"])
    finally:
        waiting.end(labels)
    if not quiet and granted["until"] is not None and fields["kind"] != "reservation":
        _tell_end(granted["until"] - granted["since"])
    return granted, client


def _tell_end(seconds: float) -> None:
    """Nobody asked for it, so nobody would expect it."""
    from gpulease.render.times import span

    print(f"gpulease: this lease ends after {span(seconds)}, by the limit `longest-lease`.", file=sys.stderr)


def environment_of(granted: Granted, visible_by: str | None) -> dict[str, str]:
    """The variables with which a command sees just its devices, and knows its lease."""
    import os
    from types import SimpleNamespace

    from gpulease.model.visible import variables, wanted

    devices = [SimpleNamespace(**device) for device in granted["devices"]]
    labels = ",".join(device.label for device in devices)
    by = wanted(visible_by, os.environ) or granted.get("visible")
    return {"GPULEASE_LEASE": granted["id"], "GPULEASE_DEVICES": labels, **variables(devices, by)}
