"""Turns are by user and by time: many connections, or dear messages, give nobody more of the broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gpulease.broker.core.events import Received
from gpulease.broker.edge.connection import Connection
from gpulease.broker.edge.rounds import CROWDED, MAX_LONG, READS_PER_ROUND, REST, ROUND, Turns
from gpulease.model.peer import Account, Peer
from gpulease.protocol.wire import pack


class Crowd:
    """Users with connections on which a message is always ready, and a clock that only handling moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = Turns(lambda: self.now, lambda: self.now)
        self.sockets: list[socket.socket] = []
        self.handled: list[int] = []  # users, in the order in which they were served

    def add(self, uid: int, connections: int = 1, verb: str = "kill") -> list[Connection]:
        made = [self._connect(uid, verb) for _ in range(connections)]
        for one in made:
            self.turns.add(one)
        return made

    def _connect(self, uid: int, verb: str) -> Connection:
        ours, theirs = socket.socketpair()
        self.sockets += [ours, theirs]
        connection = Connection(ours, lambda uid: Account(str(uid)))
        connection.peer = Peer(1, uid, Account(str(uid)))
        connection.unpacker.keep(pack({"v": 1, "do": verb}))
        return connection

    def round(self, costs: dict[int, float], again: bool = True, crowded: bool = False) -> list[int]:
        """Handle one, each message at its user's cost; each connection has another message then."""
        before, served = len(self.handled), []
        for event in self.turns.round(self._take, crowded):
            self.now += costs[event.peer.uid]
            self.handled.append(event.peer.uid)
            served.append(self._last)
        for connection in served if again else ():
            self.turns.add(connection)
        return self.handled[before:]

    def _take(self, connection: Connection) -> Received[Any]:
        self._last = connection
        return Received(connection.peer, {"do": "x"})


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    made = Crowd()
    yield made
    for one in made.sockets:
        one.close()


def test_one_user_with_many_connections_has_no_more_turns_than_one_with_one(crowd: Crowd) -> None:
    crowd.add(1, 200)
    crowd.add(2, 10)
    for _ in range(400):
        crowd.round({1: 0.001, 2: 0.001})
    assert abs(crowd.handled.count(1) - crowd.handled.count(2)) <= 2 * ROUND / 0.001


def test_turns_are_counted_in_time_and_not_in_messages(crowd: Crowd) -> None:
    crowd.add(1, 10)
    crowd.add(2, 10)
    for _ in range(500):
        crowd.round({1: 0.02, 2: 0.001})
    assert crowd.handled.count(2) >= 15 * crowd.handled.count(1)


def test_whoever_comes_waits_for_one_message_of_the_others_and_is_answered_before_the_next(crowd: Crowd) -> None:
    crowd.add(1, 200)
    for _ in range(50):
        crowd.round({1: 0.02, 2: 0.001})
    crowd.add(2)
    assert crowd.round({1: 0.02, 2: 0.001}, again=False) == [2]


def test_who_has_waited_saves_no_time_for_later(crowd: Crowd) -> None:
    crowd.add(1, 5)
    for _ in range(1000):
        crowd.round({1: 0.001, 2: 0.001})
    crowd.add(2, 5)
    before = len(crowd.handled)
    for _ in range(100):
        crowd.round({1: 0.001, 2: 0.001})
    assert crowd.handled[before:].count(1) > 100


def test_of_one_user_those_that_act_come_before_those_that_look(crowd: Crowd) -> None:
    looking = crowd.add(1, 100, "status")
    acting = crowd.add(1, 1, "release")[0]
    order: list[Connection] = []

    def take(connection: Connection) -> None:
        order.append(connection)

    assert list(crowd.turns.round(take)) == []
    assert order[0] is acting
    assert order[1:] == looking[:READS_PER_ROUND]


def test_between_two_pieces_of_a_long_request_one_of_the_same_user_may_look(crowd: Crowd) -> None:
    """Else `ls` waits until a `kill` of a hundred thousand jobs is done."""
    kill = crowd.add(1)[0]
    order: list[Connection] = []

    def take(connection: Connection) -> Received[Any]:
        order.append(connection)
        return Received(connection.peer, {})

    def rounds(number: int) -> None:
        for _ in range(number):
            for _ in crowd.turns.round(take):
                crowd.now += ROUND
            if order[-1] is kill:
                kill.resumed = Received(kill.peer, {})
                crowd.turns.drop(kill)
                crowd.turns.add(kill)

    rounds(3)
    looking = crowd.add(1, 2, "ls")
    rounds(6)
    assert order == [kill, kill, kill, looking[0], kill, looking[1], kill, kill, kill]


def test_a_user_has_a_few_long_requests_under_way_at_a_time(crowd: Crowd) -> None:
    """Each holds what it has found so far: a hundred at a time would hold a hundred answers."""
    crowd.add(1, 20)
    seen: list[Connection] = []

    def take(connection: Connection) -> Received[Any]:
        seen.append(connection)
        return Received(connection.peer, {})

    for _ in range(20):
        first = len(seen)
        for _ in crowd.turns.round(take):
            crowd.now += ROUND / 3
        for one in seen[first:]:
            one.resumed = Received(one.peer, {})
            crowd.turns.drop(one)
            crowd.turns.add(one)
    under_way = set(seen)
    assert MAX_LONG <= len(under_way) < MAX_LONG + 3  # one round may begin some before they are known to be long
    for one in under_way:
        crowd.turns.drop(one)  # their requests are done
    list(crowd.turns.round(take))
    assert set(seen) > under_way


def test_a_round_is_short_while_several_users_are_connected(crowd: Crowd) -> None:
    crowd.add(1, 100)
    assert len(crowd.round({1: CROWDED / 4}, crowded=True)) == 4
    assert len(crowd.round({1: CROWDED / 4})) == ROUND / CROWDED * 4


def test_a_user_rests_after_a_message_for_which_others_waited_long(crowd: Crowd) -> None:
    crowd.add(1, 2)
    crowd.add(2)
    costs = {1: 0.02, 2: 0.0001}
    assert 1 in crowd.round(costs, crowded=True)
    began = crowd.now
    while crowd.now < began + (REST - 1) * costs[1]:
        assert set(crowd.round(costs, crowded=True)) == {2}
    crowd.now += 2 * costs[1]
    assert 1 in crowd.round(costs, crowded=True)


def test_nobody_rests_where_nobody_else_is_connected(crowd: Crowd) -> None:
    crowd.add(1, 3)
    for _ in range(3):
        assert crowd.round({1: 0.02}) == [1]


def test_who_rests_is_told_when_to_go_on(crowd: Crowd) -> None:
    crowd.add(1, 2)
    crowd.round({1: 0.02}, crowded=True)
    assert crowd.turns.due == pytest.approx(crowd.now + REST * 0.02)
