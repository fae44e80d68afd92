"""CUDA_VISIBLE_DEVICES is read as CUDA reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import machines

from gpulease.errors import BadVisibleDevices
from gpulease.model.values import Device
from gpulease.model.visible import check, visible_devices

Machine = tuple[Device, ...]
FOUR = tuple(Device(index, f"GPU-{index}aaa-bbbb", "A100") for index in range(4))
MIG = (
    Device(0, "MIG-11aa", "A100 MIG 1g.10gb", instance=0),
    Device(0, "MIG-22bb", "A100 MIG 1g.10gb", instance=1),
    Device(1, "GPU-1aaa", "A100"),
)


@given(machines())
def test_unset_shows_all_and_empty_shows_none(machine: Machine) -> None:
    assert visible_devices(None, machine) == machine
    assert visible_devices("", machine) == ()


@given(machines(), st.text(max_size=40))
def test_any_text_gives_distinct_devices_of_the_machine(machine: Machine, value: str) -> None:
    shown = visible_devices(value, machine)
    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(machine)


@given(machines(), st.data())
def test_indices_and_uuids_name_the_same_devices_in_the_order_given(machine: Machine, data: st.DataObject) -> None:
    wanted = tuple(data.draw(st.permutations(machine)))[: data.draw(st.integers(0, len(machine)))]
    by_index = ",".join(str(device.index) for device in wanted)
    by_uuid = ",".join(device.uuid for device in wanted)
    assert visible_devices(by_index, machine) == wanted
    assert visible_devices(by_uuid, machine) == wanted


@given(machines(), st.data())
def test_the_first_invalid_entry_cuts_the_list(machine: Machine, data: st.DataObject) -> None:
    wanted = tuple(data.draw(st.permutations(machine)))
    place = data.draw(st.integers(0, len(wanted)))
    entries = [str(device.index) for device in wanted]
    entries.insert(place, data.draw(st.sampled_from(["-1", "99", "x", "", "GPU-none"])))
    assert visible_devices(",".join(entries), machine) == wanted[:place]


@given(machines(), st.data())
def test_a_prefix_counts_only_if_it_names_one_device(machine: Machine, data: st.DataObject) -> None:
    if not machine:
        return
    device = data.draw(st.sampled_from(machine))
    prefix = device.uuid[: data.draw(st.integers(4, len(device.uuid)))]
    owners = [other for other in machine if other.uuid.startswith(prefix)]
    expected = (device,) if owners == [device] or prefix == device.uuid else ()
    assert visible_devices(prefix, machine) == expected


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        ("2,0", "2 0"),
        ("0,1,0", ""),  # a repeated entry leaves nothing
        ("GPU-1,GPU-1aaa", ""),  # repeated under two spellings
        ("0,GPU-1aaa", "0"),  # another kind of entry cuts
        ("GPU-1aaa,2", "1"),
        ("1gpu,2x", "1 2"),  # as strtoul reads
        (" 3 , 1", "3 1"),
        ("+1", "1"),
        ("99999999999999999999", ""),
        ("GPU-", ""),  # fits several
        ("NoDevFiles", ""),
    ],
)
def test_examples_of_cuda_itself(value: str, labels: str) -> None:
    assert " ".join(device.label for device in visible_devices(value, FOUR)) == labels


@pytest.mark.parametrize(("value", "labels"), [("0", "0:0"), ("MIG-22bb", "0:1"), ("MIG-2", "0:1"), ("1", "1")])
def test_mig_instances_are_named_by_mig_names_and_a_mig_gpu_shows_its_first(value: str, labels: str) -> None:
    assert " ".join(device.label for device in visible_devices(value, MIG)) == labels


def test_garbage_is_an_error_and_an_empty_value_is_not() -> None:
    with pytest.raises(BadVisibleDevices, match="shows no device"):
        check("garbage", FOUR)
    check("", FOUR)
    check(None, FOUR)
    check("0,garbage", FOUR)
