"""One process at a time tells of all that came meanwhile; what is too much is counted; messages are paced."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpulease.broker.outbox import Outbox, PacedOutbox

TELLER = "import os, sys; open(os.environ['TOLD'], 'a').write(sys.stdin.read() + '\\n')\n"


@pytest.fixture(name="told")
def told_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the module `teller` was given is written there."""
    (tmp_path / "teller.py").write_text(TELLER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    return tmp_path / "told"


def end(outbox: Outbox, pid: int | None) -> None:
    assert pid is not None
    os.waitpid(pid, 0)
    assert outbox.ended(pid)


def end_running(outbox: Outbox) -> None:
    end(outbox, outbox._running)


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_comes_while_one_tells_is_told_by_the_next(told: Path) -> None:
    outbox = Outbox("teller", 10, print)
    assert outbox.start() is None
    outbox.add({"n": 1})
    first = outbox.start()
    outbox.add({"n": 2})
    outbox.add({"n": 3})
    assert outbox.start() is None
    assert not outbox.ended(1)
    end(outbox, first)
    end(outbox, outbox.start())
    assert lines(told) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_the_oldest_are_dropped_and_counted(told: Path) -> None:
    outbox = Outbox("teller", 3, print)
    for number in range(10):
        outbox.add({"n": number})
    end(outbox, outbox.start())
    assert lines(told) == [{"n": 7}, {"n": 8}, {"n": 9}, {"dropped": 7}]


def test_at_the_end_all_of_it_is_told_beside_one_that_still_tells(told: Path) -> None:
    outbox = Outbox("teller", 10, print)
    outbox.add({"n": 1})
    first = outbox.start()
    outbox.add({"n": 2})
    outbox.flush()
    assert first is not None
    os.waitpid(first, 0)
    end_running(outbox)
    assert sorted(map(str, lines(told))) == ["{'n': 1}", "{'n': 2}"]


def test_a_module_that_cannot_be_started_is_complained_of(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[str] = []
    outbox = Outbox("teller", 10, complaints.append)
    monkeypatch.setattr("sys.executable", "/no/such/python")
    outbox.add({})
    assert outbox.start() is None
    assert complaints


def test_messages_are_gathered_and_then_apart(told: Path) -> None:
    outbox = PacedOutbox("teller", 10, print)
    assert outbox.due(0.0) is None
    outbox.add_paced({"n": 1}, now=100.0, every=30.0)
    outbox.add_paced({"n": 2}, now=101.0, every=30.0)
    assert outbox.due(101.0) == 1.0
    outbox.start_if_due(101.9)
    assert not outbox.running
    outbox.start_if_due(102.0)
    assert outbox.running
    outbox.add_paced({"n": 3}, now=103.0, every=30.0)
    assert outbox.due(103.0) is None  # the first is still being told
    end_running(outbox)
    assert outbox.due(103.0) == 29.0
    outbox.start_if_due(131.9)
    assert not outbox.running
    outbox.start_if_due(132.0)
    end_running(outbox)
    assert lines(told) == [{"n": 1}, {"n": 2}, {"n": 3}]
