"""The queue: everything that waits, indexed so that a plan looks at the heads of its classes only.

A class is what one user asks at one priority with one set of filters. Adding and removing cost
O(log n). Not here: who goes first between users, and what fits; a plan never changes the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from heapq import merge
from itertools import islice
from math import inf
from typing import NamedTuple

from gpulease.model.devices import WHOLE, kind_wanted
from gpulease.model.values import Request, Waiting
from gpulease.planner.lengths import Alike, alike
from gpulease.planner.policy import Policy
from gpulease.planner.queue import Entry, Key, Queue

AT_ONCE = -inf  # one object for all that may start at any time
STEP = 1e-3  # seconds of arrival between a moved request and who stands at the end where it goes


class Party(NamedTuple):
    """One user as quotas and fairness see them."""

    user: str
    groups: tuple[str, ...]


class Family(NamedTuple):
    """Everything of a request that decides which devices may serve it, but for the amount."""

    kind: str
    share: bool
    models: tuple[str, ...]
    devices: tuple[str, ...]
    exclude: tuple[str, ...]
    min_memory: int | None
    max_leases: int | None
    beside_outside: bool
    shape: str | None  # of packed ones, which all want what the plan knows to be their share
    cap: int | None = None  # a sweep with a cap is a class of its own: all of it is passed over at once
    devices_wanted: str = WHOLE  # whole GPUs or MIG instances (model/devices.py)


class Patience(NamedTuple):
    """When a request that waits becomes overdue: after a multiple of the time that it should run."""

    factor: float
    floor: float
    undeclared: float

    @classmethod
    def of(cls, policy: Policy) -> Patience:
        return cls(policy.patience, policy.patience_floor, policy.patience_undeclared)

    def span(self, expected: float) -> float:
        return max(self.floor, self.factor * expected)


class Queues(NamedTuple):
    """One class in order of arrival; who declared a time also by that, and by when patience ends.

    The others are by what is alike, each of these in order of arrival: how long they should run a plan works out.
    """

    arrival: Queue
    deadline: Queue
    short: Queue
    undeclared: dict[Alike, Queue]

    @classmethod
    def empty(cls) -> Queues:
        return cls(Queue(), Queue(), Queue(), {})


class Tier:
    """What waits at one priority."""

    __slots__ = ("counts", "least", "oldest", "parties")

    def __init__(self) -> None:
        self.parties: dict[Party, dict[Family, Queues]] = {}
        self.oldest = Queue()  # without those that a cap may keep back
        self.counts: Counter[Family] = Counter()
        self.least: dict[Family, int] = {}  # no request of the family wants less; some may all want more

    def count(self, family: Family, size: int, number: int = 1) -> None:
        self.counts[family] += number
        self.least[family] = min(size, self.least.get(family, size))

    def uncount(self, family: Family) -> None:
        self.counts[family] -= 1
        if not self.counts[family]:
            del self.counts[family], self.least[family]


def family_of(kind: str, request: Request, shape: str | None = None, cap: int | None = None) -> Family:
    return Family(
        kind,
        request.memory is not None,
        request.models,
        tuple(sorted(request.devices)),  # their order matters to which of them is taken, not to who may have one
        request.exclude,
        request.min_memory,
        request.max_leases,
        request.beside_outside,
        shape,
        cap,
        kind_wanted(request.gpus, bool(request.devices), request.models, request.mig),
    )


def size_of(request: Request) -> int:
    return request.gpus if request.memory is None else request.memory


def place_of(waiting: Waiting) -> Key:
    return (waiting.since if waiting.place is None else waiting.place, 0.0, waiting.id)


def ready_of(waiting: Waiting) -> float:
    """Since when it could have started."""
    return max(waiting.since, waiting.request.not_before or waiting.since)


def expected_of(waiting: Waiting) -> float | None:
    """Seconds that it should run by what it declared; None where it declared nothing."""
    return waiting.request.duration if waiting.expected is None else waiting.expected


def packed_shape(waiting: Waiting) -> str | None:
    return waiting.shape if waiting.packed else None


def family_for(waiting: Waiting) -> Family:
    return family_of(waiting.kind, waiting.request, packed_shape(waiting), waiting.cap)


def party_of(waiting: Waiting) -> Party:
    return Party(waiting.user, waiting.groups)


def check(request: Request) -> None:
    """Refuse an amount that makes no sense; what only this machine lacks is a reason, not an error."""
    if request.gpus < 0:
        raise ValueError(f"a request for {request.gpus} devices makes no sense")
    if request.memory is not None and (request.memory < 1 or request.gpus != 1):
        raise ValueError("a share is some memory of exactly one device")


class Line:
    """The caller adds, removes and replaces; `plan` only reads."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.patience = Patience.of(policy or Policy())
        self.tiers: dict[int, Tier] = {}  # by priority
        self.light: dict[int, Tier] = {}  # the same, of those that need no device
        self.forced: dict[str, Waiting] = {}
        self.blocked: dict[str, Waiting] = {}
        self.starts = Queue()  # by the moment before which a request must not start
        self.wide = 0  # how many of the indexed want more than one device
        self.shapes: Counter[str] = Counter()  # of the indexed
        self.packed_shapes: Counter[str] = Counter()  # of those that are packed
        self._waiting: dict[str, Waiting] = {}
        self._families: dict[Family, Family] = {}  # equal families are one object: memory, and fast lookup

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, id: str) -> bool:
        return id in self._waiting

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting.values())

    def __getitem__(self, id: str) -> Waiting:
        return self._waiting[id]

    def get(self, id: str) -> Waiting | None:
        return self._waiting.get(id)

    def holds(self, waiting: Waiting) -> bool:
        """Whether it waits, and nothing about it was changed."""
        return self._waiting.get(waiting.id) is waiting

    def add(self, waiting: Waiting) -> None:
        if waiting.id in self._waiting:
            raise ValueError(f"request {waiting.id} is already in the line")
        check(waiting.request)
        self._waiting[waiting.id] = waiting
        if waiting.blocked is not None:
            self.blocked[waiting.id] = waiting
            return
        if waiting.request.not_before is not None:
            self.starts.add((waiting.request.not_before, 0.0, waiting.id), entry_of(waiting))
        if waiting.forced:
            self.forced[waiting.id] = waiting
        else:
            self._index(waiting)

    def fill(self, many: Sequence[Waiting]) -> None:
        """Add many at once, as when a broker starts: the same as one by one, and quicker where there are many alike."""
        groups: dict[tuple[object, ...], list[Waiting]] = {}
        for waiting in many:
            request = waiting.request
            if waiting.blocked is not None or waiting.forced or request.not_before is not None:
                self.add(waiting)
            else:
                key = (id(request), party_of(waiting), waiting.shape, waiting.packed, waiting.cap)
                groups.setdefault(key, []).append(waiting)
        queues: dict[int, tuple[Queue, list[tuple[Key, Entry]]]] = {}
        for group in groups.values():
            self._index_group(group, queues)
        for queue, entries in queues.values():
            queue.extend(sorted(entries))

    def _index_group(self, group: list[Waiting], queues: dict[int, tuple[Queue, list[tuple[Key, Entry]]]]) -> None:
        """Those of one party with one and the same request: what they get in each queue, to be put there in order."""
        request = group[0].request
        check(request)
        tier, family, both = self._queues(group[0])
        _, size, ready, duration = entry_of(group[0])
        for waiting in group:
            if waiting.id in self._waiting:
                raise ValueError(f"request {waiting.id} is already in the line")
            self._waiting[waiting.id] = waiting
            entry = Entry(waiting.id, size, ready, duration)
            for queue, key in self._places(waiting, tier, family, both):
                queues.setdefault(id(queue), (queue, []))[1].append((key, entry))
        self._count(group[0], len(group))
        tier.count(family, size, len(group))

    def remove(self, id: str) -> Waiting:
        waiting = self._waiting.pop(id)
        if waiting.blocked is not None:
            del self.blocked[id]
            return waiting
        if waiting.request.not_before is not None:
            self.starts.remove((waiting.request.not_before, 0.0, id))
        if waiting.forced:
            del self.forced[id]
        else:
            self._unindex(waiting)
        return waiting

    def replace(self, waiting: Waiting) -> None:
        """Put a changed entry (edited, moved, blocked, forced) in the place of the one with its id."""
        self.remove(waiting.id)
        self.add(waiting)

    def ahead(self, id: str) -> int:
        """How many stand before it: forced ones first, then by priority and arrival, and behind all the blocked."""
        mine = self._waiting[id]
        if mine.forced and mine.blocked is None:
            return sum((other.since, other.id) < (mine.since, id) for other in self.forced.values())
        priority = inf if mine.blocked is not None else mine.request.priority
        sooner = sum(tier.counts.total() for at, tier in (*self.tiers.items(), *self.light.items()) if at < priority)
        return len(self.forced) + sooner + (0 if mine.blocked is not None else self._before(mine))

    def _before(self, mine: Waiting) -> int:
        place, at = place_of(mine), self._at(mine.request.priority)
        return sum(queues.arrival.before(place) for _, families in at for queues in families.values())

    def _at(self, priority: int) -> list[tuple[Party, dict[Family, Queues]]]:
        """Everything that is indexed at one priority."""
        tiers = [one[priority] for one in (self.tiers, self.light) if priority in one]
        return [found for tier in tiers for found in tier.parties.items()]

    def _priorities(self) -> list[int]:
        return sorted(self.tiers.keys() | self.light.keys())

    def front(self, most: int) -> list[Waiting]:
        """The first `most` as people see them: forced ones, then by priority and arrival, then the blocked."""
        found = sorted(self.forced.values(), key=lambda entry: (entry.since, entry.id))[:most]
        for priority in self._priorities():
            ordered = merge(*(queues.arrival for _, families in self._at(priority) for queues in families.values()))
            found += [self._waiting[entry.id] for _, entry in islice(ordered, max(0, most - len(found)))]
        return found + list(islice(self.blocked.values(), max(0, most - len(found))))

    def place_at(self, index: int, id: str) -> tuple[float, int] | None:
        """A place and a priority with which `id` stands at `index`, 0 being the first behind the forced ones.

        None when nobody else stands there: any place will do.
        """
        ahead = len(self.forced)
        others = [entry for entry in self.front(ahead + index + 2)[ahead:] if entry.id != id and entry.blocked is None]
        before, behind = others[max(0, index - 1) : index][-1:], others[index : index + 1]
        before = before or ([] if behind else others[-1:])
        if not before and not behind:
            return None
        priority = (behind or before)[0].request.priority
        places = [place_of(entry)[0] for entry in (*before, *behind) if entry.request.priority == priority]
        if len(places) == 2:
            return sum(places) / 2, priority
        return places[0] + (-STEP if behind else STEP), priority

    def first_of(self, user: str, but: Container[str]) -> Waiting | None:
        """The first of a user's requests that has a place and is not in `but`."""
        for priority in self._priorities():
            mine = [families for party, families in self._at(priority) if party.user == user]
            for _, entry in merge(*(queues.arrival for families in mine for queues in families.values())):
                if entry.id not in but:
                    return self._waiting[entry.id]
        return None

    def places_before(self, waiting: Waiting, count: int) -> list[float]:
        """This many places, in order, with nothing between them and `waiting`; its priority belongs to them."""
        found = self.place_at(self.ahead(waiting.id) - len(self.forced), "")
        assert found is not None
        return [found[0] + (place_of(waiting)[0] - found[0]) * number / (count + 1) for number in range(count)]

    def under(self, policy: Policy) -> Line:
        """This line as `policy` sees it: itself, or a copy with another index when the patience differs."""
        if Patience.of(policy) == self.patience:
            return self
        line = Line(policy)
        for waiting in self:
            line.add(waiting)
        return line

    def family(self, waiting: Waiting) -> Family:
        """The one object that stands for the family of an entry of this line."""
        return self._families[family_for(waiting)]

    def _index(self, waiting: Waiting) -> None:
        tier, family, both = self._queues(waiting)
        entry = entry_of(waiting)
        for queue, key in self._places(waiting, tier, family, both):
            queue.add(key, entry)
        self._count(waiting, 1)
        tier.count(family, entry.size)

    def _places(self, waiting: Waiting, tier: Tier, family: Family, both: Queues) -> list[tuple[Queue, Key]]:
        """Each queue that it stands in, with its key there: mostly one and the same, of which there may be many."""
        place, expected = place_of(waiting), expected_of(waiting)
        found = [(both.arrival, place)]
        if expected is None:
            like, ready = alike(waiting), ready_of(waiting) if waiting.place is None else place[0]
            queue = both.undeclared.get(like)
            if queue is None:
                queue = both.undeclared[like] = Queue()
            found.append((queue, place if ready == place[0] else (ready, 0.0, waiting.id)))
        else:
            found.append((both.short, (expected, place[0], waiting.id)))
            found.append((both.deadline, (ready_of(waiting) + self.patience.span(expected), 0.0, waiting.id)))
        if family.cap is None:
            found.append((tier.oldest, place if waiting.place is None else (waiting.since, 0.0, waiting.id)))
        return found

    def _count(self, waiting: Waiting, number: int) -> None:
        self.wide += number * (waiting.request.gpus > 1)
        for counter, shape in ((self.shapes, waiting.shape), (self.packed_shapes, packed_shape(waiting))):
            if shape is not None:
                counter[shape] += number
                if not counter[shape]:
                    del counter[shape]

    def _queues(self, waiting: Waiting) -> tuple[Tier, Family, Queues]:
        """Where a request is indexed, made if need be."""
        family = family_for(waiting)
        family = self._families.setdefault(family, family)
        tiers = self._tiers(waiting.request)
        tier = tiers.get(waiting.request.priority)
        if tier is None:
            tier = tiers[waiting.request.priority] = Tier()
        families = tier.parties.setdefault(party_of(waiting), {})
        if family not in families:
            families[family] = Queues.empty()
        return tier, family, families[family]

    def _tiers(self, request: Request) -> dict[int, Tier]:
        return self.tiers if request.gpus else self.light

    def _unindex(self, waiting: Waiting) -> None:
        tiers = self._tiers(waiting.request)
        tier, party = tiers[waiting.request.priority], party_of(waiting)
        family = self.family(waiting)
        queues = tier.parties[party][family]
        for queue, key in self._places(waiting, tier, family, queues):
            queue.remove(key)
        self._count(waiting, -1)
        tier.uncount(family)
        if not queues.undeclared.get(alike(waiting), True):
            del queues.undeclared[alike(waiting)]
        if not queues.arrival:
            del tier.parties[party][family]
        if not tier.parties[party]:
            del tier.parties[party]
        if not tier.parties:
            del tiers[waiting.request.priority]


def entry_of(waiting: Waiting) -> Entry:
    request = waiting.request
    return Entry(
        waiting.id,
        size_of(request),
        AT_ONCE if request.not_before is None else request.not_before,
        inf if request.duration is None else request.duration,
    )
