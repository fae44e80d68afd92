"""gpuget's lists in Redis, as the child process reaches them: one connection that acts, others that wait or listen.

Every call has a deadline, except calls that wait in gpuget's queue, which are meant to.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from gpulease.broker.neighbours.gpuget_script import RECONCILE, Keys, Picture
from gpulease.model.gpuget_address import Address

DEADLINE = 2.0  # seconds for a call
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
Client = Any  # the types of the library differ from version to version
CHANGES = "__redis__:invalidate"  # where Redis tells of changed keys


class Lists:
    """Raises what `redis` raises; then it is closed, and another is opened."""

    def __init__(self, address: Address, broker: str, pid: int, wake: Callable[[], None], child: str = "") -> None:
        self._address, self._pid, self._wake, self._broker = address, pid, wake, broker
        self._keys = Keys.of(address.prefix, broker)
        self._turn = f"{child}{secrets.token_hex(8)}"
        self._client: Client = connect(address)
        self._reconcile = self._client.register_script(RECONCILE)
        self._waiters: list[Waiter] = []
        self._listener: Listener | None = None
        self._client.hset(self._keys.notes, "turn", self._turn)
        self.told = self._listen()

    def reconcile(self, stay: Iterable[int]) -> Picture:
        """Make the lists agree with what is to stay ours."""
        words = [self._turn, f"{self._address.prefix}_GPU", time.strftime("%Y-%m-%d %H:%M:%S"), str(self._pid)]
        return Picture.of(self._reconcile(keys=self._keys, args=[*words, *map(str, sorted(stay))]))

    def wait_with(self, count: int) -> None:
        """From now on this many connections wait in gpuget's queue; the ones that came first stay longest."""
        self._waiters = [one for one in self._waiters if one.is_alive()]
        while len(self._waiters) > count:
            self._waiters.pop().stop()
        while len(self._waiters) < count:
            self._waiters.append(Waiter(connect(self._address), self._keys, self._wake))

    def give_back_at(self, former: Address) -> bool:
        """Everything, unless that is this very place by another way. Whether nothing of ours is left there."""
        word = f"here:{secrets.token_hex(8)}"
        self._client.hset(self._keys.notes, word, "")
        client = connect(former)
        try:
            if client.hexists(Keys.of(former.prefix, self._broker).notes, word):
                return True
        finally:
            disconnect(client)
            self._client.hdel(self._keys.notes, word)
        there = Lists(former, self._broker, self._pid, lambda: None)
        try:
            there.reconcile([])  # what a blocked connection brought is only seen by the first
            return not there.reconcile([]).ours
        finally:
            there.close()

    def close(self) -> None:
        self.wait_with(0)
        if self._listener is not None:
            self._listener.stop()
        disconnect(self._client)

    def _listen(self) -> bool:
        """Whether Redis tells of changes; an older one, or one that does not permit it, is looked at more often."""
        keys = self._keys
        try:
            self._listener = Listener(connect(self._address), self._wake)
            prefixes = [
                word for key in (keys.idle, keys.init, f"{self._address.prefix}_GPU") for word in ("PREFIX", key)
            ]
            words = ["REDIRECT", self._listener.number, "BCAST", *prefixes, "NOLOOP"]
            self._client.execute_command("CLIENT", "TRACKING", "ON", *words)
        except redis.ResponseError:
            return False
        self._listener.start()
        return True


def connect(address: Address) -> Client:
    """One connection, on which nothing is done twice."""
    return redis.Redis.from_url(
        address.url,
        decode_responses=True,
        encoding_errors="replace",
        protocol=2,
        single_connection_client=True,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=DEADLINE,
        socket_connect_timeout=DEADLINE,
        **(
            {}
            if address.url.startswith("unix:")
            else {"socket_keepalive": True, "socket_keepalive_options": KEEP_ALIVE}
        ),
    )


def disconnect(client: Client) -> None:
    """Also while another thread waits for its answer, which then fails."""
    connection = client.connection
    if connection is not None:
        connection.disconnect()


class Waiter(threading.Thread):
    """Stands in gpuget's line like any GPU.py, and gets one GPU into our list: in one step, so that none is lost."""

    def __init__(self, client: Client, keys: Keys, wake: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._client, self._wake = client, wake
        client.connection.send_command("BRPOPLPUSH", keys.idle, keys.ours, 0)
        self.start()

    def run(self) -> None:
        read(self._client)
        disconnect(self._client)
        self._wake()

    def stop(self) -> None:
        disconnect(self._client)


class Listener(threading.Thread):
    """Wakes the child when a key of gpuget's has changed."""

    def __init__(self, client: Client, wake: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._client, self._wake = client, wake
        self.number = int(client.client_id())
        client.connection.send_command("SUBSCRIBE", CHANGES)
        client.connection.read_response()

    def run(self) -> None:
        while read(self._client):
            self._wake()
        self._wake()

    def stop(self) -> None:
        disconnect(self._client)


def read(client: Client) -> bool:
    """Wait for what Redis says; False when the connection was closed, here or there."""
    try:
        while not client.connection.can_read(timeout=60):
            continue
        client.connection.read_response()
    except (redis.RedisError, OSError, ValueError, AttributeError):
        return False
    return True
