"""PURE: packing: what jobs of one shape were seen to use, and for how long that is remembered.

How a share is placed is the board's matter: a packed job is a share like all others, but nobody declared its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpulease.model.values import Request

FORGOTTEN = 30 * 86400.0  # seconds after which what was seen counts for nothing
MAX_PEAKS = 1000  # shapes that are remembered


class Peak(NamedTuple):
    """The most memory that jobs of one shape were seen to use."""

    memory: int  # bytes of one device
    time: float  # when it was last seen


def may_pack(request: Request, by_default: bool) -> bool:
    """Whether a request for one whole device may become a share."""
    wanted = by_default if request.pack is None else request.pack
    return wanted and request.gpus == 1 and request.memory is None


def raised(peaks: Mapping[str, Peak], shape: str, memory: int, now: float) -> Peak:
    """What is remembered of a shape after it was seen to use `memory`."""
    before = known(peaks, shape, now)
    return Peak(memory if before is None else max(memory, before.memory), now)


def known(peaks: Mapping[str, Peak], shape: str, now: float) -> Peak | None:
    found = peaks.get(shape)
    return None if found is None or now - found.time > FORGOTTEN else found


def superfluous(peaks: Mapping[str, Peak], now: float) -> list[str]:
    """Shapes to forget: those not seen for long, and beyond the most that are kept the oldest."""
    by_age = sorted(peaks, key=lambda shape: (peaks[shape].time, shape))
    old = [shape for shape in by_age if now - peaks[shape].time > FORGOTTEN]
    return by_age[: max(len(old), len(peaks) - MAX_PEAKS)]
