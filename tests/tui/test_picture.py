"""What `top` shows: its table, its frame at every size, and the history of GPUs."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.top_rows import EVERYTHING, NOW, device, job, lease, seen, waiting

from gpulease.render.terminal import Terminal, width_of
from gpulease.tui.entries import MachineSeen, RecentLoad, chosen, columns, entries, ordered, past_utilization, sparkline
from gpulease.tui.layout import Scene, frame, output_window
from gpulease.tui.view import View

PAGES = ("table", "entry", "help")


def terminal(unicode: bool = True) -> Terminal:
    made = Terminal(io.StringIO())
    made.unicode = unicode
    return made


def scene(what: MachineSeen, **more: Any) -> Scene:
    return Scene(what, ordered(entries(what, NOW), "order", False), RecentLoad(), NOW, **more)


def text_of(lines: list[list[tuple[str, str]]]) -> str:
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


# -------------------------------------------------------------------- the table


def test_everybody_is_in_the_table_once_by_what_they_do() -> None:
    found = [(entry.group, entry.key, entry.state) for entry in entries(EVERYTHING, NOW)]
    assert found == [
        ("holding", "J3", "running"),
        ("holding", "L2", "reserved"),
        ("outside", "77", "outside"),
        ("line", "J4", "waiting"),
        ("line", "L9", "waiting"),
        ("held", "J5", "held"),
        ("ended", "J6", "failed"),
    ]


def test_what_waits_says_why_and_when() -> None:
    (entry,) = [entry for entry in entries(EVERYTHING, NOW) if entry.key == "J4"]
    assert (entry.why, entry.time, entry.gpus, entry.what) == ("needs 2", "in 10min", "(2)", "python train.py")


@pytest.mark.parametrize("width", [80, 200])
def test_a_range_of_starts_is_shown_whole(width: int) -> None:
    what = seen(
        [device(0)], line=[waiting(expected_start=NOW + 62 * 60, expected_latest=NOW + 4 * 3600)], line_length=1
    )
    assert "in 62min-4h " in text_of(frame(scene(what), View(), width, 24, terminal()))


def test_a_filter_keeps_what_has_every_word() -> None:
    found = entries(EVERYTHING, NOW)
    assert {entry.key for entry in chosen(found, "ADA train", None, True)} == {"J3", "J5", "J6"}
    assert {entry.key for entry in chosen(found, "", "bob", True)} == {"J4", "L9"}
    assert "J6" not in {entry.key for entry in chosen(found, "", None, False)}


def test_sorting_stays_within_the_groups() -> None:
    rows = entries(EVERYTHING, NOW)
    mixed = ordered(rows, "what", True)
    assert [entry.group for entry in mixed] == [entry.group for entry in rows]
    assert [entry.key for entry in mixed if entry.group == "line"] == ["L9", "J4"]


# -------------------------------------------------------------------- the picture


@given(st.integers(20, 260), st.integers(5, 80), st.sampled_from(PAGES), st.booleans(), st.integers(0, 500))
def test_a_frame_is_as_large_as_the_terminal_and_drives_nothing(
    width: int, height: int, page: str, unicode: bool, scroll: int
) -> None:
    view = View(page=page, opened="J3", scroll=scroll)
    shown = scene(EVERYTHING, entry=entries(EVERYTHING, NOW)[0], job=job(), output=("x" * 300, "", "日本" * 90) * 20)
    lines = frame(shown, view, width, height, terminal(unicode))
    assert len(lines) == height
    for line in lines:
        text = "".join(text for text, _ in line)
        assert width_of(text) <= width
        assert text.isprintable()


@pytest.mark.parametrize("width", [80, 200])
def test_what_matters_most_is_there_at_every_width(width: int) -> None:
    text = text_of(frame(scene(EVERYTHING), View(), width, 24, terminal()))
    for part in ("lab: 4 SIMULATED GPUs", "50%", "8.0G/80.0G", "J3 ada", "fell off the bus", "eve", "needs 2", "in 10"):
        assert part in text


def test_a_device_that_another_broker_holds_says_whose_it_is() -> None:
    held = device(1, state="outside", note="held through ada's own gpulease")
    used = device(2, state="outside")
    text = text_of(frame(scene(seen([held, used])), View(), 200, 20, terminal()))
    assert "held through ada's own gpulease" in text
    assert "memory in use, no process seen" in text


def test_a_narrow_terminal_does_without_some_columns() -> None:
    assert list(columns(45)) == ["GPU", "STATE", "UTIL", "MEMORY", "HOLDER"]
    assert {"NAME", "POWER"} < columns(140).keys()
    for width in range(30, 300):
        widths = columns(width)
        assert sum(widths.values()) + len(widths) - 1 <= width


def test_many_gpus_leave_room_for_the_table_and_are_all_shown_when_asked() -> None:
    shown = scene(seen([device(number) for number in range(16)], leases=[lease()]))
    text = text_of(frame(shown, View(), 80, 24, terminal()))
    assert "and 8 more, 8 of them free; g shows all" in text
    assert "holding GPUs: 1" in text
    assert " 15 free" in text_of(frame(shown, View(gpus="all"), 80, 24, terminal()))
    assert "A100" not in text_of(frame(shown, View(gpus="none"), 120, 24, terminal()))


def test_the_selected_line_is_always_on_the_screen() -> None:
    line = [waiting(f"L{number}") for number in range(100)]
    shown = scene(seen([device(0)], line=line, line_length=100))
    for at in (0, 50, 99):
        assert f">L{at} " in text_of(frame(shown, View(selected=f"L{at}"), 80, 24, terminal()))


def test_a_log_is_followed_until_it_is_scrolled() -> None:
    output = tuple(f"line {number}" for number in range(50))
    assert output_window(output, 0, 80, 3) == ["line 47", "line 48", "line 49"]
    assert output_window(output, 10, 80, 3) == ["line 37", "line 38", "line 39"]
    assert output_window(output, 10**6, 80, 3) == ["line 0", "line 1", "line 2"]
    assert output_window(("abcdef",), 0, 4, 3) == ["abcd", "ef"]


# -------------------------------------------------------------------- history


def test_history_is_the_mean_of_each_column_and_nothing_where_nothing_was_seen() -> None:
    history = RecentLoad()
    for second, percent in ((0, 100), (1, 0), (4, 30), (5, None)):
        history.add("a", NOW + second, percent)
    assert history.columns("a", 2, 4, NOW + 5) == [None, 50, None, 30]
    assert history.columns("b", 2, 2, NOW) == [None, None]
    assert sparkline([None, 0, 50, 100], terminal()) == " ▁▄█"
    assert sparkline([None, 0, 50, 100], terminal(False)) == " _-#"


def test_the_past_that_the_broker_kept_stands_before_what_was_seen() -> None:
    row = {"uuid": "a", "device": "0", "watched": 60.0}
    rows = [{**row, "time": NOW - 120, "utilization": 80.0}, {**row, "time": NOW - 60, "utilization": None}]
    history = RecentLoad()
    history.add("a", NOW, 10)
    history.begin(past_utilization(rows), NOW)
    assert history.columns("a", 60, 4, NOW) == [None, 80, None, 10]
    assert history.columns("a", 10, 13, NOW) == [80] * 6 + [None] * 6 + [10]
