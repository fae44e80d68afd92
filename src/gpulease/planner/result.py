"""What a plan says: grants to make, devices held, and on demand the reason of each that waits.

Not here: making leases of grants; the caller does, since it knows the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpulease.model.values import Cause, Lease, Owner, Waiting
from gpulease.planner.board import Board, RunningCounts
from gpulease.planner.forecast import Forecast, Start
from gpulease.planner.holds import Hold
from gpulease.planner.lengths import Alike
from gpulease.planner.limits import Ledger
from gpulease.planner.line import Line
from gpulease.planner.look_ahead import LookAhead
from gpulease.planner.reasons import Reason
from gpulease.planner.search import ROUNDING
from gpulease.planner.why import Verdict, verdicts, why

REVIEW = 60.0  # seconds after which holds are judged again when nothing else happens


class Grant(NamedTuple):
    """Give these devices to this request."""

    id: str
    devices: tuple[str, ...]  # UUIDs, in the order of their indices
    host: str
    memory: int | None  # bytes, for a share
    max_leases: int | None = None
    shape: str | None = None  # under which its like are known
    outsiders: tuple[tuple[int, int | None], ...] = ()  # who is on the device beside it
    packed: bool = False


class Plan:
    """Reasons hold for the line as it was; ask them before the next change to the entries that wait."""

    def __init__(
        self,
        grants: tuple[Grant, ...],
        holds: tuple[Hold, ...],
        now: float,
        board: Board,
        ledger: Ledger,
        line: Line,
        closed: Mapping[str, Cause],
        running: RunningCounts,
        patience: Callable[[str, Alike], float],
        ahead: LookAhead,
    ) -> None:
        self.grants = grants
        self.holds = holds
        self.now = now
        self._board = board
        self._ledger = ledger
        self._line = line
        self._closed = closed
        self.ahead = ahead
        self._running = running
        self._patience = patience
        self._granted = {grant.id for grant in grants}
        self._held = {hold.id: hold for hold in holds}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return (self.grants, self.holds, self.now) == (other.grants, other.holds, other.now)

    def __hash__(self) -> int:
        return hash((self.grants, self.holds, self.now))

    def reason(self, id: str) -> Reason:
        """Why `id` still waits. KeyError when it was granted or is not in the line."""
        waiting = self._waiting(id)
        return why(
            waiting, self._board, self._ledger, self._held.get(id), self._closed, self._running, self.now,
            lambda: self.forecast(id)[0], self.ahead.overtaken,
        )  # fmt: skip

    def forecast(self, id: str) -> tuple[Forecast, int]:
        """What to tell of the start of `id`, and what that was worked out from: see `forecast.updated_forecast`."""
        return self.ahead.forecast(self._line[id])

    def expected_start(self, id: str) -> Start | None:
        """When `id` should start; None when nobody can say, or when it is far from its turn."""
        return self.forecast(id)[0].start

    def explain(self, id: str) -> tuple[Verdict, ...]:
        """Why each device does not serve `id`, device by device."""
        if not self._waiting(id).request.gpus:
            return ()
        return verdicts(self._waiting(id), self._board, self._ledger, self.now, self.ahead.known_ends)

    @property
    def next_wakeup(self) -> float | None:
        """When this plan could change by the clock alone; None if only an event can change it."""
        moments = [self._line.starts.after(self.now), self._next_deadline()]
        if self._held:
            moments.append(self.now + REVIEW)
        return min((moment for moment in moments if moment is not None), default=None)

    def _waiting(self, id: str) -> Waiting:
        if id in self._granted:
            raise KeyError(id)
        return self._line[id]

    def _next_deadline(self) -> float | None:
        """When patience ends next."""
        moments: list[float] = []
        for tier in self._line.tiers.values():
            for party, families in tier.parties.items():
                for queues in families.values():
                    spans = ((self._patience(party.user, like), queue) for like, queue in queues.undeclared.items())
                    for span, queue in ((0.0, queues.deadline), *spans):
                        found = queue.after(self.now - span + ROUNDING)
                        moments += [] if found is None else [found + span]
        return min(moments, default=None)


def lease_of(grant: Grant, waiting: Waiting, owner: Owner, now: float, until: float | None = None) -> Lease:
    """The lease that a grant becomes. The request's id stays its id."""
    request = waiting.request
    return Lease(
        id=grant.id,
        kind=waiting.kind,
        devices=grant.devices,
        owner=owner,
        since=now,
        until=until,
        memory=grant.memory,
        priority=request.priority,
        duration=request.duration,
        max_leases=grant.max_leases,
        shape=grant.shape,
        outsiders=grant.outsiders,
        cap=waiting.cap,
        packed=grant.packed,
    )
