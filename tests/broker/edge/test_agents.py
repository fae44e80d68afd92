"""Launches that wait for a check of their user's account: sent if it is in order, and only if they are still wanted."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulease.broker.core.events import Event, LaunchFailed
from gpulease.broker.core.instructions import CancelLaunch, Launch, RunPlace
from gpulease.broker.edge.agents import Agents
from gpulease.model.jobs import Job, JobSpec
from gpulease.model.values import Request
from gpulease.protocol.wire import Unpacker, pack

UID = os.getuid()


class Checked:
    """Agents whose launches wait for a check, with the other ends of all sockets."""

    def __init__(self, folder: Path) -> None:
        self.poll = select.epoll()
        self.events: list[Event] = []
        self.agent: list[socket.socket] = []
        self.checks: list[socket.socket] = []
        self.agents = Agents(
            self.poll,
            lambda uid, theirs: self.agent.append(theirs.dup()),
            lambda *signal: None,
            lambda uid: str(folder),
            self.events.append,
            lambda text: None,
            lambda uid, theirs: self.checks.append(theirs.dup()),
        )

    def answer(self, refused: str | None) -> None:
        self.checks.pop().send(pack({"refused": refused, "passing": False}))
        for descriptor, flags in self.poll.poll(5.0):
            self.agents.ready(descriptor, flags)

    def orders(self) -> list[Any]:
        """What the agent was told to do."""
        return [message["do"] for message in Unpacker().feed(self.agent[0].recv(1 << 16))]

    def close(self) -> None:
        self.agents.close()
        for one in (*self.agent, *self.checks):
            one.close()
        self.poll.close()


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checked]:
    monkeypatch.setenv("GPULEASE_ACCOUNT_CHECK", "0")
    made = Checked(tmp_path)
    yield made
    made.close()


def job(id: int) -> Job:
    return Job(id, UID, "ada", JobSpec(("true",), "/", "key", Request()), 0.0, "running", run=1)


def launch(id: int) -> Launch:
    return Launch(job(id), RunPlace("/nowhere", None), {}, {})


def test_a_launch_is_sent_when_the_account_is_in_order(checked: Checked) -> None:
    checked.agents.send_order(launch(1))
    assert checked.orders() == ["begin"]
    checked.answer(None)
    assert checked.orders() == ["environment", "launch"]


def test_a_job_that_was_killed_during_the_check_is_not_started(checked: Checked) -> None:
    """It was: its command ran until its agent had signalled it."""
    for id in (1, 2):
        checked.agents.send_order(launch(id))
    checked.agents.cancel_launch(CancelLaunch(job(1)))
    assert checked.events == [LaunchFailed(1, 1, "it was ended before it began")]
    checked.answer(None)
    assert checked.orders() == ["begin", "environment", "launch"]
    assert len(checked.events) == 1


def test_a_launch_that_was_sent_is_not_cancelled(checked: Checked) -> None:
    checked.agents.send_order(launch(1))
    checked.answer(None)
    checked.agents.cancel_launch(CancelLaunch(job(1)))
    assert checked.events == []


def test_an_account_that_is_refused_fails_what_waits_for_it(checked: Checked) -> None:
    for id in (1, 2):
        checked.agents.send_order(launch(id))
    checked.agents.cancel_launch(CancelLaunch(job(1)))
    checked.answer("no such account")
    assert checked.events[1:] == [LaunchFailed(2, 1, "no such account", False)]
