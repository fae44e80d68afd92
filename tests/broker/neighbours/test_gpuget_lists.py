"""gpuget's lists and ours, without a broker: a GPU is in one of them at every instant, whoever dies or resets them."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest
from support import gpuget_user
from support.redis_server import RedisServer, redis_server  # noqa: F401
from support.waiting import PATIENCE, wait_until

from gpulease.broker.neighbours.gpuget import Gpuget
from gpulease.model.gpuget_address import read_address
from gpulease.model.values import Device

Seen = TypeVar("Seen")
OURS = "GPU_GPULEASE:host"


class Side:
    """The broker's side of gpuget with a loop of its own, for GPUs 0 to 3."""

    def __init__(self, url: str, keep: tuple[int, ...] = (), **more: Any) -> None:
        self.poll = select.epoll()
        self.answers: dict[int, Mapping[str, str]] = {}
        self.number = 0
        self.reported = 0
        self.said: list[str] = []
        self.gpuget = Gpuget(
            self.poll, read_address(url), "host", self.answers.__setitem__, self._changed, self.said.append, **more
        )
        self.keep(*keep)
        self.gpuget.see([Device(gpu, str(gpu), "A100") for gpu in range(4)])
        self.keep(*keep)

    def _changed(self) -> None:
        self.reported += 1

    def keep(self, *gpus: int, want: tuple[int, ...] = ()) -> None:
        self.kept = frozenset(map(str, gpus))
        self.gpuget.tell(self.kept, (), map(str, want))

    def turn(self) -> None:
        for descriptor, flags in self.poll.poll(0.01):
            self.gpuget.ready(descriptor, flags)
        now = time.monotonic()
        if self.gpuget.due is not None and self.gpuget.due <= now:
            self.gpuget.overdue(now)

    def until(self, condition: Callable[[], Seen | None]) -> Seen:
        def seen() -> Seen | None:
            self.turn()
            return condition()

        return wait_until(seen, PATIENCE, 0)

    def ready(self) -> Side:
        assert self.claim(3) == {}  # which nobody manages
        return self

    def claim(self, *gpus: int) -> Mapping[str, str]:
        """What was refused; the rest is kept."""
        self.number += 1
        self.gpuget.claim(self.number, tuple(map(str, gpus)))
        refused = self.until(lambda: (self.answers.get(self.number),) * (self.number in self.answers))[0]
        assert refused is not None
        self.keep(*{*map(int, self.kept), *gpus} - set(map(int, refused)))
        return refused

    def who(self, gpu: int) -> str:
        return self.gpuget.held.get(str(gpu), "")

    @property
    def pid(self) -> int:
        assert self.gpuget._child.running
        return self.gpuget._child.key[0]

    def kill(self) -> None:
        before = self.pid
        os.kill(before, signal.SIGKILL)
        self.until(lambda: self.gpuget._child.running and self.pid != before)


@pytest.fixture
def client(server: RedisServer) -> Any:
    client = server.client()
    gpuget_user.manage(client, [0, 1, 2])
    return client


@pytest.fixture
def side(server: RedisServer, client: Any) -> Iterator[Side]:
    side = Side(server.url)
    try:
        yield side.ready()
    finally:
        side.gpuget.close()


def ours(client: Any) -> list[int]:
    return sorted(map(int, client.lrange(OURS, 0, -1)))


def test_a_claimed_gpu_leaves_the_idle_ones_and_comes_back(side: Side, client: Any) -> None:
    assert side.claim(1) == {}
    assert (gpuget_user.idle(client), ours(client)) == ([0, 2], [1])
    assert client.hget("GPU_GPU1", "TIME")
    side.keep()
    side.until(lambda: gpuget_user.idle(client) == [0, 1, 2])
    assert ours(client) == []
    assert not client.exists("GPU_GPU1")
    assert [event.partition(": ")[2] for event in client.lrange("GPU_EVENTS", 0, 1)] == [
        f"GPU 1 released by PID {os.getpid()}.",
        f"GPU 1 acquired by PID {os.getpid()}.",
    ]


def test_what_gpu_py_holds_is_refused_with_who_holds_it(side: Side, client: Any) -> None:
    gpu = gpuget_user.get(client, os.getpid())
    assert gpu == 0
    refused = side.claim(0, 1)
    assert list(refused) == ["0"]
    assert refused["0"] == side.until(lambda: side.who(0))
    assert f"gpuget, process {os.getpid()} of " in side.who(0)
    assert ours(client) == [1]


def test_a_gpu_that_is_not_managed_is_no_business_of_gpuget(side: Side, client: Any) -> None:
    assert side.claim(3) == {}
    assert ours(client) == []


def test_a_purge_frees_none_of_ours(side: Side, client: Any) -> None:
    side.claim(0, 1)
    gpuget_user.purge(client)
    assert (gpuget_user.idle(client), ours(client)) == ([2], [0, 1])


def test_a_child_that_is_killed_leaves_what_is_kept_and_nothing_else(side: Side, client: Any) -> None:
    side.claim(0, 1)
    os.kill(side.pid, signal.SIGSTOP)  # so that it cannot give back
    side.keep(0)
    side.kill()
    side.until(lambda: (gpuget_user.idle(client), ours(client)) == ([1, 2], [0]))


def test_what_a_former_broker_claimed_and_does_not_hold_goes_back(server: RedisServer, side: Side, client: Any) -> None:
    side.claim(0, 1)
    side.gpuget.close()
    other = Side(server.url, keep=(1, 2)).ready()
    other.until(lambda: (gpuget_user.idle(client), ours(client)) == ([0], [1, 2]))
    other.gpuget.close()


def test_what_a_former_child_sends_late_is_refused(server: RedisServer, side: Side, client: Any) -> None:
    from redis.exceptions import ResponseError

    from gpulease.broker.neighbours.gpuget_lists import Lists

    former = Lists(read_address(server.url), "host", 1, lambda: None)
    side.kill()
    side.until(lambda: client.hget(f"{OURS}:notes", "turn") != former._turn)
    with pytest.raises(ResponseError, match="TURN"):
        former.reconcile([0])
    former.close()
    assert ours(client) == []


def test_two_brokers_with_one_list_do_not_take_it_from_each_other(server: RedisServer, side: Side, client: Any) -> None:
    """As when the state of one was copied from the other's."""
    side.claim(0)
    other = Side(server.url, keep=(1,)).ready()
    turn = client.hget(f"{OURS}:notes", "turn")
    side.until(lambda: "another broker" in side.who(0))
    assert "another broker" in side.claim(2)["2"]
    assert (client.hget(f"{OURS}:notes", "turn"), ours(client)) == (turn, [1])
    other.gpuget.close()
    side.until(lambda: side.gpuget.shown["trouble"] is None)  # that one is not alive any more


def test_the_lists_made_anew_lose_what_we_hold_again(side: Side, client: Any) -> None:
    side.claim(0, 1)
    gpuget_user.manage(client, [0, 1, 2], force=True)
    side.until(lambda: (gpuget_user.idle(client), ours(client)) == ([2], [0, 1]))


def test_who_was_quicker_after_a_reset_keeps_it(side: Side, client: Any) -> None:
    """The child is stopped, so that it is too late for certain."""
    side.claim(0)
    os.kill(side.pid, signal.SIGSTOP)
    gpuget_user.manage(client, [0, 1, 2], force=True)
    assert gpuget_user.get(client, 4711) == 0
    os.kill(side.pid, signal.SIGCONT)
    side.until(lambda: side.who(0))
    side.keep()
    side.until(lambda: ours(client) == [])
    assert gpuget_user.idle(client) == [1, 2]
    gpuget_user.release(client, 0, 4711)
    assert gpuget_user.idle(client) == [0, 1, 2]


def test_what_a_stranger_releases_is_taken_out_again(side: Side, client: Any) -> None:
    side.claim(1)
    gpuget_user.release(client, 1, 4711)
    side.until(lambda: (gpuget_user.idle(client), ours(client)) == ([0, 2], [1]))


def test_what_a_stranger_releases_and_another_takes_is_theirs(side: Side, client: Any) -> None:
    side.claim(0)
    os.kill(side.pid, signal.SIGSTOP)
    gpuget_user.release(client, 0, 1)
    taken = [gpuget_user.get(client, 4711) for _ in range(3)]
    os.kill(side.pid, signal.SIGCONT)
    assert sorted(gpu for gpu in taken if gpu is not None) == [0, 1, 2]
    side.until(lambda: "process 4711" in side.who(0))
    side.keep()
    side.until(lambda: ours(client) == [])
    assert gpuget_user.idle(client) == []


def test_while_redis_is_away_everything_managed_counts_as_held(server: RedisServer, side: Side, client: Any) -> None:
    side.claim(0)
    server.kill()
    side.until(lambda: side.who(1))
    assert "its Redis cannot be asked" in side.claim(1)["1"]
    assert str(server.path) in side.gpuget.shown["trouble"]
    assert side.who(3) == ""
    server.start()  # empty
    side.until(lambda: "not in Redis" in side.who(1))
    gpuget_user.manage(server.client(), [0, 1, 2])
    side.until(lambda: not side.who(1))
    assert (gpuget_user.idle(server.client()), ours(server.client())) == ([1, 2], [0])


def test_an_emptied_database_is_noticed_and_what_we_hold_is_taken_again(side: Side, client: Any) -> None:
    side.claim(0)
    client.flushall()
    side.until(lambda: side.who(1))
    assert "not in Redis" in side.claim(1)["1"]
    gpuget_user.manage(client, [0, 1, 2])
    side.until(lambda: (gpuget_user.idle(client), ours(client)) == ([1, 2], [0]))


def test_a_redis_that_hangs_costs_a_refusal_and_a_second_try(server: RedisServer, side: Side, client: Any) -> None:
    server.signal(signal.SIGSTOP)
    assert side.claim(0)["0"]
    server.signal(signal.SIGCONT)
    side.until(lambda: not side.who(0))
    assert side.claim(0) == {}


# -------------------------------------------------------------------- gpuget's line


def test_who_waits_in_its_line_gets_a_gpu_in_turn(server: RedisServer, side: Side, client: Any) -> None:
    for _ in range(3):
        gpuget_user.get(client, os.getpid())
    side.until(lambda: side.who(0) and side.who(2))
    side.keep(want=(0,))
    wait_until(lambda: int(client.info("clients")["blocked_clients"]) == 1)
    gpuget_user.release(client, 2, os.getpid())  # any of them will do: it is offered
    side.until(lambda: not side.who(2))
    assert ours(client) == [2]
    assert side.claim(2) == {}
    assert ours(client) == [2]


def test_an_offer_that_nobody_wants_goes_to_the_next_in_its_line(side: Side, client: Any) -> None:
    for _ in range(3):
        gpuget_user.get(client, os.getpid())
    side.until(lambda: all(map(side.who, range(3))))
    side.keep(want=(0,))
    wait_until(lambda: int(client.info("clients")["blocked_clients"]) == 1)
    gpuget_user.release(client, 2, os.getpid())
    side.until(lambda: gpuget_user.idle(client) == [2])
    assert ours(client) == []
    assert int(client.info("clients")["blocked_clients"]) == 0  # it would get the same one again and again


def test_a_waiting_connection_is_withdrawn_with_the_wish(side: Side, client: Any) -> None:
    for _ in range(3):
        gpuget_user.get(client, os.getpid())
    side.until(lambda: all(map(side.who, range(3))))
    side.keep(want=(0, 1))
    wait_until(lambda: int(client.info("clients")["blocked_clients"]) == 2)
    side.keep()
    wait_until(lambda: int(client.info("clients")["blocked_clients"]) == 0)


def test_no_secret_of_the_address_is_shown(server: RedisServer) -> None:
    server.client().config_set("requirepass", "hush-hush")
    side = Side(f"unix://:wrong-secret@{server.path}?db=0")
    refused = side.claim(0)["0"]
    side.gpuget.close()
    assert "secret" not in f"{refused} {side.gpuget.shown} {side.said}"
    assert "assword" in side.said[-1]


def test_a_redis_that_tells_of_no_changes_is_looked_at_more_often(server: RedisServer, client: Any) -> None:
    """As one before version 6, or one whose administrator forbids it."""
    client.acl_setuser("default", commands=["-client|tracking"], enabled=True)
    side = Side(server.url).ready()
    side.claim(0)
    gpuget_user.manage(client, [0, 1, 2], force=True)
    side.until(lambda: (gpuget_user.idle(client), ours(client)) == ([1, 2], [0]))
    side.gpuget.close()


# -------------------------------------------------------------------- what anybody may write into a Redis


def test_side_keys_of_a_wrong_type_lose_no_gpu(side: Side, client: Any) -> None:
    side.claim(0, 1)
    for key in ("GPU_EVENTS", "GPU_GPU1", "GPU_GPU2"):
        client.set(key, "rubbish")
    assert side.claim(2) == {}
    assert (gpuget_user.idle(client), ours(client)) == ([], [0, 1, 2])
    side.keep()
    side.until(lambda: gpuget_user.idle(client) == [0, 1, 2])
    assert ours(client) == []


def test_what_is_shown_of_a_holder_is_short_and_printable(side: Side, client: Any) -> None:
    assert gpuget_user.get(client, 4711) == 0
    client.hset("GPU_GPU0", mapping={"TIME": "\x1b[31mred\nGPU 1 free" + "x" * 3_000_000, "PID": "1" * 5000})
    shown = side.until(lambda: who if "red" in (who := side.who(0)) else None)
    assert shown.isprintable()
    assert len(shown) < 80


def test_entries_that_are_no_gpus_are_not_read(side: Side, client: Any) -> None:
    before = side.pid
    client.rpush("GPU_MANAGED", *("9" * 5000, "x\n", "-1", "007"), *range(1000, 30_000))
    client.rpush("GPU_IDLE", "9" * 5000)
    assert side.claim(0) == {}
    assert ours(client) == [0]
    assert (side.pid, side.gpuget.shown["trouble"]) == (before, None)


# -------------------------------------------------------------------- another address


def test_another_way_to_the_same_lists_gives_nothing_back(server: RedisServer, side: Side, client: Any) -> None:
    side.claim(0)
    left: list[str] = []
    same = f"unix://{server.path}?db=0&prefix=GPU"
    before = _events(client)
    side.gpuget.hand_over()
    after = Side(same, keep=(0,), former=(server.url,), left=left.append).ready()
    after.until(lambda: left == [server.url])
    assert (ours(client), _events(client)) == ([0], before)
    after.gpuget.close()


def test_at_another_place_everything_goes_back_once_it_is_ours_at_the_new(
    server: RedisServer, side: Side, client: Any
) -> None:
    side.claim(0)
    client.lmove("GPU_IDLE", OURS)  # as a connection that waited brings one
    side.gpuget.hand_over()
    gpuget_user.manage(client, [0, 1, 2], prefix="NEW")
    after = Side(f"{server.url}&prefix=NEW", keep=(0,), former=(server.url,)).ready()
    after.until(lambda: gpuget_user.idle(client) == [0, 1, 2])
    assert (ours(client), gpuget_user.idle(client, "NEW")) == ([], [1, 2])
    after.gpuget.close()


def _events(client: Any) -> list[str]:
    return list(client.lrange("GPU_EVENTS", 0, -1))
