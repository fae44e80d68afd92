"""When the first of the line should start: a short look ahead over what runs and who is before them. PURE.

Only times that somebody declared count: `--for`, or an end by the clock. What declared nothing, has outlasted it, or
is of a user who is not believed, is taken to go on for ever. So a number follows from declared times alone, and who
has to wait for anything else has none. It is an estimate all the same: people come, and programs end early.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from gpulease.model import Lease, Request, Waiting
from gpulease.planner.board import Board, Slot
from gpulease.planner.device_states import FREE, LEASED, SHARED
from gpulease.planner.limits import Ledger, parts_of
from gpulease.planner.line import Party, family_of, party_of, size_of

AHEAD = 32  # of the line that are looked at; those behind them have no number
MOST_ENDS = 256  # that are looked at, however many run


class Running(NamedTuple):
    """What is on devices, or is going to be, and when it should leave them."""

    devices: tuple[str, ...]  # UUIDs
    request: Request
    party: Party
    end: float | None  # None when nobody can say


def running_lease(lease: Lease, board: Board) -> Running:
    request = Request(len(lease.devices), lease.memory, max_leases=lease.max_leases, priority=lease.priority)
    return Running(lease.devices, request, Party(lease.owner.user, lease.owner.groups), _end(lease, board))


def _end(lease: Lease, board: Board) -> float | None:
    """As it was declared and can still be so; a reservation ends by its clock, which may have been renewed."""
    ends = [] if lease.until is None else [lease.until]
    if lease.duration is not None and lease.kind != "reservation" and lease.owner.user not in board.unbelieved:
        ends += [lease.since + lease.duration] if lease.since + lease.duration > board.now else []
    return min(ends, default=None)


def running_from(start: float, waiting: Waiting, devices: Iterable[str], board: Board) -> Running:
    """A request that is granted its devices at `start`."""
    duration = board.believed(waiting).duration
    end = None if duration is None else start + duration
    return Running(tuple(devices), waiting.request, party_of(waiting), end)


def expected_starts(
    line: Sequence[Waiting], running: Iterable[Running], now: float, board: Board, ledger: Ledger
) -> dict[str, float]:
    """When each of the line should start, each as soon as it fits, in order; who nobody can say it of is left out.

    `board` tells which devices there are, and for whom; `ledger` what is held, and is not changed.
    """
    ahead = _Ahead(board, ledger.copy(), now)
    for one in running:
        ahead.enter(one)
    return ahead.starts(
        [_Wanted.of(board.as_seen(waiting), board) for waiting in line[:AHEAD] if size_of(waiting.request) > 0]
    )


class _Wanted(NamedTuple):
    waiting: Waiting
    size: int
    matching: int  # the same for those whom the same devices match
    hosts: dict[str, list[Slot]]  # these devices

    @classmethod
    def of(cls, waiting: Waiting, board: Board) -> _Wanted:
        family = family_of(waiting.kind, waiting.request)
        matching = board.matching(family)  # one object for one family
        hosts = {slots[0].host: slots for slots in matching}
        return cls(waiting, size_of(waiting.request), id(matching), hosts)


class _Load:
    """What is on one device as time passes."""

    __slots__ = ("on", "room", "slot")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.on: list[Running] = []
        self.measure()

    def measure(self) -> None:
        """`room`: bytes for one more share; -1 when none may come."""
        shares = [one.request.memory for one in self.on if one.request.memory is not None]
        reached = self.slot.state.state in (FREE, LEASED, SHARED) and len(shares) == len(self.on)
        self.room = self.slot.most - sum(shares) if reached else -1

    def takes(self, request: Request, most: int | None) -> bool:
        if request.memory is None:
            return not self.on and self.room >= 0
        if self.room < request.memory or (most is not None and len(self.on) >= most):
            return False
        beside = (request.max_leases, *(one.request.max_leases for one in self.on))
        return all(limit is None or len(self.on) <= limit for limit in beside)


class _Ahead:
    """The devices as time passes, and what leaves them next."""

    def __init__(self, board: Board, ledger: Ledger, now: float) -> None:
        self.board, self.ledger, self.now = board, ledger, now
        self.loads = {slot.device.uuid: _Load(slot) for slot in board.slots}
        self.ends: list[tuple[float, int, Running]] = []
        self.entered = 0

    def enter(self, one: Running) -> None:
        for load in self._of(one):
            load.on.append(one)
            load.measure()
        self.entered += 1
        if one.end is not None:
            heappush(self.ends, (max(self.now, one.end), self.entered, one))

    def _of(self, one: Running) -> list[_Load]:
        return [self.loads[uuid] for uuid in one.devices if uuid in self.loads]

    def starts(self, line: list[_Wanted]) -> dict[str, float]:
        found: dict[str, float] = {}
        for _ in range(MOST_ENDS):
            if not line or not self.ends:
                break
            moment, hosts = self._pass_to_next_end()
            for host in hosts:
                line = self._serve(line, host, moment, found)
        return found

    def _pass_to_next_end(self) -> tuple[float, set[str]]:
        """The moment, and the hosts on which something falls free then."""
        moment, hosts = self.ends[0][0], set()
        while self.ends and self.ends[0][0] == moment:
            one = heappop(self.ends)[2]
            for load in self._of(one):
                load.on.remove(one)
                load.measure()
                hosts.add(load.slot.host)
            self._count(one, -1)
        return moment, hosts

    def _serve(self, line: list[_Wanted], host: str, moment: float, found: dict[str, float]) -> list[_Wanted]:
        """Let start who fits, in order; who does not is left."""
        left: list[_Wanted] = []
        refused: dict[int, int] = {}  # the least amount that does not fit, by the devices that match
        for wanted in line:
            if wanted.size >= refused.get(wanted.matching, inf):
                left.append(wanted)
                continue
            devices = self._place(wanted, host)
            if devices is None:
                refused[wanted.matching] = wanted.size
            if devices is None or self.ledger.stops(wanted.waiting, self.board) is not None:
                left.append(wanted)
                continue
            found[wanted.waiting.id] = moment
            one = running_from(moment, wanted.waiting, devices, self.board)
            self._count(one, 1)
            self.enter(one)
        return left

    def _place(self, wanted: _Wanted, host: str) -> list[str] | None:
        request, most = wanted.waiting.request, self.board.policy.max_leases
        uuids = [slot.device.uuid for slot in wanted.hosts.get(host, ())]
        fitting = [uuid for uuid in uuids if self.loads[uuid].takes(request, most)]
        return fitting[: request.gpus] if len(fitting) >= request.gpus else None

    def _count(self, one: Running, times: int) -> None:
        request, load = one.request, self.loads.get(one.devices[0]) if one.devices else None
        total = None if load is None else load.slot.device.memory_total
        parts = parts_of(len(one.devices), request.memory, total)
        self.ledger.add(one.party, request.priority, times * parts, times * (request.memory is not None))
