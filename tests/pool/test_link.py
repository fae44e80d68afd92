"""A link with a worker: what was taken back from it can be given again, however much it was."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpulease.pool.items import Function, Item
from gpulease.pool.link import SocketLink
from gpulease.pool.pickling import pack
from gpulease.pool.reactor import Reactor
from gpulease.pool.session import Session


@pytest.fixture
def ends() -> Iterator[tuple[SocketLink, Session]]:
    """The pool's end and the worker's end, over a real socket and a real eventfd."""
    ours, theirs = socket.socketpair()
    tokens = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    reactor = Reactor("by hand")
    link = SocketLink("worker 1", "0", ours, tokens, reactor)
    session = Session(theirs, os.dup(tokens))
    yield link, session
    session.close()
    link.close()
    reactor.call(reactor.stop)
    reactor.run()


def items(count: int, size: int) -> list[Item]:
    function = Function(1, "len", pack(len, "len").payload)
    function.seconds = 1e-6  # so that many go at once
    made = [Item(function, pack(((b"x" * size,), {}), "it")) for _ in range(count)]
    for number, item in enumerate(made, 1):
        item.number = number
    return made


def work_off(session: Session, count: int) -> None:
    """As a worker does, until so many items were run or skipped."""
    done = 0
    while done < count:
        session.receive()
        while session.waiting:
            done += session.waiting[0].kind == 2
            session.run_next()


def hear(link: SocketLink, count: int) -> list[Any]:
    """What the worker told of so many items."""
    reply: list[Any] = []
    while len(reply) < count:
        reply += link.rest()
        link.flush()
    return [link.finished(each) for each in reply]


def test_a_link_from_which_all_was_taken_back_is_as_good_as_new(ends: tuple[SocketLink, Session]) -> None:
    link, session = ends
    given = items(100, 2000)  # far more than 64 KiB
    room = link.room(given[0])
    link.give(given)
    assert link.room(given[0]) == 0
    assert link.take_back(1000) == given
    assert not link.in_flight
    worker = threading.Thread(target=work_off, args=(session, 100))
    worker.start()
    assert hear(link, 100) == [None] * 100
    worker.join(30)
    assert link.room(given[0]) == room


def test_those_that_were_taken_back_are_the_last_and_the_rest_is_done(ends: tuple[SocketLink, Session]) -> None:
    link, session = ends
    given = items(100, 2000)
    link.give(given)
    assert link.take_back(40) == given[60:]
    worker = threading.Thread(target=work_off, args=(session, 100))
    worker.start()
    assert hear(link, 100) == [*given[:60], *[None] * 40]
    worker.join(30)
    assert not link.in_flight
    assert link.room(given[0]) == link.window.depth(1e-6)
