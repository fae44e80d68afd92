"""Whatever order is given, a plan grants nothing twice, nothing that does not fit, and as soon as it can."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpulease.model.values import Device, Request, Waiting
from gpulease.planner import Limit, Line, Policy, plan
from gpulease.planner.order import ranked, wrong_with

NOW = 1e6
G = 1 << 30
whole_gpus = st.tuples(
    st.integers(1, 3),
    st.sampled_from([(), ("A100",), ("H100",)]),
    st.integers(4, 6),
    st.sampled_from([None, 60.0, 7200.0]),
    st.sampled_from([None, NOW - 1, NOW + 60]),
).map(lambda f: Request(f[0], models=f[1], priority=f[2], duration=f[3], not_before=f[4]))
shares = st.tuples(st.sampled_from([5 * G, 30 * G]), st.integers(4, 6)).map(
    lambda fields: Request(memory=fields[0], priority=fields[1])
)
requests = whole_gpus | shares
line_entries = st.lists(st.tuples(requests, st.sampled_from("abc"), st.floats(0, 2e6)), max_size=12)


@given(line_entries, st.integers(0, 4), st.integers())
def test_an_order_changes_who_is_granted_and_nothing_else(found: list, count: int, seed: int) -> None:  # type: ignore[type-arg]
    policy = Policy(limits=(Limit("user", "a", gpus=2),))
    line = Line(policy)
    for at, (request, user, waited) in enumerate(found):
        line.add(Waiting(f"L{at}", request, user, 1, NOW - waited))
    devices = [
        Device(at, f"GPU-{at}", "A100" if at % 2 else "H100", memory_total=80 * G, memory_used=0) for at in range(count)
    ]
    ids = [waiting.id for waiting in line]
    Random(seed).shuffle(ids)
    done = plan(devices, (), line, policy, NOW, order=ranked(line, ids))
    whole = [uuid for grant in done.grants if grant.memory is None for uuid in grant.devices]
    shared = [grant for grant in done.grants if grant.memory is not None]
    assert len(whole) == len(set(whole))
    assert not {uuid for grant in shared for uuid in grant.devices} & set(whole)
    for device in devices:
        assert sum(grant.memory or 0 for grant in shared if device.uuid in grant.devices) <= 80 * G
    for grant in done.grants:
        request = line[grant.id].request
        assert (request.not_before or 0) <= NOW
        assert len(grant.devices) == request.gpus
    mine = [line[grant.id].request for grant in done.grants if line[grant.id].user == "a"]
    assert sum(request.gpus for request in mine if request.memory is None) <= 2
    assert bool(done.grants) == bool(plan(devices, (), line, policy, NOW).grants)


@given(st.lists(st.sampled_from("abcd"), max_size=6), st.lists(st.sampled_from("abcd"), unique=True))
def test_only_a_permutation_is_an_order(told: list[str], asked: list[str]) -> None:
    assert (wrong_with(asked, told) is None) == (sorted(told) == sorted(asked))
