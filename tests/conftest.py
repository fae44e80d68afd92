"""Fixtures that make a simulated machine of the test's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from support import skips, surroundings
from support.machine import Machine, listener_at, plain_environment

from gpulease.client import connection
from gpulease.simulator.state import create

# How long an example takes is the machine's affair. The long run looks for new examples; what decides whether a
# change lands tries the same ones each time.
settings.register_profile(
    "anywhere",
    deadline=None,
    derandomize="GPULEASE_LONG" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("anywhere")


def pytest_configure() -> None:
    surroundings.settle()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", help="run this part of the long tests, see `make test-long`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --part, all tests but the long ones; with it, the long tests of that part."""
    part = config.getoption("--part")
    chosen = [item for item in items if part in _parts(item)]
    config.hook.pytest_deselected(items=[item for item in items if part not in _parts(item)])
    items[:] = chosen


def _parts(item: pytest.Item) -> set[str | None]:
    """The parts that the test belongs to; None is `make test`."""
    if (long := item.get_closest_marker("long")) is not None:
        return {long.args[0]}
    if (longer := item.get_closest_marker("longer")) is not None:
        return {None, longer.args[0]}
    return {None, "properties"} if item.path.parent.name == "properties" else {None}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counted = skips.reasons(terminalreporter.stats.get("skipped", []))
    for line in skips.summary(counted):
        terminalreporter.write_line(line)
    for reason in skips.unexpected(counted):
        terminalreporter.write_line(f"Not in tests/allowed_skips.toml, so this run fails: {reason}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []  # a worker of xdist has none
    if session.exitstatus == 0 and skips.unexpected(skips.reasons(skipped)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def no_connection_of_another_test() -> Iterator[None]:
    """A connection outlives what asked by it, and waits for its broker to come back."""
    yield
    connection.forget()


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
