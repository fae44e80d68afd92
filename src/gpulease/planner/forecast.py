"""PURE: when the first requests of the queue should start: a short simulation, and the estimates made from it.

It simulates a few courses of events. Each lease goes on for some quantile of the run times of similar ones, each new
one runs for some quantile, and requests that fit start in the order of the queue. The middle of these courses,
corrected by how good the last estimates were, gives a range: by when it starts in half of all cases, and in nine of
ten. If nothing is known of a lease, it goes on for ever, and requests that wait for it have no estimate.

The estimate also says what is sure by enforced limits, and that a start is late. While only time passes, a bound that
users saw does not move away: it is kept, or the start is late, and then there is no new time before something changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from gpulease.model.values import Lease, Request, Waiting
from gpulease.planner.board import Board, RunningCounts, Slot
from gpulease.planner.device_states import DRAINING, EXCLUDED, FREE, LEASED, LOST, OUTSIDE, SHARED
from gpulease.planner.lengths import EMPTY, LATEST, LIKELY, Lengths, Sketches, bucket_of, faded, quantile
from gpulease.planner.limits import Ledger, parts_of
from gpulease.planner.line import Party, family_of, party_of, size_of

AHEAD = 32  # of the line that are looked at; those behind them have no number
MAX_ENDS = 256  # that are looked at, however many run
COURSES = 3  # of events that are played
GOLDEN = 0.618033988749895  # multiples of it, without their whole part, are spread evenly
# What is told is a little more than these parts of earlier starts: the next may come in a busier hour.
TOLD = {LIKELY: 0.55, LATEST: 0.93}
STARTS = "starts"  # the sketch of how starts compared with the courses of events
BY_LIKELY, BY_LATEST = "starts by likely", "starts by latest"  # whether they came by then: below 1 if so
LENIENT = 5.0  # seconds that a start may be late: a device is looked at before it is granted
SLACK = 60.0  # seconds that both sides of that comparison are longer: nobody minds a minute
# How they compare as long as little is known: bench/replay.py --ensemble says so.
USUAL = {bucket_of(ratio): weight for ratio, weight in ((0.25, 1.0), (0.5, 2.0), (1.0, 4.0), (2.0, 2.0), (4.0, 1.0))}


class Start(NamedTuple):
    """When a request should start: by the first moment in half of all cases, by the second in nine of ten."""

    likely: float
    latest: float
    played: float  # as the courses of events have it, without correction


def compared(said: float, came: float) -> float:
    """How a wait compares with what was said of it."""
    return (max(0.0, came) + SLACK) / (max(0.0, said) + SLACK)


def judged(said_at: float, start: Start, came: float) -> dict[str, float]:
    """What to learn when a request starts that had an estimate."""
    found = {STARTS: compared(start.played - said_at, came - said_at)}
    for name, moment in ((BY_LIKELY, start.likely), (BY_LATEST, start.latest)):
        found[name] = 0.5 if came <= moment + LENIENT else 2.0
    return found


def missed(said_at: float, start: Start, now: float) -> dict[str, float]:
    """The same of one that has not started by now: what is known to be wrong of what was said."""
    found = {name: amount for name, amount in judged(said_at, start, now).items() if amount > 1}
    return found if BY_LIKELY in found else {}


def ranged(wait: float, now: float, sketches: Sketches, late: Iterable[float] = ()) -> Start:
    """A wait that the courses of events lead to, as a range. `late`: how those compare that still wait, so far."""
    counts = dict(faded(sketches.get(STARTS, EMPTY), now).counts)
    for ratio in late:
        counts[bucket_of(ratio)] = counts.get(bucket_of(ratio), 0.0) + 1.0
    for at, weight in USUAL.items():
        counts[at] = counts.get(at, 0.0) + weight
    likely, latest = (max(0.0, (wait + SLACK) * quantile(counts, part) - SLACK) for part in TOLD.values())
    return Start(now + likely, now + latest, now + wait)


class Running(NamedTuple):
    """What is on devices, or is going to be, and when it should leave them."""

    devices: tuple[str, ...]  # UUIDs
    request: Request
    party: Party
    end: float | None  # None when nobody can say
    cap: int | None = None  # the sweep that it belongs to, if that has a cap


class Course:
    """One course of events: how long everything runs in it."""

    def __init__(self, lengths: Lengths, number: int) -> None:
        self.lengths, self._drawn = lengths, number / COURSES

    def _part(self) -> float:
        """The next of numbers that are spread over 0 to 1, another one for each that runs."""
        self._drawn = (self._drawn + GOLDEN) % 1.0
        return 0.02 + 0.96 * self._drawn

    def end_of(self, lease: Lease, limit: float | None = None) -> float | None:
        """A reservation ends by its clock, which may have been renewed; others may end before their `limit`."""
        now, ends = self.lengths.now, [end for end in (lease.until, limit) if end is not None]
        length = None if lease.kind == "reservation" else self.lengths.of_lease(lease)
        if length is not None:
            ends.append(now + length.after(max(0.0, now - lease.since), self._part()))
        return min(ends, default=None)

    def length_of(self, waiting: Waiting) -> float | None:
        if waiting.kind == "reservation":
            return waiting.request.duration
        length = self.lengths.of_waiting(waiting)
        return None if length is None else length.after(0.0, self._part())


def look_ahead(
    play: Callable[[Course], dict[str, float]], lengths: Lengths, late: Sequence[float] = ()
) -> dict[str, Start]:
    """The middle of a few courses of events, as ranges; who does not start in each of them is left out."""
    played = [play(Course(lengths, number)) for number in range(COURSES)]
    starts = {id: sorted(course[id] for course in played if id in course) for id in played[0]}
    found = {id: moments[COURSES // 2] for id, moments in starts.items() if len(moments) == COURSES}
    return {id: ranged(start - lengths.now, lengths.now, lengths.sketches, late) for id, start in found.items()}


def running_lease(lease: Lease, end: float | None) -> Running:
    request = Request(len(lease.devices), lease.memory, max_leases=lease.max_leases, priority=lease.priority)
    return Running(lease.devices, request, Party(lease.owner.user, lease.owner.groups), end, lease.cap)


def running_from(start: float, waiting: Waiting, devices: Iterable[str], length: float | None) -> Running:
    """A request that is granted its devices at `start`."""
    end = None if length is None else start + length
    return Running(tuple(devices), waiting.request, party_of(waiting), end, waiting.cap)


def expected_starts(
    line: Sequence[Waiting],
    running: Iterable[Running],
    now: float,
    board: Board,
    ledger: Ledger,
    counts: RunningCounts,
    length_of: Callable[[Waiting], float | None],
) -> dict[str, float]:
    """When each request of the queue should start, each as soon as it fits, in order; unknown ones are left out.

    `board` tells which devices there are, and for whom; `ledger` what is held and `counts` how many of each sweep run:
    neither is changed.
    """
    ahead = _Ahead(board, ledger.copy(), counts.copy(), now, length_of)
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

    def __init__(
        self,
        board: Board,
        ledger: Ledger,
        counts: RunningCounts,
        now: float,
        length_of: Callable[[Waiting], float | None],
    ) -> None:
        self.board, self.ledger, self.counts, self.now, self.length_of = board, ledger, counts, now, length_of
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
        for _ in range(MAX_ENDS):
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
            capped = not self.counts.left(wanted.waiting.cap)
            if devices is None or capped or self.ledger.stops(wanted.waiting, self.board) is not None:
                left.append(wanted)
                continue
            found[wanted.waiting.id] = moment
            one = running_from(moment, wanted.waiting, devices, self.length_of(wanted.waiting))
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
        if one.cap is not None:
            self.counts.capped[one.cap] += times


# -------------------------------------------------------------------- what is told

OUT_OF_REACH = (OUTSIDE, DRAINING, EXCLUDED, LOST)


class KnownEnds(NamedTuple):
    """What is known of leases beside the run times of similar ones."""

    stay: frozenset[str] = frozenset()  # leases whose own process, or run, waits for more: they do not end before
    limits: Mapping[str, float] = {}  # never changed: by lease, when the broker ends it whatever it does


NO_KNOWN_ENDS = KnownEnds()


def enforced_end(lease: Lease, known_ends: KnownEnds) -> float | None:
    """When the broker takes the lease back at the latest; None where it goes on for as long as its owner likes."""
    ends = [end for end in (lease.until, known_ends.limits.get(lease.id)) if end is not None]
    return min(ends, default=None)


class EarlierForecast(NamedTuple):
    """Estimates of one start: the first, which the score compares, and the last, with what it was worked out from."""

    at: float
    start: Start
    latest: float
    basis: int


class CertainStart(NamedTuple):
    """A moment by which a request starts if the queue stays as it is, and the leases whose limits make it so."""

    moment: float
    leases: tuple[str, ...]


class Forecast(NamedTuple):
    start: Start | None = None
    missed: float | None = None  # by when it should have started, if it is late
    sure: CertainStart | None = None

    @property
    def moments(self) -> dict[str, float | None]:
        """As JSON has it."""
        likely, latest = (None, None) if self.start is None else self.start[:2]
        sure = None if self.sure is None else self.sure.moment
        return {"expected_start": likely, "expected_latest": latest, "expected_missed": self.missed, "sure_by": sure}


NO_FORECAST = Forecast()


def forecast(
    fresh: Start | None, sure: CertainStart | None, said: EarlierForecast | None, basis: int, now: float
) -> Forecast:
    """What to tell now of a start that was worked out as `fresh`, after what was said of it before."""
    start, missed = fresh, None
    if said is not None and said.basis == basis:
        if now > said.latest + LENIENT:
            start, missed = None, said.latest
        elif fresh is not None:
            start = _by(fresh, said.latest)
    if sure is not None:
        start = start and _by(start, sure.moment)
    return Forecast(start, missed, sure)


def _by(start: Start, bound: float) -> Start:
    return start._replace(likely=min(start.likely, bound), latest=min(start.latest, bound))


def updated_forecast(
    said: EarlierForecast | None, forecast_now: Forecast, basis: int, now: float
) -> EarlierForecast | None:
    """What to remember after an estimate was shown."""
    if forecast_now.start is None:
        return said
    if said is None:
        return EarlierForecast(now, forecast_now.start, forecast_now.start.latest, basis)
    return said._replace(latest=forecast_now.start.latest, basis=basis)


# -------------------------------------------------------------------- what is sure


def certain_start(
    waiting: Waiting, others: Iterable[Waiting], board: Board, ledger: Ledger, known_ends: KnownEnds
) -> CertainStart | None:
    """By when enough devices become free, by limits that the broker enforces, that it has one whatever others take.

    Any of the `others` in the queue may go first, by fair share or as it is shorter, and takes what it asks for;
    one of a later priority does so only where the request wants several devices, and waits for the last of them.
    Quotas and caps may keep a request back at any time, so nothing is sure under them.
    """
    request = waiting.request
    if ledger.limits or waiting.cap is not None or len(board.hosts) > 1:
        return None
    wanted = request.gpus
    for other in others:
        sooner = other.forced or other.request.priority <= request.priority
        wanted += other.request.gpus if sooner or request.gpus > 1 else 0
    slots = [slot for host in board.matching(family_of(waiting.kind, request)) for slot in host]
    ends = sorted(
        ((_end(slot, board.now, known_ends), slot.device.label, slot) for slot in slots), key=lambda one: one[:2]
    )
    if len(ends) < wanted or ends[wanted - 1][0] == inf:
        return None
    leases = tuple(dict.fromkeys(lease.id for _, _, slot in ends[:wanted] for lease in slot.leases))
    return CertainStart(ends[wanted - 1][0], leases)


def _end(slot: Slot, now: float, known_ends: KnownEnds) -> float:
    if slot.state.state in OUT_OF_REACH or slot.count > len(slot.leases):
        return inf
    ends = [enforced_end(lease, known_ends) for lease in slot.leases]
    return max([now, *(inf if end is None else end for end in ends)])
