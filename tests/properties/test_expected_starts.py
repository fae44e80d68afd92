"""A course of events has the starts that the planner itself comes to; what is told of them is a range, and true."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gpulease.model.values import Cause, Device, Lease, Owner, Request, Waiting
from gpulease.planner import Limit, Line, Plan, Policy, Spent, lease_of, plan
from gpulease.planner.forecast import Course
from gpulease.planner.lengths import Lengths

NOW = 1e6
G = 1 << 30
PATIENT = Policy(patience_floor=1e9, patience_undeclared=1e9, order="arrival")  # nothing is held for anybody
SPANS = st.sampled_from((None, 60.0, 100.0, 600.0, 660.0, 3600.0))
ASKED = st.tuples(st.integers(1, 4), SPANS, st.sampled_from((4, 5, 5)))
RUNS = st.tuples(st.integers(0, 500), SPANS)


def owner(user: str = "ada") -> Owner:
    return Owner(1, user, "h", "b")


def machine(count: int) -> list[Device]:
    return [Device(at, str(at), "A100", memory_total=40 * G, memory_used=0) for at in range(count)]


def runs(at: int, age: float, span: float | None) -> Lease:
    return Lease(f"l{at}", "run", (str(at),), owner(f"user{at}"), NOW - age, duration=span)


def asks(id: str, gpus: int = 1, span: float | None = None, user: str = "ada", **more: object) -> Waiting:
    request = Request(gpus, duration=span, **more)  # type: ignore[arg-type]
    return Waiting(id, request, user, 1, NOW - 100 + int(id[1:]))


class AsDeclared(Course):
    """Everybody keeps to what they declared, and what declared nothing, or has outlasted it, goes on for ever."""

    def __init__(self) -> None:
        super().__init__(Lengths({}, (), NOW), 0)

    def end_of(self, lease: Lease, limit: float | None = None) -> float | None:
        end = None if lease.duration is None else lease.since + lease.duration
        return None if end is None or end <= NOW else end

    def length_of(self, waiting: Waiting) -> float | None:
        return waiting.request.duration


def line_of(*many: Waiting) -> Line:
    line = Line(PATIENT)
    for one in many:
        line.add(one)
    return line


def replayed(devices: list[Device], leases: list[Lease], line: Line) -> dict[str, float]:
    """Plan after plan, each lease ending when it declared to and what declared nothing going on."""
    started: dict[str, float] = {}
    ends = {one.id: one.since + one.duration for one in leases if one.duration and one.since + one.duration > NOW}
    now = NOW
    while now < inf:
        for grant in plan(devices, leases, line, PATIENT, now).grants:
            waiting = line.remove(grant.id)
            started[grant.id] = now
            leases.append(lease_of(grant, waiting, owner(), now))
            ends[grant.id] = inf if waiting.request.duration is None else now + waiting.request.duration
        now = min(ends.values(), default=inf)
        leases = [lease for lease in leases if ends.get(lease.id, inf) > now]
        ends = {id: end for id, end in ends.items() if end > now}
    return started


@given(st.integers(1, 4), st.lists(RUNS, max_size=4), st.lists(ASKED, min_size=1, max_size=9))
def test_they_are_those_of_a_replay(
    count: int, running: list[tuple[int, float | None]], asked: list[tuple[int, float | None, int]]
) -> None:
    leases = [runs(at, age, span) for at, (age, span) in enumerate(running[:count])]
    many = [asks(f"w{at}", gpus, span, priority=rank) for at, (gpus, span, rank) in enumerate(asked)]
    decided = plan(machine(count), leases, line_of(*many), PATIENT, NOW)
    truth = replayed(machine(count), leases, line_of(*many))
    granted = {grant.id for grant in decided.grants}
    reply = decided.ahead.play(AsDeclared())
    assert reply == {id: start for id, start in truth.items() if id not in granted}


def starts(decided: Plan, *ids: str) -> list[float | None]:
    played = decided.ahead.play(AsDeclared())
    return [played[id] - NOW if id in played else None for id in ids]


def test_each_place_in_the_line_has_its_own_start() -> None:
    line = line_of(*(asks(f"w{at}", 1, 600.0) for at in range(5)))
    decided = plan(machine(2), [runs(0, 0, 300.0), runs(1, 0, 420.0)], line, PATIENT, NOW)
    assert starts(decided, "w0", "w1", "w2", "w3", "w4") == [300, 420, 900, 1020, 1500]


def test_nothing_is_said_where_somebody_declared_nothing() -> None:
    line = line_of(asks("w0"), asks("w1", 1, 60.0), asks("w2"))
    decided = plan(machine(2), [runs(0, 50, None), runs(1, 0, 300.0)], line, PATIENT, NOW)
    assert starts(decided, "w0", "w1", "w2") == [300, None, None]
    overrun = plan(machine(1), [runs(0, 500, 300.0)], line_of(asks("w0")), PATIENT, NOW)
    assert starts(overrun, "w0") == [None]


def test_limits_users_and_shares_count() -> None:
    limited = PATIENT._replace(limits=(Limit("user", "ada", gpus=1),))
    line = line_of(asks("w0", 1, 60.0), asks("w1", 1, 60.0), asks("w2", 1, 60.0, user="bob"))
    mine = runs(1, 0, 420.0)._replace(owner=owner())
    decided = plan(machine(2), [runs(0, 0, 300.0), mine], line, limited, NOW)
    assert starts(decided, "w0", "w1", "w2") == [420, 480, 300]
    used = {"ada": Spent(1e6, NOW)}
    fair = plan(machine(1), [runs(0, 0, 300.0)], line, PATIENT, NOW, usage=used)
    assert starts(fair, "w2", "w0", "w1") == [300, 360, 420]
    share = [one._replace(memory=20 * G) for one in (runs(0, 0, 300.0), runs(0, 0, 500.0)._replace(id="m"))]
    shares = line_of(*(asks(f"w{at}", 1, 60.0, memory=size * G) for at, size in enumerate((30, 15))))
    device = [machine(1)[0]._replace(memory_used=40 * G)]
    assert starts(plan(device, share, shares, PATIENT, NOW), "w0", "w1") == [500, 300]


def test_who_may_not_start_has_none_and_is_in_nobodys_way() -> None:
    line = line_of(
        asks("w0")._replace(blocked=Cause("It waits.", "after 1")),
        asks("w1", not_before=NOW + 9),
        asks("w2"),
        asks("w3", 9),
    )
    decided = plan(machine(1), [runs(0, 0, 300.0)], line, PATIENT, NOW)
    assert starts(decided, "w0", "w1", "w2", "w3") == [None, None, 300, None]


def test_only_the_first_are_looked_at() -> None:
    line = line_of(*(asks(f"w{at}", 1, 60.0) for at in range(1000)))
    decided = plan(machine(1), [runs(0, 0, 300.0)], line, PATIENT, NOW)
    assert starts(decided, "w31", "w32") == [300 + 31 * 60, None]
