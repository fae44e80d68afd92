"""Waiting for the thing itself, with a deadline."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 40.0
Seen = TypeVar("Seen")


def wait_until(condition: Callable[[], Seen | None], deadline: float = PATIENCE, pause: float = 0.01) -> Seen:
    """The first true value of `condition`; a failure when none came in time.

    A condition that runs a command costs far more than the pause: it is asked a third of the time.
    """
    until = (asked := time.monotonic()) + deadline
    while not (seen := condition()):
        if (now := time.monotonic()) > until:
            raise AssertionError(f"still {seen!r} after {deadline:g} s")
        time.sleep(max(pause, 2 * (now - asked)))
        asked = time.monotonic()
    return seen


def read_terminal(descriptor: int, enough: bytes, deadline: float = PATIENCE) -> bytes:
    """What came from the other side of a terminal, until `enough` is in it or nobody writes any more."""
    text, until = b"", time.monotonic() + deadline
    while enough not in text and select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
        try:
            text += os.read(descriptor, 65536)
        except OSError:  # the other side is closed, and all of it was read
            break
    return text


def wait_for_end(pid: int, deadline: float = PATIENCE) -> None:
    """Until the process is gone, by the kernel's word."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], deadline)[0], f"process {pid} still runs after {deadline:g} s"
    finally:
        os.close(descriptor)
