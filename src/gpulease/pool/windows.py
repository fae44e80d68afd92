"""PURE: how many items a worker is given ahead, and when they are taken back.

Sending items one by one wastes the time between them; sending many ahead lets some wait behind a long one. So a worker
gets about `AHEAD` seconds of work by what the function took so far, one item while nothing is known; and whatever it
has not begun can be taken back at any moment.
"""

from __future__ import annotations

AHEAD = 0.004  # seconds of work
DEEPEST = 128  # items
MOST_BYTES = 1 << 16  # in a worker's socket
STALLED = 0.020  # seconds without a result after which unbegun items are taken back
STALLED_AND_IDLE = 0.001  # the same, while another worker has nothing to do
WEIGHT = 0.2  # of the newest measurement


def depth(seconds: float | None) -> int:
    """How many items that take `seconds` each a worker may have."""
    if seconds is None:
        return 1
    return max(1, min(DEEPEST, int(AHEAD / max(seconds, 1e-6))))


def room(in_flight: int, depth: int) -> int:
    """How many more to send. Nothing before half is done: fewer, larger sends."""
    return 0 if in_flight > depth // 2 else depth - in_flight


def share(queued: int, workers: int) -> int:
    """The part of a queue that one worker may take, so that all of them begin."""
    return -(-queued // max(workers, 1))


def learn(known: float | None, measured: float) -> float:
    """An average that follows a change, upwards at once: too little ahead costs less than too much."""
    if known is None or measured > known * 8:
        return measured
    return known + WEIGHT * (measured - known)


def most_tries(retries: int) -> int:
    """How many workers an item may end: none of its own accord with `retries=0`, else one more than its tries.

    That last one is in a worker that did nothing before, so that a worn-out worker is not blamed on the item.
    """
    return 1 if retries == 0 else retries + 2
