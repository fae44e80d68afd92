"""A cap of a sweep: no more of it run, nobody starves, nobody else is served otherwise. Jobs without a device."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpulease.model.values import Device, Lease, Owner, Request, Waiting
from gpulease.planner import Limit, Line, Plan, Policy, lease_of, plan
from gpulease.planner.order import entries, ranked

G = 1 << 30
CAPS = {1: 1, 2: 2, 3: 3}
SLOTS = 2
DEVICES = [Device(at, f"GPU-{at}", "A100", memory_total=16 * G, memory_used=0) for at in range(3)]
POLICIES = (
    Policy(),
    Policy(patience_undeclared=10.0, patience_floor=5.0, patience=1.0, hold_ratio=5.0, hold_ratio_guessed=5.0),
    Policy(longest_wait=20.0, max_holds=1),
    Policy(limits=(Limit("user", "*", gpus=2),)),
)

requests = st.sampled_from(
    [
        Request(gpus, priority=priority, duration=span)
        for gpus in (0, 1, 2)
        for priority in (4, 5)
        for span in (None, 30.0)
    ]
    + [Request(memory=size) for size in (4 * G, 9 * G)]
)
lines = st.lists(
    st.tuples(requests, st.sampled_from(("ada", "ben")), st.sampled_from((None, 1, 2, 3)), st.integers(0, 60)),
    min_size=1,
    max_size=14,
)


def line_of(rows: list[Any], policy: Policy, but: frozenset[str] = frozenset()) -> Line:
    line = Line(policy)
    for at, (request, user, cap, age) in enumerate(rows):
        if f"r{at:02}" not in but:
            line.add(Waiting(f"r{at:02}", request, user, 1, 1000.0 - age, kind="job", cap=cap))
    return line


def leases_of(done: Plan, line: Line, now: float) -> list[Lease]:
    made = []
    for grant in done.grants:
        waiting = line.remove(grant.id)
        made.append(lease_of(grant, waiting, Owner(1, waiting.user, "h", "b"), now))
    return made


@settings(max_examples=150, deadline=None)
@given(rows=lines, policy=st.sampled_from(POLICIES), order=st.booleans(), ends=st.lists(st.integers(0, 9), max_size=40))
def test_no_more_than_the_cap_run_and_nobody_starves(
    rows: list[Any], policy: Policy, order: bool, ends: list[int]
) -> None:
    line, now, steps = line_of(rows, policy), 1000.0, 0
    leases: list[Lease] = []
    while len(line):
        given_order = ranked(line, [row.id for row in reversed(entries(line, {}, now))]) if order else ()
        done = plan(DEVICES, leases, line, policy, now, caps=CAPS, slots=SLOTS, order=given_order)
        leases += leases_of(done, line, now)
        for cap, most in CAPS.items():
            assert sum(lease.cap == cap for lease in leases) <= most
        assert sum(not lease.devices for lease in leases) <= SLOTS
        assert leases, "something runs as long as something waits"
        leases.pop(ends[steps % len(ends)] % len(leases) if ends else 0)
        now, steps = now + 7.0, steps + 1
        assert steps <= len(rows), "each that ends makes room for another"


@settings(max_examples=150, deadline=None)
@given(rows=lines, policy=st.sampled_from(POLICIES), full=st.sets(st.sampled_from((1, 2, 3)), min_size=1))
def test_a_sweep_that_may_not_start_is_in_nobodys_way(rows: list[Any], policy: Policy, full: set[int]) -> None:
    """Whether it waits there or not: the others get the same devices, and the same are held for them."""
    caps = {**CAPS, **dict.fromkeys(full, 1)}
    owner = Owner(1, "cyd", "h", "b")
    leases = [Lease(f"l{cap}", "job", (), owner, 990.0, cap=cap) for cap in full]
    leases.append(Lease("big", "run", (DEVICES[0].uuid,), owner, 900.0, duration=150.0))
    away = frozenset(f"r{at:02}" for at, row in enumerate(rows) if row[2] in full)
    both = [
        plan(DEVICES, leases, line_of(rows, policy, but), policy, 1000.0, caps=caps, slots=9)
        for but in (frozenset[str](), away)
    ]
    assert both[0] == both[1]
    for id in away:
        assert both[0].reason(id).code in ("capped", "over-limit", "quota", "impossible")


@settings(max_examples=60, deadline=None)
@given(users=st.lists(st.sampled_from(("ada", "ben")), min_size=1, max_size=12))
def test_slots_go_first_to_the_user_who_has_fewest(users: list[str]) -> None:
    line = line_of([(Request(gpus=0), user, None, 0) for user in users], Policy())
    granted = [line[grant.id].user for grant in plan(DEVICES, (), line, Policy(), 1000.0, slots=4).grants]
    assert len(granted) == min(4, len(users))
    fewest = min(users.count("ada"), users.count("ben"))
    assert min(granted.count("ada"), granted.count("ben")) == min(2, fewest)


def test_a_request_for_no_device_is_told_what_it_waits_for() -> None:
    line = line_of([(Request(gpus=0), "ada", None, 0)] * 2, Policy(limits=(Limit("user", "*", gpus=0),)))
    done = plan(DEVICES, (), line, Policy(limits=(Limit("user", "*", gpus=0),)), 1000.0, slots=1)
    assert [grant.devices for grant in done.grants] == [()]
    reason = done.reason("r01")
    assert (reason.code, reason.short) == ("no-slot", "cpu-jobs=1")
    assert reason.sentence == "At most 1 jobs without a GPU run at once (cpu-jobs)."
    assert done.explain("r01") == ()
