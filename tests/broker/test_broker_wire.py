"""Whatever comes over the socket costs its sender the connection at most, and nobody else anything."""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.raw import Raw
from support.site import Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

from gpulease.model.request import WIRE
from gpulease.protocol.messages import REQUESTS
from gpulease.protocol.wire import pack

ALL = [0, 1, 2, 3]


@pytest.fixture(scope="module", name="attacked")
def one_broker_for_many_attacks() -> Iterator[Site]:
    site = Site()
    site.ensure_broker()
    pid = site.broker_pid()
    try:
        yield site
        assert site.broker_pid() == pid, "the broker ended"
        assert "Traceback" not in site.log(), site.log()
    finally:
        site.close()


def served(site: Site) -> float:
    """That somebody else is served, and how quickly."""
    begin = time.monotonic()
    with site.raw() as other:
        assert "ok" in other.ask("ping")
        assert "ok" in other.ask("status")
    return time.monotonic() - begin


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


GARBLED = {
    "announces 4 GiB": b"\xff\xff\xff\xff" + b"x" * 1000,
    "announces one byte too many": struct.pack(">I", (1 << 20) + 1),
    "not JSON": framed(b"hello there"),
    "empty": framed(b""),
    "not an object": framed(b"[1, 2, 3]"),
    "a number": framed(b"7"),
    "not UTF-8": framed(b'{"v": 1, "do": "\xff\xfe'),
    "nested deeply": framed(b'{"v":' * 100_000),
    "nested deeply and closed": framed(b'{"v":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "a huge number": framed(b'{"v": ' + b"9" * 100_000 + b"}"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "pickle": framed(b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94"),
}


@pytest.mark.parametrize("data", GARBLED.values(), ids=GARBLED.keys())
def test_a_garbled_message_costs_its_sender_the_connection(attacked: Site, data: bytes) -> None:
    with attacked.raw() as sender:
        sender.socket.sendall(data)
        assert sender.receive()["error"]["code"] == "protocol"
        assert sender.closed()
    served(attacked)


def test_a_garbled_message_behind_answers_that_are_not_read_ends_nothing(attacked: Site) -> None:
    """These 4,404 bytes ended the broker: the second error of one connection was raised outside of every guard."""
    for _ in range(3):
        with attacked.raw() as sender:
            sender.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            sender.socket.sendall(pack({"v": 1, "do": "set"}) * 200 + b"\xff\xff\xff\xff")
            served(attacked)
            assert sender.closed()
    served(attacked)


def test_a_half_sent_message_holds_nobody_up_and_is_cut_off_in_time(attacked: Site) -> None:
    whole = pack({"v": 1, "do": "ping"})
    with attacked.raw() as slow, attacked.raw() as other:
        slow.socket.sendall(whole[:7])
        assert "ok" in other.ask("ping")
        slow.socket.sendall(whole[7:])
        assert "ok" in slow.receive()
        begin = time.monotonic()
        slow.socket.sendall(whole[:7])
        assert slow.closed()
        assert time.monotonic() - begin < 30


def test_a_message_in_single_bytes_is_understood(attacked: Site) -> None:
    with attacked.raw() as sender:
        for byte in pack({"v": 1, "do": "ping"}):
            sender.socket.sendall(bytes([byte]))
        assert "ok" in sender.receive()


def test_a_client_that_closes_in_the_middle_leaves_nothing(attacked: Site) -> None:
    for cut in range(1, 60, 7):
        with attacked.raw() as sender:
            message = pack({"v": 1, "do": "acquire", "request": {"gpus": 1}, "kind": "acquire"})
            sender.socket.sendall(message[:cut])
    served(attacked)
    assert devices_of(attacked, "free") == ALL


def test_another_version_of_the_protocol_is_told_so(attacked: Site) -> None:
    with attacked.raw() as sender:
        for version in (0, 2, "1", None, [1], True and 1.5):
            sender.socket.sendall(pack({"v": version, "do": "ping"}))
            reply = sender.receive()["error"]
            assert reply["code"] == "protocol"
            assert "version" in reply["what"]


def test_identity_in_a_message_is_ignored(attacked: Site) -> None:
    fake = {"uid": 12345, "user": "third", "pid": 1, "owner_uid": 12345, "start_time": 1, "groups": ["wheel"]}
    with attacked.raw() as sender:
        sender.acquire(1, 0, **fake)
        id = sender.granted()["id"]
        lease = next(lease for lease in attacked.status()["leases"] if lease["id"] == id)
        assert (lease["pid"], lease["user"] == "third") == (os.getpid(), False)
        sender.ask("release", what=[id])
        sender.send("acquire", request={"gpus": 1, "user": "third"}, kind="acquire")
        assert sender.receive()["error"]["code"] == "usage"


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ODD = (
    st.sampled_from([-1, 0, 2**31, 2**62, 2**63, 2**200, -(2**70), 1e300, "", "\udcff", "\0", "L1", "0", [], {}, [""]])
    | ANYTHING
)
NAMES = sorted({name for fields in REQUESTS.values() for name in fields.__annotations__})
VERBS = sorted(set(REQUESTS) - {"stop", "exclude"})
ASKED = st.fixed_dictionaries({}, optional=dict.fromkeys(WIRE, ODD)) | ODD
MESSAGES = st.fixed_dictionaries(
    {"do": st.sampled_from(VERBS) | ODD},
    optional={**dict.fromkeys(NAMES, ODD), "request": ASKED, "kind": st.sampled_from(["get", "acquire"]) | ODD},
)
PLAUSIBLE = st.fixed_dictionaries(
    {"do": st.just("acquire"), "kind": st.sampled_from(["get", "acquire", "reservation"]), "wait": st.just(0)},
    optional={"request": ASKED, "note": ODD, "owner": ODD, "id": ODD},
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=MESSAGES | PLAUSIBLE)
def test_wrong_types_in_every_field_are_answered_with_an_error_or_a_sense(attacked: Site, message: Any) -> None:
    with attacked.raw() as sender:
        body = json.dumps({"v": 1, **message}).encode()
        sender.socket.sendall(framed(body))
        sender.socket.sendall(pack({"v": 1, "do": "ping"}))
        while True:
            answer = sender.receive()
            assert "The broker failed" not in answer.get("error", {}).get("what", ""), message
            if "uptime" in (answer.get("ok") or {}):
                break
        sender.send("release", mine=True)
        sender.receive()


def test_text_that_is_no_text_does_not_reach_others(attacked: Site) -> None:
    with attacked.raw() as sender:
        body = b'{"v":1,"do":"acquire","kind":"acquire","request":{"gpus":1},"note":"\\ud800"}'
        sender.socket.sendall(framed(body))
        assert sender.receive()["error"]["code"] == "protocol"
        served(attacked)


@pytest.mark.parametrize("note", ["\x1b[2J\x1b]0;owned\x07", "a\nb", "ünï → 漢字", "\udcff", "x" * 1000])
def test_a_note_cannot_harm_whoever_looks(attacked: Site, note: str) -> None:
    with attacked.raw() as sender:
        sender.acquire(1, 0, note=note)
        id = sender.granted()["id"]
        for words in (("status",), ("events",), ("status", "--json")):
            done = attacked.run(*words)
            assert done.returncode == 0, done.stderr
            assert "\x1b" not in done.stdout
        sender.ask("release", what=[id])
    assert attacked.run("events").returncode == 0


def test_thousands_of_connections_of_one_user_are_limited_and_others_wait_little(attacked: Site) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    held: list[Raw] = []
    try:
        for _ in range(2000):
            held.append(attacked.raw())
        wait_until(lambda: _turned_away(held[-1]))
        reply = held[-1].receive()
        assert reply["error"]["code"] == "too-much"
        for raw in held[:200]:
            raw.close()
        wait_until(lambda: _welcome(attacked))
        assert served(attacked) < 15
    finally:
        for raw in held:
            raw.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_until(lambda: _welcome(attacked))


def _turned_away(raw: Raw) -> bool:
    return bool(raw.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))


def _welcome(site: Site) -> bool:
    with site.raw() as raw:
        try:
            return "ok" in raw.ask("ping")
        except OSError:
            return False


def test_a_flood_of_questions_does_not_keep_others_from_being_served(attacked: Site) -> None:
    flood = pack({"v": 1, "do": "status"}) * 2000
    senders = [attacked.raw() for _ in range(20)]
    try:
        for sender in senders:
            sender.socket.setblocking(False)
            try:
                sender.socket.send(flood)
            except BlockingIOError:
                continue
        assert served(attacked) < 15
    finally:
        for sender in senders:
            sender.close()
    served(attacked)


def test_a_client_that_never_reads_is_cut_off(attacked: Site) -> None:
    with attacked.raw() as deaf:
        deaf.socket.settimeout(60)
        question = pack({"v": 1, "do": "status"}) * 100
        with pytest.raises(OSError):  # noqa: PT012  # whichever of them finds the connection closed
            for _ in range(10_000):
                deaf.socket.sendall(question)
    served(attacked)


def test_requests_of_one_user_are_limited(site: Site) -> None:
    site.holder("-n", "4")
    with site.raw() as greedy:
        for _ in range(2001):
            greedy.acquire()
        answers = [greedy.receive() for _ in range(2001)]
        refused = [answer for answer in answers if "error" in answer]
        assert [answer["error"]["code"] for answer in refused] == ["too-much"]
    wait_until(lambda: not site.status()["line"])
