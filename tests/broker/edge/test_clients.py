"""What clients send and leave unread costs no more than it may, and all that a client said is done, in its order."""

from __future__ import annotations

import os
import resource
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulease.broker.core.events import ClientGone, Event, Received
from gpulease.broker.edge import clients, connection
from gpulease.broker.edge.accounts import Accounts
from gpulease.broker.edge.clients import MANY_PARTIAL, Clients
from gpulease.broker.edge.connection import COMING, MAX_LEFT
from gpulease.protocol.wire import pack

PING = pack({"v": 1, "do": "ping"})


class Door:
    """Real connections and the broker's side of them, without a broker."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "s")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(100)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.events: list[Event] = []
        self.lines: list[str] = []
        accounts = Accounts(self.poll, self.lines.append)
        self.clients = Clients(self.poll, self.listener, self.events.append, self.lines.append, accounts)
        self.sockets: list[socket.socket] = []

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        self.sockets.append(made)
        made.connect(self.path)
        made.setblocking(False)
        return made

    def look(self) -> int:
        """Once at what is ready; how much was."""
        found = self.poll.poll(0)
        for descriptor, flags in found:
            self.clients.ready(descriptor, flags)
        return len(found)

    def reconcile(self) -> list[Event]:
        """Until nothing is ready any more: what happened, the messages among it."""
        while self.look() or self.clients.waiting:
            for event in self.clients.round():
                self.events.append(event)
            self.clients.end_round()
        return self.events

    def close(self) -> None:
        self.clients.close()
        for one in (*self.sockets, self.listener):
            one.close()
        self.poll.close()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.close()


def test_all_that_a_client_said_before_it_left_is_done_in_its_order(door: Door) -> None:
    client = door.connect()
    client.sendall(b"".join(pack({"v": 1, "do": "kill", "n": number}) for number in range(5)))
    client.close()
    events = door.reconcile()
    assert [event.message["n"] for event in events if isinstance(event, Received)] == [0, 1, 2, 3, 4]
    assert isinstance(events[-1], ClientGone)


def test_what_a_client_that_has_gone_only_wanted_to_see_is_dropped(door: Door) -> None:
    client = door.connect()
    client.sendall(pack({"v": 1, "do": "kill", "n": 0}))
    door.look()
    door.look()
    looks = pack({"v": 1, "do": "history"}) + pack(
        {"v": 1, "x": "x" * 100, "do": "status"}
    )  # the second is not guessed
    client.sendall(looks * 5 + pack({"v": 1, "do": "kill", "n": 1}))
    client.close()
    events = door.reconcile()
    assert [event.message.get("n") for event in events if isinstance(event, Received)] == [0, 1]
    assert isinstance(events[-1], ClientGone)


def test_a_flood_that_a_client_left_behind_is_bounded_in_messages(door: Door) -> None:
    """300 connections of a client that had exited kept the broker busy for minutes."""
    for _ in range(5):
        client = door.connect()
        client.sendall(pack({"v": 1, "do": "kill"}) * 1000)
        client.close()
    events = door.reconcile()
    assert 0 < sum(isinstance(event, Received) for event in events) <= 5 * (1 + MAX_LEFT)
    assert sum(isinstance(event, ClientGone) for event in events) == 5
    assert not door.clients._users


def test_messages_that_come_a_byte_at_a_time_are_read_a_few_at_a_time(door: Door) -> None:
    """Each byte cost a read before anybody else was served: on 1,000 connections, 30 times as long for the others."""
    slow = [door.connect() for _ in range(50)]
    for one in slow:
        one.sendall(PING[:-2])
    door.reconcile()
    for one in slow:
        one.sendall(PING[-2:-1])
    assert door.look() <= MANY_PARTIAL
    for one in slow:
        one.sendall(PING[-1:])
    assert sum(isinstance(event, Received) for event in door.reconcile()) == 50


def test_an_exception_over_one_connection_cuts_that_connection_and_is_logged_once(door: Door) -> None:
    """No message that raises is known. So the kernel does: what it is not asked to poll cannot be modified."""
    others = [door.connect() for _ in range(3)]
    for one in others:
        one.sendall(PING)
    events = door.reconcile()
    broken = [event.peer for event in events if isinstance(event, Received)]
    for peer in broken[:2]:
        door.poll.unregister(door.clients._by_peer[peer].descriptor)
    for peer in broken:
        door.clients.send(peer, {"ok": "x" * (1 << 20)})
    door.reconcile()
    assert [event.peer for event in events if isinstance(event, ClientGone)] == broken[:2]
    assert ["Traceback" in line for line in door.lines] == [True]
    others[2].sendall(PING)
    assert [event.peer for event in door.reconcile() if isinstance(event, Received)][3:] == [broken[2]]


def test_a_request_that_is_gone_on_with_comes_before_what_its_client_said_later(door: Door) -> None:
    client = door.connect()
    client.sendall(pack({"do": "kill"}) + pack({"do": "ls"}))
    order = []
    while door.look() or door.clients.waiting:
        taken = list(door.clients.round())
        order += [event.message["do"] for event in taken]
        if order == ["kill"] or order == ["kill", "kill"]:
            door.clients.continue_later(taken[0])
        door.clients.end_round()
    assert order == ["kill", "kill", "kill", "ls"]


def test_without_a_descriptor_clients_wait_before_the_door_and_nothing_spins(door: Door) -> None:
    """The log grew by half a megabyte in a second, and clients were turned away with a wrong reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [door.connect() for _ in range(5)]
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert door.look() == 1
        assert [door.look() for _ in range(50)] == [0] * 50
        for _ in range(3):
            door.clients.accept_waiting()
            door.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(door.lines) == 1
    for one in waiting:
        one.sendall(PING)
    door.clients.accept_waiting()
    assert len([event for event in door.reconcile() if isinstance(event, Received)]) == 5


def test_some_descriptors_are_kept_for_what_is_under_way(door: Door) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first, second = door.connect(), door.connect()
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 4, hard))
    try:
        for one in (first, second):
            one.sendall(PING)
        assert len(door.reconcile()) == 1
        first.close()
        assert len([event for event in door.reconcile() if isinstance(event, Received)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "are reserved for open connections" in door.lines[0]


def test_what_one_users_clients_leave_unread_is_bounded_in_all(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_OUTGOING", 1 << 20)
    sockets = [door.connect() for _ in range(20)]
    for one in sockets:
        one.sendall(PING)
    peers = [event.peer for event in door.reconcile() if isinstance(event, Received)]
    for peer in peers:
        for _ in range(10):
            door.clients.send(peer, {"ok": "x" * 100_000})
    kept = sum(len(one.outgoing) for one in door.clients._connections.values())
    assert 0 < kept <= 1 << 20
    door.reconcile()
    assert sum(isinstance(event, ClientGone) for event in door.events) > 0


def test_one_users_messages_are_read_only_as_they_are_handled(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MUCH_INCOMING", 200_000)
    large = pack({"do": "add", "x": "x" * 500_000})
    rest = {door.connect(): bytearray(large) for _ in range(20)}
    most = handled = 0
    while handled < len(rest):
        for client, left in rest.items():
            try:
                del left[: client.send(left)]
            except BlockingIOError:
                continue
        door.look()
        most = max(most, sum(one.unpacker.size for one in door.clients._connections.values()))
        handled += len(list(door.clients.round()))
        door.clients.end_round()
    assert most < len(rest) * len(large) / 2


def test_a_user_whose_messages_are_too_much_is_told_the_bound(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_INCOMING", 100_000)
    client = door.connect()
    client.setblocking(True)
    client.sendall(pack({"do": "add", "x": "x" * 150_000}))
    door.reconcile()
    assert b"too-much" in client.recv(1000)


def test_who_comes_and_goes_without_end_costs_little_and_others_are_taken_behind_them(door: Door) -> None:
    """Two processes that only connected and closed kept the broker from answering anybody else."""
    others = [door.connect() for _ in range(60)]
    for one in others:
        one.close()
    last = door.connect()
    last.sendall(PING)
    assert [type(event) for event in door.reconcile()] == [Received]
    assert len(door.clients._connections) == 1


class Ticking:
    """A clock that goes on a little whenever it is looked at."""

    def __init__(self, step: float) -> None:
        self._step, self._now = step, 0.0

    def monotonic(self) -> float:
        self._now += self._step
        return self._now


def test_who_comes_is_taken_in_a_few_at_a_time(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as come in a millisecond, by a clock that each of them moves."""
    monkeypatch.setattr(connection, "time", Ticking(COMING / 8))
    for _ in range(60):
        door.connect()
    door.look()
    assert 4 <= len(door.clients._connections) <= 8
    door.reconcile()
    assert len(door.clients._connections) == 60
