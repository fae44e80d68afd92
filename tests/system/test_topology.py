"""Devices below one bridge are one group; what nobody tells is no group."""

from __future__ import annotations

from pathlib import Path

from gpulease.system.probe import groups, pci_root


def test_two_pairs_are_two_groups() -> None:
    assert groups(4, lambda a, b: 10 if a // 2 == b // 2 else 50) == ["near-0", "near-0", "near-2", "near-2"]


def test_a_driver_that_tells_nothing_gives_no_groups() -> None:
    assert groups(3, lambda a, b: None) == [None, None, None]
    assert groups(1, lambda a, b: 10) == [None]


def test_sysfs_knows_the_root_of_a_bus_id(tmp_path: Path) -> None:
    real = tmp_path / "devices" / "pci0000:40" / "0000:40:01.1" / "0000:41:00.0"
    real.mkdir(parents=True)
    links = tmp_path / "bus" / "pci" / "devices"
    links.mkdir(parents=True)
    (links / "0000:41:00.0").symlink_to(real)
    assert pci_root("00000000:41:00.0", str(tmp_path)) == "pci0000:40"
    assert pci_root("00000000:99:00.0", str(tmp_path)) is None
    assert pci_root(None) is None
