"""Shortest expected first: nobody is forgotten, equal ones go by arrival, and who lies gains nothing for long."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulease.model.values import Device, Lease, Owner, Request, Waiting
from gpulease.planner import Line, Policy, Spent, charged, lease_of, plan, recorded, weight_of
from gpulease.planner.lengths import Lengths, Sketch, learned

G = 1 << 30
START = 1e9


class Machine:
    """A planner in simulated time: what is asked runs for as long as is said here, and the planner is not told."""

    def __init__(self, gpus: int, policy: Policy = Policy()) -> None:  # noqa: B008
        self.devices = [Device(at, str(at), "A100", memory_total=80 * G, memory_used=0) for at in range(gpus)]
        self.policy, self.line, self.now = policy, Line(policy), START
        self.leases: dict[str, Lease] = {}
        self.ends: list[tuple[float, str]] = []
        self.runs: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.asked_at: dict[str, float] = {}
        self.usage: dict[str, Spent] = {}
        self.records: dict[str, Spent] = {}
        self.sketches: dict[str, Sketch] = {}

    def ask(
        self, id: str, run: float, user: str = "ada", declared: float | None = None, gpus: int = 1, shape: str = ""
    ) -> None:
        expected = None if declared is None else Lengths(self.sketches, (), self.now).declared(user, declared)
        request = Request(gpus, duration=declared)
        self.runs[id], self.asked_at[id] = run, self.now
        self.line.add(Waiting(id, request, user, 1, self.now, shape=shape or None, expected=expected))

    def serve(self) -> None:
        decided = plan(
            self.devices, self.leases.values(), self.line, self.policy, self.now,
            usage=self.usage, records=self.records, sketches=self.sketches,
        )  # fmt: skip
        for grant in decided.grants:
            waiting = self.line.remove(grant.id)
            self.leases[grant.id] = lease_of(grant, waiting, Owner(1, waiting.user, "h", "b"), self.now)
            self.started[grant.id] = self.now
            heappush(self.ends, (self.now + self.runs[grant.id], grant.id))

    def go_to(self, moment: float) -> None:
        """Whatever ends by then, ends, and whoever fits starts."""
        while self.ends and self.ends[0][0] <= moment:
            self.now, id = heappop(self.ends)
            lease = self.leases.pop(id)
            by_uuid = {device.uuid: device for device in self.devices}
            self.usage = charged(self.usage, lease, weight_of(lease, by_uuid), self.now, self.policy)
            self.records = recorded(self.records, lease, self.now, self.policy)
            self.sketches |= learned(self.sketches, lease, self.now)
            self.serve()
        self.now = moment
        self.serve()


def test_the_shortest_goes_first_and_equal_ones_by_arrival() -> None:
    machine = Machine(1)
    machine.ask("now", 10.0, declared=10.0)
    machine.serve()
    for at, declared in enumerate((5000.0, 300.0, 300.0, 20.0)):
        machine.now += 1
        machine.ask(f"w{at}", declared, declared=declared)
    machine.go_to(START + 20_000)
    assert sorted(machine.started, key=lambda id: machine.started[id]) == ["now", "w3", "w1", "w2", "w0"]


def test_by_arrival_where_that_is_set() -> None:
    machine = Machine(1, Policy(order="arrival"))
    for at, declared in enumerate((500.0, 60.0, 20.0)):
        machine.now += 1
        machine.ask(f"w{at}", declared, declared=declared)
        machine.serve()
    machine.go_to(START + 20_000)
    assert sorted(machine.started, key=lambda id: machine.started[id]) == ["w0", "w1", "w2"]


def test_who_had_less_goes_first_however_long_it_is() -> None:
    machine = Machine(1)
    machine.usage = {"ada": Spent(1e6, START)}
    machine.ask("a", 10.0, "ada", declared=10.0)
    machine.ask("b", 9000.0, "ben", declared=9000.0)
    machine.serve()
    assert list(machine.started) == ["b"]


def test_without_declarations_what_ran_shorter_goes_first() -> None:
    machine = Machine(1)
    for at in range(10):
        machine.ask(f"l{at}", 900.0, shape="long")
        machine.ask(f"s{at}", 30.0, shape="short")
        machine.go_to(machine.now + 2000)
    machine.ask("busy", 50.0, shape="short")
    machine.serve()
    machine.ask("first", 900.0, shape="long")
    machine.now += 1
    machine.ask("second", 30.0, shape="short")
    machine.go_to(machine.now + 3000)
    assert machine.started["second"] < machine.started["first"]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from((100.0, 1000.0)), st.integers(1, 3), st.sampled_from((None, "ben")),
    st.sampled_from((20.0, 90.0)), st.booleans(), st.integers(1, 2),
)  # fmt: skip
def test_nobody_is_passed_for_ever_by_shorter_ones(
    length: float, gpus: int, other: str | None, short: float, declares: bool, width: int
) -> None:
    """However many short ones somebody keeps adding: a bound in proportion to one's own length, or the longest wait."""
    policy = Policy(patience=4.0, patience_floor=200.0, patience_undeclared=4000.0, longest_wait=8000.0)
    machine = Machine(gpus, policy)
    width = min(width, gpus)
    machine.ask("fill", 50.0, "ben", declared=50.0, gpus=gpus)
    machine.serve()
    machine.ask("victim", length, declared=length if declares else None, gpus=width)
    added = 0
    while "victim" not in machine.started and machine.now < START + 20_000:
        for _ in range(gpus + 1):  # there is always a short one more than there are devices
            added += 1
            machine.ask(f"x{added:05}", short, other or "ada", declared=short)
        machine.go_to(machine.now + short)
    waited = machine.started.get("victim", machine.now) - START
    assert waited <= policy.longest_wait + 3 * short
    if declares and width == 1:
        assert waited <= max(policy.patience_floor, policy.patience * length) + 3 * short


@pytest.mark.parametrize("seed", range(3))
def test_who_declares_a_tenth_gains_nothing_in_the_end(seed: int) -> None:
    """Two users, the same work, one of them tells a tenth of the truth: after fifty jobs their waits are alike."""
    chance = random.Random(seed)
    machine = Machine(2)
    works = [chance.uniform(200, 3000) for _ in range(150)]
    for at, run in enumerate(works):
        machine.go_to(machine.now + chance.expovariate(1 / 1500))
        for user, part in (("honest", 1.0), ("liar", 0.1)):
            machine.ask(f"{user}{at:03}", run, user, declared=run * part)
        machine.serve()
    machine.go_to(machine.now + 1e6)
    ids = {user: [f"{user}{at:03}" for at in range(50, 150)] for user in ("honest", "liar")}
    waits = {user: sum(machine.started[id] - machine.asked_at[id] for id in many) for user, many in ids.items()}
    assert abs(waits["liar"] / waits["honest"] - 1) < 0.1, waits


@given(st.lists(st.tuples(st.floats(1, 1e5), st.sampled_from((None, 60.0, 600.0)), st.sampled_from("ab")), max_size=12))
def test_equal_states_give_equal_plans(asked: list[tuple[float, float | None, str]]) -> None:
    plans = []
    for _ in range(2):
        machine = Machine(2)
        for at, (run, declared, shape) in enumerate(asked):
            machine.now += 1
            machine.ask(f"w{at:02}", run, declared=declared, shape=shape)
        machine.go_to(START + 1e6)
        plans.append(machine.started)
    assert plans[0] == plans[1]
