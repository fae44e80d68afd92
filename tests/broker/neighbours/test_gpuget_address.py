"""Where gpuget's Redis is: what is understood, and that no password is repeated."""

from __future__ import annotations

import pytest

from gpulease.broker.neighbours.gpuget_script import CONSIDERED, Picture, Share, Taker
from gpulease.errors import UsageError
from gpulease.model.gpuget_address import read_address


@pytest.mark.parametrize(
    ("text", "url", "prefix", "shown"),
    [
        ("redis://host", "redis://host", "GPU", "redis://host:6379/0"),
        ("redis://host:7/3?prefix=G", "redis://host:7/3", "G", "redis://host:7/3"),
        ("rediss://:word@host/1", "rediss://:word@host/1", "GPU", "rediss://host:6379/1"),
        ("redis://me:word@[::1]:7/0?prefix=G&ssl_ca_certs=x", "redis://me:word@[::1]:7/0?ssl_ca_certs=x", "G", None),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock?db=2", "GPU", "unix:///run/redis.sock"),
    ],
)
def test_an_address_is_read_and_shown_without_its_password(text: str, url: str, prefix: str, shown: str | None) -> None:
    address = read_address(text)
    assert (address.text, address.url, address.prefix) == (text, url, prefix)
    assert shown is None or address.shown == shown
    assert "word" not in address.shown
    assert "word" not in text or "word" in address.secrets


@pytest.mark.parametrize(
    "text",
    [
        "http://:word@host",
        "word",
        "redis://",
        "redis://:word/x@host",
        "redis://host/word",
        "unix://",
        "redis://h/0?word",
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_address(text)
    assert "word" not in str(refused.value)


def picture(idle: set[int], ours: set[int], held: set[int]) -> Picture:
    everything = frozenset(idle | ours | held)
    return Picture(frozenset(idle), everything, frozenset(ours), dict.fromkeys(held, Taker()), True)


def test_an_offer_is_kept_while_it_is_wanted_or_was_not_considered_yet() -> None:
    share = Share().told([0], [1]).saw(picture(set(), {0, 1, 2}, {3}), 10.0)
    assert share.stay(10.0) == {0, 1, 2}
    assert share.due() == 10.0 + CONSIDERED
    assert share.stay(10.0 + CONSIDERED) == {0, 1}
    assert share.alone().stay(10.0) == {0}


def test_as_many_stand_in_the_line_as_are_wanted_and_not_offered() -> None:
    share = Share().told([], [1, 2, 3])
    assert share.waiting(picture(set(), set(), {1, 2, 3})) == 3
    assert share.waiting(picture({0}, set(), {1, 2, 3})) == 0
    seen = picture(set(), {0}, {1, 2, 3})
    assert share.saw(seen, 10.0).waiting(seen) == 2
    assert share.claim([0]).saw(seen, 10.0).waiting(seen) == 2
    assert share.claim([1]).saw(picture(set(), {1}, {2, 3}), 10.0).waiting(seen) == 2
