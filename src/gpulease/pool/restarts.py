"""PURE: whether and when a worker that ended is followed by another in its place.

One that ends before it is ready would do so again: three in a row are enough. One that was ready may have been killed,
or ended by an item, and is followed at once; only where it happens again and again, each time soon after the start,
the next one waits, each time longer.
"""

from __future__ import annotations

from typing import NamedTuple

from gpulease.model.pauses import pause_after

MOST_UNREADY = 3  # in a row
SOON = 1.0  # seconds after it was ready
FREE = 3  # ends in a row without a pause: as many as one item may cause
FIRST, LONGEST = 0.1, 30.0  # seconds of a pause


class Restarts(NamedTuple):
    unready: int = 0  # ends in a row before the worker was ready
    soon: int = 0  # ends in a row, of any kind, at most SOON after it was

    def ended(self, ready_for: float | None) -> Restarts:
        """After one more end; `ready_for` is None for a worker that never was."""
        if ready_for is None:
            return Restarts(self.unready + 1, self.soon + 1)
        return Restarts(0, self.soon + 1 if ready_for <= SOON else 0)

    @property
    def hopeless(self) -> bool:
        return self.unready >= MOST_UNREADY

    @property
    def pause(self) -> float:
        """Seconds before the next start."""
        return 0.0 if self.soon <= FREE else pause_after(self.soon - FREE, FIRST, LONGEST)
