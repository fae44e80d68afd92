"""The client where brokers come and go, or are too busy to let it in."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixtures here
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here

from gpulease.api import jobs
from gpulease.client import connection, discovery
from gpulease.client.connection import Client
from gpulease.client.discovery import enter
from gpulease.errors import BrokerUnavailable

if TYPE_CHECKING:
    from gpulease.client.engines import BackendConnection


def test_a_broker_that_ends_before_it_is_asked_is_noticed_as_its_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULEASE_DIR", site.directory)
    site.ensure_broker()
    client = Client(directory=site.directory)
    site.kill_broker()
    client.send("status")  # no BrokenPipeError: a command would take that for its reader's end
    with pytest.raises(ConnectionResetError):
        client.receive(30)


def test_a_full_waiting_room_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        with socket.socket(socket.AF_UNIX) as second:
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.connect(path)
        later = threading.Timer(0.2, listener.accept)
        later.start()
        third = socket.socket(socket.AF_UNIX)
        enter(third, path)
        later.join()
        third.close()


OPTIONS: dict[str, Any] = {"cwd": "/", "environment": {}, "hold": True}
WAITS = ("ANSWER", "LONG", "CHECK", "READ_ONLY")


def answers_within(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The client waits this long for any answer."""
    monkeypatch.setattr(discovery, "SEND", seconds)
    for name in WAITS:
        monkeypatch.setattr(connection, name, seconds)


def test_what_a_stopped_broker_does_not_read_is_not_sent_for_ever(
    queue: QueueSite,
    inside: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = queue.ensure_broker()
    answers_within(monkeypatch, 0.3)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(BrokerUnavailable, match="does not answer") as raised:
            jobs.add([["true", "x" * 100_000]] * 100, {}, OPTIONS)
        assert "may be queued" in raised.value.next_step
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_long_answer_is_not_waited_for_where_the_broker_answers_nobody(
    queue: QueueSite,
    inside: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, `add` waited two minutes for a broker that was stopped; once it had read the jobs, twenty."""
    pid = queue.ensure_broker()
    jobs.ls()
    for name in ("CHECK", "READ_ONLY"):
        monkeypatch.setattr(connection, name, 0.3)
    os.kill(pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="does not answer") as raised:
            jobs.add([["true"]] * 3, {}, OPTIONS)
        assert "no open file left" in raised.value.next_step
        assert time.monotonic() - begin < 30
    finally:
        os.kill(pid, signal.SIGCONT)


def test_an_add_that_was_not_answered_is_asked_again_and_queued_once(
    queue: QueueSite,
    inside: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = queue.ensure_broker()
    jobs.ls()  # it knows its devices
    real, asked = connection.again, []

    def wake(ended: BackendConnection) -> BackendConnection:
        asked.append(ended)
        answers_within(monkeypatch, 60)
        os.kill(pid, signal.SIGCONT)
        return real(ended)

    monkeypatch.setattr(jobs, "again", wake)
    answers_within(monkeypatch, 0.3)
    os.kill(pid, signal.SIGSTOP)
    added = jobs.add([["true"]], {}, OPTIONS)
    assert len(asked) == 1
    assert [job["id"] for job in queue.jobs()] == [added["first"]]


DIES = """
import os, sys
if "gpulease.broker" in sys.orig_argv:
    os.write(2, b"MemoryError\\n")
    os._exit(1)
"""


def test_why_a_broker_could_not_be_started_is_said(queue: QueueSite) -> None:
    """Before, it was in its log only."""
    (queue.folder / "sitecustomize.py").write_text(DIES)
    queue.kill_broker()
    done = queue.run("add", "--", "true", PYTHONPATH=str(queue.folder))
    assert (done.returncode, "could not be started: MemoryError." in done.stderr) == (69, True), done.stderr
