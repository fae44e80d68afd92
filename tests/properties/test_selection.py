"""What is selected is idle by the rules, and what is not has a reason."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import GIB, machines, maybe

from gpulease.errors import NotEnoughDevices, UnknownDevice, UsageError
from gpulease.model.device_selection import Candidate, Rules, candidate, check, choose
from gpulease.model.devices import computing, state_of, unexplained_memory
from gpulease.model.values import Device, Process

Machine = tuple[Device, ...]
thresholds = maybe(st.sampled_from([0, 5, 7.5, 60, 100]))
rules_of = st.builds(
    Rules,
    gpus=st.integers(1, 4),
    models=st.sampled_from([(), ("a100",), ("RTX",), ("nothing", "A100")]),
    util=thresholds,
    mem_util=thresholds,
    processes=maybe(st.integers(0, 3)),
    min_memory=maybe(st.sampled_from([20 * GIB])),
    order=st.sampled_from(["random", "free-memory", "index"]),
    devices=st.none(),
    selector=st.none(),
)


def below(value: int | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value <= limit)


@given(machines(), rules_of, st.integers())
def test_every_selected_device_passes_every_rule(machine: Machine, rules: Rules, seed: int) -> None:
    try:
        chosen = choose(machine, rules, Random(seed))
    except NotEnoughDevices:
        return
    assert len(chosen) == len(set(chosen)) == rules.gpus
    for device in chosen:
        assert device.lost is None
        assert not rules.models or any(model.lower() in device.name.lower() for model in rules.models)
        assert below(device.utilization, rules.util)
        assert below(device.memory_utilization, rules.mem_util)
        if rules.processes is not None:
            assert device.processes is not None
            assert len(computing(device)) + bool(unexplained_memory(device)) <= rules.processes
        assert rules.min_memory is None or (device.memory_total or 0) >= rules.min_memory


@given(machines(), rules_of, st.integers())
def test_too_few_is_said_with_the_true_counts(machine: Machine, rules: Rules, seed: int) -> None:
    alone = [device for device in machine if _passes(device, rules)]
    if len(alone) >= rules.gpus:
        assert set(choose(machine, rules, Random(seed))) <= set(alone)
        return
    with pytest.raises(NotEnoughDevices) as caught:
        choose(machine, rules, Random(seed))
    assert caught.value.fields == {"asked": rules.gpus, "exist": len(machine), "matched": len(alone)}


def _passes(device: Device, rules: Rules) -> bool:
    try:
        return bool(choose((device,), rules._replace(gpus=1), Random(0)))
    except NotEnoughDevices:
        return False


@given(machines(), st.integers())
def test_free_memory_order_takes_the_emptiest(machine: Machine, seed: int) -> None:
    known = tuple(d for d in machine if d.memory_total is not None and d.memory_used is not None and d.lost is None)
    if not known:
        return
    rules = Rules(util=None, mem_util=None, processes=None, order="free-memory")
    chosen = choose(known, rules, Random(seed))[0]
    free = [(d.memory_total or 0) - (d.memory_used or 0) for d in known]
    assert (chosen.memory_total or 0) - (chosen.memory_used or 0) == max(free)


def test_the_choice_among_equals_is_random() -> None:
    machine = tuple(_idle(index) for index in range(4))
    seen = {choose(machine, Rules(), Random(seed))[0].index for seed in range(60)}
    assert seen == {0, 1, 2, 3}


@given(machines(), st.integers())
def test_a_lost_device_never_reaches_a_selector_nor_the_selection(machine: Machine, seed: int) -> None:
    offered: list[str] = []

    def accept(gpu: Candidate) -> bool:
        offered.append(gpu.uuid)
        return True

    healthy = [device for device in machine if device.lost is None]
    if healthy:
        rules = Rules(gpus=len(healthy), selector=accept, models=("nothing",))  # a selector overrides the other rules
        assert list(choose(machine, rules, Random(seed))) == healthy
    assert set(offered) <= {device.uuid for device in healthy}


def test_a_selector_that_compares_an_unknown_value_does_not_select_it() -> None:
    machine = (_idle(0)._replace(utilization=None), _idle(1))
    rules = Rules(selector=lambda gpu: gpu.util <= 5)  # type: ignore[operator]  # as users write it
    assert choose(machine, rules, Random(0)) == machine[1:]


def test_a_selector_with_a_mistake_is_not_silenced() -> None:
    with pytest.raises(TypeError):
        choose((_idle(0),), Rules(selector=lambda gpu: gpu.name + 1), Random(0))  # type: ignore[operator]


def test_devices_are_named_by_index_uuid_or_the_beginning_of_one() -> None:
    machine = tuple(_idle(index) for index in range(3))
    for name in ("1", machine[1].uuid, machine[1].uuid[:8]):
        assert choose(machine, Rules(devices=(name,)), Random(0)) == machine[1:2]
    for name in ("7", "-1", "GPU-nowhere", "x", "1.0"):
        with pytest.raises(UnknownDevice, match="there are 0, 1, 2"):
            choose(machine, Rules(devices=(name,)), Random(0))


def test_memory_that_nobody_explains_is_not_idle() -> None:
    hidden = _idle(0)._replace(memory_used=30 * GIB)
    with pytest.raises(NotEnoughDevices, match="processes=0 excluded 0"):
        choose((hidden,), Rules(), Random(0))
    assert choose((hidden,), Rules(processes=1), Random(0)) == (hidden,)


@pytest.mark.parametrize(
    "rules", [Rules(gpus=0), Rules(gpus=-2), Rules(util=-1), Rules(processes=-1), Rules(order="taste")]
)
def test_rules_that_make_no_sense_are_usage_errors(rules: Rules) -> None:
    with pytest.raises(UsageError):
        check(rules)


@given(machines())
def test_states_follow_from_what_is_known(machine: Machine) -> None:
    for device in machine:
        state = state_of(device)
        assert (state == "lost") == (device.lost is not None)
        if state == "free":
            assert device.processes is not None
            assert not computing(device)
            assert device.memory_used is not None


def test_a_process_that_only_draws_is_no_outside_use() -> None:
    desktop = _idle(0)._replace(processes=(Process(900, 1, "root", "Xorg", 200 << 20, graphics=True),))
    assert state_of(desktop) == "free"
    assert candidate(desktop).processes == 0


def _idle(index: int) -> Device:
    return Device(
        index,
        f"GPU-{index}{index}{index}{index}-0000",
        "NVIDIA A100",
        memory_total=80 * GIB,
        memory_used=0,
        utilization=0,
        memory_utilization=0,
        processes=(),
    )
