"""Of devices that serve equally well, a grant goes to one that no other is idler than; what was named rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpulease.model.values import Device, Request, Waiting
from gpulease.planner import Line, Policy, plan

G = 1 << 30
Reading = tuple[int | None, int, int | None]  # utilization, memory in use, temperature
readings = st.lists(
    st.tuples(st.none() | st.integers(0, 100), st.integers(0, G), st.none() | st.integers(20, 90)), min_size=1
)
requests = st.sampled_from((Request(), Request(memory=2 * G)))


def _granted(read: list[Reading], request: Request) -> int:
    machine = [
        Device(at, str(at), "A100", memory_total=40 * G, memory_used=used, utilization=busy, temperature=warm)
        for at, (busy, used, warm) in enumerate(read)
    ]
    line = Line()
    line.add(Waiting("r", request, "ada", 1, 0.0))
    return int(plan(machine, (), line, Policy(), 1.0).grants[0].devices[0])


def _far_idler(one: Reading, other: Reading) -> bool:
    """By more than the steps that are noise, in the first that differs at all."""
    if one[0] != other[0]:
        return one[0] is not None and (other[0] is None or one[0] + 20 <= other[0])
    if one[1] != other[1]:
        return one[1] + (256 << 20) <= other[1]
    return one[2] is not None and (other[2] is None or one[2] < other[2])


@given(readings, requests)
def test_no_device_is_far_idler_than_the_one_that_is_granted(read: list[Reading], request: Request) -> None:
    chosen = _granted(read, request)
    assert not any(_far_idler(one, read[chosen]) for one in read)


@given(readings, requests, st.data())
def test_what_was_named_rules(read: list[Reading], request: Request, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(read))))
    assert _granted(read, request._replace(devices=tuple(map(str, order)))) == order[0]
