"""Messages survive being cut into any pieces, and what is no message is refused with one kind of error."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulease.errors import ProtocolError
from gpulease.model.request import read_request
from gpulease.model.values import Request
from gpulease.protocol.check import check
from gpulease.protocol.wire import HEAD, LIMIT, Unpacker, pack

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
MESSAGES = st.dictionaries(TEXT, VALUES, max_size=5)


@settings(max_examples=40, deadline=None)
@given(messages=st.lists(MESSAGES, max_size=5), data=st.data())
def test_messages_cut_into_any_pieces_come_out_whole_and_in_order(messages: list[Any], data: st.DataObject) -> None:
    stream = b"".join(pack(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    unpacker, seen = Unpacker(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        seen += unpacker.feed(stream[begin:end])
    assert seen == messages
    assert not unpacker.pending


@given(message=MESSAGES)
def test_a_message_is_what_json_makes_of_it(message: Any) -> None:
    assert json.loads(pack(message)[HEAD:]) == message
    spaced = json.dumps(message, indent=1).encode()
    assert Unpacker().feed(len(spaced).to_bytes(HEAD, "big") + spaced) == [message]


@settings(max_examples=40, deadline=None)
@given(message=MESSAGES, missing=st.integers(1, 200))
def test_a_message_that_is_not_complete_is_pending_and_nothing_comes_out(message: Any, missing: int) -> None:
    whole = pack(message)
    unpacker = Unpacker()
    assert unpacker.feed(whole[: max(1, len(whole) - missing)]) == []
    assert unpacker.pending


@given(data=st.binary(max_size=200))
def test_any_bytes_are_messages_or_one_kind_of_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert all(isinstance(message, dict) for message in Unpacker().feed(data))


def test_a_long_announcement_is_refused_before_anything_is_kept() -> None:
    for length in (LIMIT + 1, 2**32 - 1):
        with pytest.raises(ProtocolError, match="announced"):
            Unpacker().feed(struct.pack(">I", length))


def test_the_limit_is_what_may_be_sent() -> None:
    room = LIMIT - len(json.dumps({"x": ""}, separators=(",", ":")))
    whole = pack({"x": "a" * room})
    assert len(whole) == HEAD + LIMIT
    assert Unpacker().feed(whole) == [{"x": "a" * room}]
    with pytest.raises(ProtocolError):
        pack({"x": "a" * (room + 1)})


def test_a_file_name_that_is_not_utf_8_survives() -> None:
    name = b"/data/\xff\xfe".decode("utf-8", "surrogateescape")
    assert Unpacker().feed(pack({"name": name})) == [{"name": name}]


NAMES = st.lists(TEXT, max_size=2).map(tuple)
REQUESTS = st.builds(
    Request,
    gpus=st.integers(1, 1024),
    memory=st.none(),
    not_before=st.none() | st.floats(0, 1e10),
    models=NAMES,
    devices=NAMES,
    exclude=NAMES,
    min_memory=st.none() | st.integers(0, 2**50),
    max_leases=st.none() | st.integers(0, 100),
    priority=st.integers(-1000, 1000),
    duration=st.none() | st.floats(1e-6, 1e9),
    pack=st.none(),
    beside_outside=st.just(False),  # only with memory
)


@given(request=REQUESTS)
def test_a_request_is_the_same_on_both_sides(request: Request) -> None:
    (message,) = Unpacker().feed(pack({"request": request._asdict()}))
    assert read_request(message["request"]) == request


def test_a_verb_that_nobody_knows_and_a_missing_one_are_refused() -> None:
    for message in ({"v": 1}, {"v": 1, "do": "dance"}, {"v": 1, "do": None}, {"v": 9, "do": "ping"}, {}):
        with pytest.raises(ProtocolError):
            check(message)
