"""Fixtures that make a simulated machine of the test's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from support.machine import Machine, listener_at, plain_environment

from gpulease import thread_client
from gpulease.simulation.state import create

# How long an example takes is the machine's affair. The long run looks for new examples; what decides whether a
# change lands tries the same ones each time.
settings.register_profile(
    "anywhere",
    deadline=None,
    derandomize="GPULEASE_LONG" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("anywhere")


@pytest.fixture(autouse=True)
def no_connection_of_another_test() -> Iterator[None]:
    """A connection outlives what asked by it, and waits for its broker to come back."""
    yield
    thread_client.forget()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Four simulated GPUs, and gpulease commands that see them."""
    with TemporaryDirectory(prefix="gpulease-", ignore_cleanup_errors=True) as short:  # as a socket's path has to be
        machine = Machine(tmp_path)
        machine.environ["GPULEASE_DIR"] = f"{short}/dir"
        yield machine
        if (broker := listener_at(f"{short}/dir")) is not None:  # it would put its folder back
            os.kill(broker, signal.SIGKILL)


@pytest.fixture
def simulated(tmp_path: Path) -> dict[str, str]:
    """An environment with four simulated GPUs."""
    create(tmp_path / "plain", 4, "a100")
    return {
        **plain_environment(),
        "GPULEASE_SIMULATION": str(tmp_path / "plain"),
        "GPULEASE_DIR": str(tmp_path / "dir"),
    }


@pytest.fixture
def in_machine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """This very process sees the machine, and so do the workers that it starts."""
    for name in ("GPULEASE_SIMULATE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GPULEASE_SIMULATION", "GPULEASE_DIR"):
        monkeypatch.setenv(name, machine.environ[name])
    return machine
