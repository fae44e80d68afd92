"""Descriptors that a stranger sends are closed by somebody who may wait for it: one that lingers keeps nobody here."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from support.lingering import lingering
from support.waiting import wait_until

from gpulease.system import untrusted

LINGER = 30  # seconds
QUICK = 10.0


@pytest.fixture(autouse=True)
def without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "PAUSE", 0.0)


@contextmanager
def sent_over(one: socket.socket, count: int = 1) -> Iterator[None]:
    """So that whoever reads or closes the other end has the last copy."""
    with ExitStack() as kept:
        for _ in range(count):
            passed, deaf = lingering(LINGER)
            kept.enter_context(deaf)
            socket.send_fds(one, [b"a"], [passed.fileno()])
            passed.close()  # the copy that was sent is the last
        began, opened = time.monotonic(), len(os.listdir("/proc/self/fd"))
        yield
        assert time.monotonic() - began < QUICK
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= opened)


def test_what_comes_with_a_descriptor_is_not_read_and_nobody_waits() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"said before")
        assert untrusted.receive(ours, 100) == b"said before"
        with sent_over(theirs):
            assert untrusted.receive(ours, 100) == b""


def test_nobody_waits_for_what_was_not_read() -> None:
    ours, theirs = socket.socketpair()
    with theirs, sent_over(theirs, 3):
        untrusted.close(ours)


def test_nobody_waits_for_what_those_sent_who_were_not_accepted() -> None:
    listener, theirs = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    name = f"\0gpulease/test/{os.getpid()}-strangers"
    listener.bind(name)
    listener.listen()
    theirs.connect(name)
    with theirs, sent_over(theirs):
        untrusted.close_listener(listener)
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect(name)


def test_descriptors_in_quick_succession_need_one_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "PAUSE", 3600.0)
    monkeypatch.setattr(untrusted, "_last", time.monotonic())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(untrusted.HELD):
            assert len(os.listdir("/proc/self/fd")) == before + number
            with open(os.devnull) as passed:
                socket.send_fds(theirs, [b"a"], [passed.fileno()])
            assert untrusted.receive(ours, 100) == b""
        assert len(os.listdir("/proc/self/fd")) == before
