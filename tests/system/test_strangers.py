"""Descriptors that a stranger sends are opened by nobody: one that lingers, or is never closed, keeps nobody here."""

from __future__ import annotations

import os
import select
import socket
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.lingering import lingering
from support.waiting import wait_until

from gpulease.broker.edge.connection import ClientListener
from gpulease.system import untrusted

LINGER = 30  # seconds
QUICK = 10.0


@pytest.fixture(autouse=True)
def without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "PAUSE", 0.0)


@contextmanager
def sent_over(one: socket.socket, count: int = 1, flags: int = 0) -> Iterator[None]:
    """So that whoever reads or closes the other end has the last copy."""
    with ExitStack() as kept:
        for _ in range(count):
            passed, deaf = lingering(LINGER)
            kept.enter_context(deaf)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [passed.fileno()]))
            one.sendmsg([b"a"], [rights], flags)
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
            untrusted.close(ours)


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


def test_nobody_waits_for_what_came_with_an_urgent_byte() -> None:
    """The kernel drops such a byte, and what came with it, while the next ones are read."""
    for read in (lambda one: untrusted.receive(one, 100), lambda one: None):
        ours, theirs = socket.socketpair()
        with theirs, sent_over(theirs, flags=socket.MSG_OOB):
            theirs.send(b"said later")
            assert not read(ours)
            untrusted.close(ours)


def test_nobody_waits_for_an_urgent_byte_of_somebody_who_has_gone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door, select.epoll() as poll, socket.socket(socket.AF_UNIX) as theirs:
        door.bind(str(tmp_path / "s"))
        door.listen()
        door.setblocking(False)
        theirs.connect(str(tmp_path / "s"))
        with sent_over(theirs, flags=socket.MSG_OOB):
            theirs.close()
            for one in ClientListener(poll, door, print).come():
                untrusted.close(one)


def test_what_a_stranger_sends_is_never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each close of a file asks the program that serves its file system, not the last one only: it may not answer."""
    monkeypatch.setattr(untrusted, "PAUSE", 3600.0)
    monkeypatch.setattr(untrusted, "_last", time.monotonic())
    monkeypatch.setattr(untrusted, "_held", [])
    ours, theirs = socket.socketpair()
    with theirs, open(os.devnull) as passed:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(theirs, [b"a"], [passed.fileno()] * 250)
        assert untrusted.receive(ours, 100) == b""
        assert len(os.listdir("/proc/self/fd")) == before
        untrusted.close(ours)
        assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_in_quick_succession_need_one_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "PAUSE", 3600.0)
    monkeypatch.setattr(untrusted, "_last", time.monotonic())
    monkeypatch.setattr(untrusted, "_held", [])
    begin = len(os.listdir("/proc/self/fd"))
    with open(os.devnull) as passed:
        for number in range(untrusted.HELD):
            assert len(os.listdir("/proc/self/fd")) == begin + 1 + number
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(theirs, [b"a"], [passed.fileno()])
                untrusted.close(ours)
    assert len(os.listdir("/proc/self/fd")) == begin
