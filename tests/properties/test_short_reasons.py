"""Every reason has a short form that fits a table, whatever the ids and numbers in it, and its whole sentence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.planner.reasons import LONGEST, SENTENCES, SHORT_FORMS, Reason, Value

WORDS = st.text(max_size=60)
COUNTS = st.integers(0, 1 << 62)
AMOUNT = {"gpus": COUNTS, "memory": st.none() | COUNTS}
SECONDS = st.floats(0, 1e12)
SOME = st.lists(WORDS, min_size=1, max_size=9).map(tuple)
LIMIT: dict[str, st.SearchStrategy[Value]] = {
    "scope": st.sampled_from(("user", "group", "priority")),
    "name": WORDS,
    "what": st.sampled_from(("gpus", "shares")),
    "most": COUNTS,
    "used": st.floats(0, 1e18),
}
EXPECTED = {"expected": st.none(), "seconds": st.none() | SECONDS, "latest": SECONDS}
OVERTAKEN: dict[str, st.SearchStrategy[Value]] = {"shorter": st.lists(WORDS, max_size=9).map(tuple), "turn": SECONDS}
FIELDS: dict[str, Mapping[str, st.SearchStrategy[Value]]] = {
    "blocked": {"text": WORDS, "short": WORDS},
    "closed": {"text": WORDS, "short": WORDS},
    "capped": {"most": COUNTS, "running": COUNTS},
    "no-slot": {"most": COUNTS, "running": COUNTS},
    "not-yet": {"not_before": SECONDS, "seconds": SECONDS},
    "impossible": {**AMOUNT, "most": COUNTS, "hosts": st.integers(1, 9)},
    "over-limit": {**AMOUNT, **LIMIT},
    "quota": LIMIT,
    "holding": {"devices": SOME, **EXPECTED},
    "held": {**AMOUNT, "holders": st.lists(WORDS, max_size=9).map(tuple), "doubted": st.none() | WORDS},
    "unavailable": {**AMOUNT, "out_of_reach": SOME},
    "busy": {
        **AMOUNT,
        "free": COUNTS,
        "crowded": st.lists(WORDS, max_size=9).map(tuple),
        "matching": COUNTS,
        **EXPECTED,
        **OVERTAKEN,
    },
}
REASONS = st.one_of(*(st.builds(Reason, st.just(code), st.fixed_dictionaries(dict(FIELDS[code]))) for code in FIELDS))
SIZED = {"gpus": 1, "memory": 6 << 30}
WHOLE = {"gpus": 4, "memory": None}
USER: dict[str, Value] = {"scope": "user", "name": "ada", "what": "gpus", "most": 2, "used": 1.5}


def test_every_reason_is_tried_here() -> None:
    assert FIELDS.keys() == SENTENCES.keys() == SHORT_FORMS.keys()


@given(REASONS)
def test_a_short_form_fits_and_says_something(reason: Reason) -> None:
    assert 0 < len(reason.short) <= LONGEST == 24
    assert reason.short == reason.short.strip()
    assert "\n" not in reason.short


@pytest.mark.parametrize(
    ("reason", "short", "sentence"),
    [
        (
            Reason("busy", {**WHOLE, "free": 2, "crowded": (), "matching": 8, "seconds": 300.0, "latest": 7200.0}),
            "needs 4, 2 free",
            "It wants 4 devices of one host; 2 of 8 are free, likely in 5 min, 9 times in 10 within 2 h.",
        ),
        (
            Reason(
                "busy",
                {
                    **SIZED,
                    "free": 0,
                    "crowded": (),
                    "matching": 8,
                    "seconds": None,
                    "shorter": ("J1", "J2", "J3", "J4"),
                    "turn": 60.0,
                },
            ),
            "needs 6G, 0B free",
            "It wants 6G of one device; at most 0B is free on one. 4 shorter ones (J1, J2, J3 and 1 more) may go "
            "first, and no shorter one after 60 s.",
        ),
        (
            Reason("busy", {**SIZED, "free": 2 << 30, "crowded": (), "matching": 8, "seconds": None}),
            "needs 6G, 2G free",
            "It wants 6G of one device; at most 2G is free on one.",
        ),
        (
            Reason("busy", {**SIZED, "free": 9 << 30, "crowded": ("0", "3"), "matching": 8, "seconds": None}),
            "GPU 0 +1 has its leases",
            "It wants 6G of one device; on device 0, 3 no more leases are allowed.",
        ),
        (Reason("quota", USER), "quota gpus=2", "The limit of 2 GPUs for user ada is reached: 1.5 in use."),
        (
            Reason("over-limit", {**WHOLE, **USER}),
            "over quota gpus=2",
            "It wants 4 devices of one host. The limit of 2 GPUs for user ada never allows that.",
        ),
        (
            Reason("impossible", {**WHOLE, "most": 0, "hosts": 1}),
            "no such GPU",
            "No device here matches what it asks for: its name, devices or memory.",
        ),
        (
            Reason("impossible", {**WHOLE, "most": 2, "hosts": 1}),
            "needs 4, has 2",
            "It wants 4 devices, and this machine has 2 that match.",
        ),
        (
            Reason("impossible", {**WHOLE, "most": 2, "hosts": 3}),
            "needs 4, has 2",
            "It wants 4 devices of one host, and no host has more than 2 that match.",
        ),
        (
            Reason("held", {**WHOLE, "holders": ("L18", "L20"), "doubted": None}),
            "kept for L18 +1",
            "It wants 4 devices of one host; free devices are held for L18, L20.",
        ),
        (
            Reason("holding", {"devices": ("0", "1"), "seconds": None}),
            "next, GPU 0 +1 kept",
            "Devices 0, 1 are held for it as they become free.",
        ),
        (
            Reason("unavailable", {**WHOLE, "out_of_reach": ("0 (outside)",)}),
            "GPU 0 outside",
            "It wants 4 devices of one host; out of reach are 0 (outside).",
        ),
        (
            Reason("unavailable", {**WHOLE, "out_of_reach": ("0 (outside)", "1 (lost)")}),
            "2 GPUs out of reach",
            "It wants 4 devices of one host; out of reach are 0 (outside), 1 (lost).",
        ),
        (Reason("not-yet", {"seconds": 7200.0}), "asked for in 2 h", "It asked to start later, in 2 h."),
        (
            Reason(
                "busy", {"gpus": 1, "memory": 1 << 62, "free": 1 << 50, "crowded": (), "matching": 1, "seconds": None}
            ),
            "needs 4E, 1P free",
            "It wants 4.295e+09G of one device; at most 1.049e+06G is free on one.",
        ),
    ],
)
def test_a_reason_says_the_same_shortly_and_whole(reason: Reason, short: str, sentence: str) -> None:
    assert (reason.short, reason.sentence) == (short, sentence)
