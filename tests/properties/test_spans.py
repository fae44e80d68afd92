"""Adding up loses nothing: hours have what their minutes had, and every way to look at usage has the same total."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpulease.broker.edge.history import use_rows
from gpulease.broker.edge.minutes import MINUTE, REACH, Measured, Minutes
from gpulease.broker.store.history import HistoryFile
from gpulease.model.spans import (
    KEPT,
    MAX_LABELS,
    Activity,
    DeviceName,
    Row,
    Span,
    SpanHolder,
    SpanUse,
    added,
    asked,
    joined,
    shares,
)
from gpulease.render.usage import BY, add_up

NOW = 1_800_000_000
TIMES = st.integers(0, 60_000)
HOLDERS = st.builds(
    SpanHolder,
    st.sampled_from(["ada", "grace", ""]),
    st.sampled_from([(), ("users",), ("users", "lab")]),
    st.sampled_from([None, "sweep", "=1+1"]),
    st.booleans(),
)
USES = st.builds(SpanUse, TIMES, TIMES, TIMES, TIMES)
MEAN = st.none() | st.integers(0, 10**6)
SEEN = st.builds(Activity, TIMES, TIMES, TIMES, TIMES, MEAN, MEAN, MEAN)
SPANS = st.builds(Span, SEEN, st.dictionaries(HOLDERS, USES, max_size=4))
UUIDS = st.sampled_from(["GPU-a", "GPU-b"])
ROWS = st.lists(st.tuples(st.integers(0, 180).map(lambda minute: NOW + 60 * minute), UUIDS, SPANS), max_size=12)


def day(moment: float) -> str:
    return str(moment // 86400)


def totals(rows: Iterable[Row]) -> dict[Any, list[int]]:
    """Milliseconds by device, and by device and holder."""
    found: dict[Any, list[int]] = {}
    for _, uuid, span in rows:
        times: dict[Any, tuple[int, ...]] = {
            (uuid,): span.seen[:4],
            **{(uuid, holder): use for holder, use in span.uses.items()},
        }
        for key, values in times.items():
            found[key] = [one + more for one, more in zip(found.get(key, [0] * 4), values, strict=True)]
    return found


@given(ROWS, st.sampled_from([60, 300, 600, 3600, 86400]))
def test_longer_steps_have_what_the_shorter_had(rows: list[Row], step: int) -> None:
    together = joined(rows, step)
    assert totals(together) == totals(rows)
    assert all(time % step == 0 for time, _, _ in together)
    assert len({(time, uuid) for time, uuid, _ in together}) == len(together)


@given(SPANS, SPANS)
def test_a_mean_lies_between_those_that_it_is_made_of(one: Span, other: Span) -> None:
    both = one.plus(other).seen
    for mine, theirs, mean in (
        (one.seen.memory, other.seen.memory, both.memory),
        (one.seen.power, other.seen.power, both.power),
    ):
        known = [value for value in (mine, theirs) if value is not None]
        assert (mean is None) == (not known)
        assert mean is None or min(known) <= mean <= max(known)


@settings(max_examples=25)
@given(ROWS)
def test_the_file_has_the_same_in_minutes_tens_and_hours(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(HistoryFile(f"{folder}/history.db")) as file:
        for time, uuid, span in rows:
            file.write({time: {uuid: span}}, {}, [DeviceName(uuid, uuid[-1], "A100")], 0)
        for step in KEPT:
            found, rest = file.read(step, NOW - 86400, NOW + 86400)
            assert rest is None
            assert totals(found) == totals(rows)
    with tempfile.TemporaryDirectory() as folder, closing(HistoryFile(f"{folder}/history.db")) as file:
        file.write({time: {uuid: span} for time, uuid, span in rows}, {}, [], 0)  # found again when it is opened anew
        file.close()
        last = {(time): (time, uuid, span) for time, uuid, span in rows}
        with closing(HistoryFile(f"{folder}/history.db")) as again:
            assert totals(again.read(3600, NOW - 86400, NOW + 86400)[0]) == totals(last.values())


@given(ROWS)
def test_usage_is_the_same_in_all_however_it_is_looked_at(rows: list[Row]) -> None:
    places = {uuid: DeviceName(uuid, str(at), "A100") for at, uuid in enumerate(("GPU-a", "GPU-b"))}
    uses = use_rows(joined(rows, 60), places, None)
    expected = add_up(uses, [], "user", day)[1]
    for by in BY:
        lines, total = add_up(uses, [], by, day)
        assert total == expected
        for name in ("held", "busy", "idle", "outside"):
            summed = sum(line[name] for line in lines)
            assert by == "group" or abs(summed - total[name]) < 0.01
    mine = use_rows(joined(rows, 60), places, "ada")
    assert {row["user"] for row in mine} <= {"ada"}
    assert add_up(mine, [], "user", day)[1]["held"] == next(
        (r["held"] for r in add_up(uses, [], "user", day)[0] if r["name"] == "ada"), 0
    )


@given(st.integers(0, 10**9), st.integers(1, 100))
def test_shares_are_even_and_are_the_whole(whole: int, number: int) -> None:
    parts = shares(whole, number)
    assert sum(parts) == whole
    assert max(parts) - min(parts) <= 1


@given(st.lists(st.integers(0, 1000), max_size=200))
def test_labels_have_a_bound_and_no_time_is_lost_for_it(numbers: list[int]) -> None:
    uses: dict[SpanHolder, SpanUse] = {}
    for number in numbers:
        uses = added(uses, {SpanHolder("ada", (), f"sweep-{number}"): SpanUse(held=1)})
    assert sum(use.held for use in uses.values()) == len(numbers)
    assert len(uses) <= MAX_LABELS + 1


@given(st.integers(0, 100 * 86400), st.integers(0, 100 * 86400), st.integers(0, 10**6))
def test_a_question_is_answered_in_whole_steps_that_are_still_kept(ago: int, until: int, step: int) -> None:
    begin, end = NOW - max(ago, until), NOW - min(ago, until)
    since, last, found, kept = asked(begin, end, step, NOW)
    assert since % found == last % found == found % kept == 0
    assert since <= max(begin, NOW - KEPT[3600])
    assert last >= end or last >= NOW
    assert KEPT[kept] >= min(NOW - begin, KEPT[3600])
    assert 60 <= found <= 86400


# What happens: a lease begins or ends, a sample comes, time passes.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from("ABC"), st.sampled_from(["x", "y"])),
        st.tuples(st.just("end"), st.sampled_from("ABC")),
        st.tuples(st.just("sample"), st.none() | st.integers(0, 100)),
        st.tuples(st.just("pass"), st.integers(1, 200_000)),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_device_is_held_for_as_long_as_there_is_a_lease_on_it(steps: list[Any]) -> None:
    minutes, at, expected = Minutes(), NOW * 1000, {"x": 0, "y": 0}
    held: dict[str, str] = {}
    watched_until = {"x": 0, "y": 0}
    known = {"x": 0, "y": 0}
    for what, *rest in steps:
        if what == "begin" and rest[0] not in held:
            held[rest[0]] = rest[1]
            minutes.lease_started(rest[0], [rest[1]], SpanHolder(rest[0]), at)
            watched_until[rest[1]] = 0
        elif what == "end":
            minutes.lease_ended(rest[0], at)
            held.pop(rest[0], None)
        elif what == "sample":
            minutes.devices_sampled({uuid: Measured(rest[0], 1 << 30, 5) for uuid in "xy"}, {}, at)
            watched_until = dict.fromkeys("xy", at + REACH)
        elif what == "pass":
            for uuid in "xy":
                expected[uuid] += rest[0] if uuid in held.values() else 0
                known[uuid] += max(0, min(at + rest[0], watched_until[uuid]) - at)
            at += rest[0]
    minutes.add_up(at)
    for uuid in "xy":
        spans = [span for (_, one), span in minutes.spans.items() if one == uuid]
        uses = [use for span in spans for use in span.uses.values()]
        assert sum(use.held for use in uses) == expected[uuid]
        assert sum(span.seen.watched for span in spans) == known[uuid]
        assert all(use.idle <= use.known <= use.held and use.busy <= use.known for use in uses)
        assert all(span.seen.watched <= MINUTE and sum(u.held for u in span.uses.values()) <= MINUTE for span in spans)
    taken, counts = minutes.take(at + 1)
    assert not minutes.spans
    minutes.put_back(taken, counts, 0)
    assert minutes.spans == taken
