"""Several devices are never MIG instances unless somebody asked for these; one may be, where no whole GPU serves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.errors import GpuleaseError
from gpulease.model.device_selection import Rules, choose
from gpulease.model.values import Device, Request, Waiting
from gpulease.planner import Line, Policy, plan

G = 1 << 30
MACHINES = st.lists(st.sampled_from((0, 0, 1, 2, 3)), min_size=1, max_size=4)  # instances of each GPU; 0: it is whole


def machine(parts: list[int]) -> list[Device]:
    found: list[Device] = []
    for index, count in enumerate(parts):
        if not count:
            found.append(
                Device(
                    index, f"G{index}", "A100", memory_total=80 * G, memory_used=0, utilization=0, memory_utilization=0
                )
            )
        for one in range(count):
            name = f"A100 MIG {one % 2 + 1}g.10gb"
            found.append(Device(index, f"M{index}-{one}", name, instance=one, memory_total=10 * G, memory_used=0))
    return found


def granted(devices: list[Device], request: Request) -> list[Device] | None:
    line = Line(Policy())
    line.add(Waiting("w", request, "ada", 1, 0.0))
    grants = plan(devices, [], line, Policy(), 1.0).grants
    by_uuid = {device.uuid: device for device in devices}
    return [by_uuid[uuid] for uuid in grants[0].devices] if grants else None


@given(MACHINES, st.integers(1, 4), st.booleans(), st.sampled_from(((), ("a100",), ("1g.10gb",), ("MIG",))))
def test_a_request_gets_the_kind_that_it_asks_for(
    parts: list[int], gpus: int, mig: bool, models: tuple[str, ...]
) -> None:
    devices = machine(parts)
    found = granted(devices, Request(gpus, mig=mig, models=models))
    asked = mig or models in (("1g.10gb",), ("MIG",))
    kinds = {device.instance is not None for device in found or ()}
    if asked:
        assert found is None or kinds == {True}
    elif gpus > 1:
        assert found is None or kinds == {False}
        assert (found is None) == (parts.count(0) < gpus)
    else:
        assert found is not None, "one instance serves where there is no whole GPU"
        assert kinds == {not parts.count(0)}


@given(MACHINES, st.integers(1, 4), st.booleans())
def test_select_picks_by_the_same_rule(parts: list[int], gpus: int, mig: bool) -> None:
    devices = machine(parts)
    rules = Rules(gpus, mig=mig, util=None, mem_util=None)
    wanted = granted(devices, Request(gpus, mig=mig))
    if wanted is None:
        with pytest.raises(GpuleaseError):
            choose(devices, rules, Random(1))
    else:
        found = choose(devices, rules, Random(1))
        assert {device.instance is None for device in found} == {device.instance is None for device in wanted}


def test_named_instances_are_meant() -> None:
    devices = machine([0, 3])
    assert granted(devices, Request(2, devices=("M1-0", "M1-2"))) == [devices[1], devices[3]]


@pytest.mark.parametrize(("parts", "instance"), [([3, 0], False), ([3], True)])
def test_a_share_is_of_a_whole_gpu_where_there_is_one(parts: list[int], instance: bool) -> None:
    found = granted(machine(parts), Request(1, memory=4 * G))
    assert found is not None
    assert [device.instance is not None for device in found] == [instance]


def test_who_cannot_be_served_is_told_of_the_instances() -> None:
    line = Line(Policy())
    line.add(Waiting("w", Request(2), "ada", 1, 0.0))
    decided = plan(machine([3, 0]), [], line, Policy(), 1.0)
    assert decided.reason("w").sentence == (
        "It wants 2 devices, and this machine has 1 that match. Its 3 MIG instances are not GPUs; --mig asks for them."
    )
    assert [verdict.code for verdict in decided.explain("w")] == ["mig-instance"] * 3 + ["fits"]
