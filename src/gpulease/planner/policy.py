"""What an administrator may decide: patience, fairness, reserves and limits, as one frozen value.

Not here: how a decision is made. `gpulease help policy` lists each setting; a test holds that.
"""

from __future__ import annotations

from typing import NamedTuple

HOUR = 3600.0
DAY = 24 * HOUR


SHORT, ARRIVAL = "short", "arrival"
UNLIMITED = 1 << 62  # an amount that is said to have no limit
MAX_SHARES = 2000  # that one user holds at once, whatever the limits say


class Limit(NamedTuple):
    """What one user, one group or one priority may have; None where nothing is said.

    Of a group and of a priority only what is held at once is counted: `gpus` and `shares`.
    """

    scope: str  # "user", "group" or "priority"
    name: str  # who; "*" is each one apart, "@lab" each member of a group; a priority: this number and all larger ones
    gpus: int | None = None  # held at once; a share counts as its part of the device's memory
    shares: int | None = None  # held at once
    jobs: int | None = None  # that are not over
    log_limit: int | None = None  # bytes of one job's log
    longest_lease: float | None = None  # seconds
    longest_reservation: float | None = None  # seconds
    time_limit: float | None = None  # seconds, of a job that was given none
    priorities: tuple[int, int] | None = None  # the smallest and the largest that may be asked for


class Policy(NamedTuple):
    """The defaults of patience were chosen by bench/replay.py: `gpulease help decisions/0003`."""

    order: str = SHORT  # of one user's requests, and of those of equal users: shortest expected first, or by arrival
    patience: float = 20.0  # times the time that it should run that a request is overtaken without complaint
    patience_floor: float = 600.0  # seconds; nobody is overdue sooner
    patience_undeclared: float = 12 * HOUR  # when it declared nothing, and of its like nothing is known
    hold_ratio: float = 1.0  # hold devices that should be free within this part of the wait so far
    hold_ratio_guessed: float = 0.0  # the same, where a lease in the way declared nothing or exceeded it
    longest_wait: float = 14 * DAY  # from here on devices are held unconditionally, oldest request first
    max_holds: int = 2  # requests that devices are held for at one time
    estimate_factor: float = 1.0  # a lease that declared nothing should last this times its age, again
    estimate_floor: float = 60.0  # seconds; the least that any lease is expected to go on
    half_life: float = 7 * DAY  # after which a GPU-second used counts half
    minimum_charge: float = 60.0  # GPU-seconds that a lease counts at least while it is held, from its first moment
    memory_reserve: float = 0.05  # part of a device's memory that shares leave free
    unexplained_memory: int = 1 << 30  # bytes in use that nobody explains, above which it is outside use
    max_leases: int | None = None  # shares on one device
    pack_most: int = 4  # leases on one device that a packed job is on
    limits: tuple[Limit, ...] = ()
