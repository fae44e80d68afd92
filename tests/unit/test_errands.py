"""A disk that hangs delays its own user's errands only; the loop and everybody else go on."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from functools import partial

import pytest
from support.waiting import wait_until

from gpulease.broker.errands import Errands
from gpulease.broker.events import Event, TreeSeen


@pytest.fixture
def errands() -> Iterator[tuple[Errands, select.epoll, list[str]]]:
    complaints: list[str] = []
    with select.epoll() as poll:
        yield Errands(poll, complaints.append), poll, complaints


def seen(id: int) -> list[Event]:
    return [TreeSeen(id, 1, 0)]


def blocked(descriptor: int) -> list[Event]:
    """As a read from a file server that does not answer."""
    os.read(descriptor, 1)
    return seen(1)


def until_idle(made: Errands) -> list[Event]:
    heard: list[Event] = []

    def idle() -> bool:
        heard.extend(made.events())
        return not made.busy(1)

    wait_until(idle)
    return heard


def test_one_users_hanging_disk_delays_nobody_else(errands: tuple[Errands, select.epoll, list[str]]) -> None:
    made, poll, _ = errands
    ours, theirs = os.pipe()
    made.add(1, partial(blocked, ours))
    made.add(1, partial(seen, 2))
    made.add(2, partial(seen, 3))
    assert poll.poll(40)
    assert made.events() == seen(3)
    assert made.busy(1)
    assert not made.busy(2)
    os.write(theirs, b"x")
    heard = until_idle(made)
    assert heard == [*seen(1), *seen(2)], "in the order in which they were asked for"
    os.close(ours)
    os.close(theirs)


def test_an_errand_that_fails_does_not_stop_the_next(errands: tuple[Errands, select.epoll, list[str]]) -> None:
    made, _, complaints = errands
    made.add(1, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    made.add(1, partial(seen, 5))
    heard = until_idle(made)
    assert heard == seen(5)
    assert "ZeroDivisionError" in complaints[0]
