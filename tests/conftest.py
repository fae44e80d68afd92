"""Fixtures that make a simulated machine of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.machine import Machine

from gpulease.simulation.state import create


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Four simulated GPUs, and gpulease commands that see them."""
    return Machine(tmp_path)


@pytest.fixture
def simulated(tmp_path: Path) -> dict[str, str]:
    """An environment with four simulated GPUs."""
    create(tmp_path / "plain", 4, "a100")
    return {**os.environ, "GPULEASE_SIMULATION": str(tmp_path / "plain"), "GPULEASE_DIR": str(tmp_path / "dir")}


@pytest.fixture
def in_machine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """This very process sees the machine, and so do the workers that it starts."""
    for name in ("GPULEASE_SIMULATE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GPULEASE_SIMULATION", "GPULEASE_DIR"):
        monkeypatch.setenv(name, machine.environ[name])
    return machine
