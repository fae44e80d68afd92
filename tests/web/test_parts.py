"""The parts of the page: nothing of a user's becomes an element, and only what changed is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.render.times import clock
from gpulease.web.cards import colours, day_rows, join, state_word, tag
from gpulease.web.fragments import expected, sections
from gpulease.web.hub import difference
from gpulease.web.job_watch import LONGEST, MOST, LogText, WrittenLines
from gpulease.web.picture import PagePicture, Viewer


@given(st.text())
def test_no_text_becomes_an_element_or_leaves_its_attribute(text: str) -> None:
    shown = tag("p", text, title=text)
    inside = shown.removeprefix('<p title="').removesuffix("</p>")
    assert inside.count('"') == 1  # the end of the attribute
    assert inside.count("<") == 0
    assert inside.count(">") == 1


def test_control_characters_are_not_shown() -> None:
    assert tag("b", "a\x1b[31m\x00\u202eb") == "<b>a [31m  b</b>"


def test_elements_nest_and_names_are_attributes() -> None:
    assert join(tag("td", tag("b", "x"), class_="a", aria_label="l", hidden=True, title=None)) == (
        '<td class="a" aria-label="l" hidden><b>x</b></td>'
    )


def test_only_what_changed_is_sent_and_the_order_where_it_did() -> None:
    before = {"a": tag("b", "1"), "b": tag("b", "2")}
    assert difference(before, dict(before)) == {}
    assert difference(before, {**before, "b": tag("b", "3")}) == {"rows": {"b": "<b>3</b>"}}
    assert difference(before, {"b": before["b"]}) == {"rows": {}, "order": ["b"]}
    assert difference(before, {"b": before["b"], "a": before["a"]}) == {"rows": {}, "order": ["b", "a"]}


def test_users_have_colours_of_their_own_as_far_as_there_are_enough() -> None:
    users = [f"user{number}" for number in range(11)]
    assert len(set(colours(users).values())) == 11
    assert colours(users) == colours(reversed(users))
    assert len(colours([*users, "one", "more"])) == 13


def test_an_expected_start_is_told_and_none_where_nobody_can_say() -> None:
    assert expected({"expected_start": 700.0}, 100.0) == "in 10min"
    assert expected({"expected_start": 700.0, "expected_latest": 7300.0}, 100.0) == "in 10min-2h"
    assert expected({"expected_start": None}, 100.0) == ""
    assert expected({}, 100.0) == ""


def idle_minutes(known: float, idle: float, since: float = 0.0) -> PagePicture:
    """Of ten minutes; the last holder has it from `since` on."""
    holder = {"user": "ada", "outside": False, "known": known / 10, "idle": idle / 10}
    minutes = tuple({"uuid": "GPU-1", "time": 60.0 * number, "holders": [holder]} for number in range(10))
    return PagePicture({}, leases=({"id": "L1", "since": since},), minutes=minutes)


def test_a_held_gpu_is_idle_only_where_it_is_known_to_have_done_nothing_for_minutes() -> None:
    device = {"uuid": "GPU-1", "state": "leased", "leases": ["L1"]}
    assert state_word(device, idle_minutes(400, 400)) == "idle"
    assert state_word(device, idle_minutes(400, 300)) == "held"
    assert state_word(device, idle_minutes(100, 100)) == "held"
    assert state_word(device, PagePicture({})) == "held"
    assert state_word(device, idle_minutes(600, 600, since=200)) == "idle"
    assert state_word(device, idle_minutes(600, 600, since=400)) == "held"  # the idle minutes were somebody else's
    assert state_word({**device, "state": "free"}, idle_minutes(400, 400)) == "free"


def test_a_cell_of_the_day_is_coloured_by_its_holder_and_hatched_where_it_did_nothing() -> None:
    hours = [{"uuid": "GPU-1", "time": 7200.0, "holders": [holder("ada", idle=3600)]}]
    hours += [{"uuid": "GPU-1", "time": 3600.0, "holders": [holder("ada"), holder("bob")]}]
    hours += [{"uuid": "GPU-1", "time": 0.0, "holders": [holder("eve", outside=True)]}]
    device = {"uuid": "GPU-1", "label": "0"}
    row = day_rows(PagePicture({}, devices=(device,), hours=tuple(hours), time=10_800.0))["gpu-0"]
    ada = colours(["ada", "bob"])["ada"]
    assert f'class="{ada} idle part-4"' in row
    assert f'class="{ada} part-4"' in row
    assert 'class="outside part-4"' in row
    assert "held by ada 100%, busy 50%" in row
    assert row.count('class="nobody"') == 21


def holder(user: str, idle: float = 0.0, outside: bool = False) -> dict[str, object]:
    busy = 0.0 if idle else 1800.0
    return {"user": user, "outside": outside, "held": 3600.0, "known": 3600.0, "busy": busy, "idle": idle}


# ---------------------------------------------------------------------- a job's output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def reader(path: Path) -> LogText:
    return LogText(str(path), path.stat().st_uid)


def test_escapes_and_bars_that_were_written_over_are_left_out() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b(B\n10%\r20%\r30%\nend\r\n"
    assert WrittenLines().add(text) == "red x\n30%\nend\n"


PIECES = st.sampled_from(["a", "bc", "\n", "\r", "\x1b", "[", "]", "0;", "m", "\x07", "\\", "(", "B", "\x01"])


@given(st.lists(PIECES))
def test_output_is_the_same_however_it_is_cut(pieces: list[str]) -> None:
    whole, cut = WrittenLines(), WrittenLines()
    assert whole.add("".join(pieces)) == "".join(map(cut.add, pieces))
    assert whole.tail == cut.tail


def test_a_bar_of_progress_stays_small_and_its_last_state_is_shown() -> None:
    bar = WrittenLines()
    for percent in range(101):
        assert bar.add(f"\r\x1b[3{percent % 8}m{percent}%" + " " * 3000) == ""
    assert bar.tail.rstrip() == "100%"
    assert len(bar._rest) < 4000
    bar.add("x" * 2 * LONGEST)
    assert len(bar.tail) == LONGEST


def test_a_line_that_is_written_over_is_told_anew(log: Path) -> None:
    log.write_text("begin\n10%")
    read = reader(log)
    assert read.read()
    assert (read.text, read.tail) == ("begin\n", "10%")
    for more, text, tail in (
        ("\r20", "begin\n", "20"),
        ("%\x1b[", "begin\n", "20%"),
        ("0m\nend", "begin\n20%\n", "end"),
    ):
        with log.open("a") as file:
            file.write(more)
        assert read.read()
        assert (read.text, read.tail, read.shown) == (text, tail, text + tail)


def test_what_is_added_is_read_and_the_rest_is_not_read_again(log: Path) -> None:
    log.write_text("one\n")
    read = reader(log)
    assert read.read()
    assert not read.read()
    with log.open("a") as file:
        file.write("two é\n")
    assert read.read()
    assert read.text == "one\ntwo é\n"


def test_a_letter_that_is_half_written_waits_for_its_other_half(log: Path) -> None:
    log.write_bytes(b"caf\xc3")
    read = reader(log)
    read.read()
    with log.open("ab") as file:
        file.write(b"\xa9\n")
    read.read()
    assert read.text == "café\n"


def test_of_a_log_of_a_gigabyte_only_the_end_is_read_and_kept(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    read = reader(log)
    assert read.read()
    assert read.text.endswith("\nthe end\n")
    assert len(read.text) <= MOST
    assert read.size > 1 << 30
    with log.open("ab") as file:
        file.truncate((1 << 30) + (64 << 20))
        file.seek(0, 2)
        file.write(b"more\n")
    read.read()
    assert read.text.endswith("more\n")
    assert len(read.text) <= MOST


def test_a_log_that_was_begun_anew_is_shown_anew(log: Path) -> None:
    log.write_text("of the first run, and longer\n")
    read = reader(log)
    read.read()
    log.write_text("second\n")
    read.read()
    assert read.text == "second\n"
    assert read.past > 0  # so a viewer is told everything


def test_a_page_whose_broker_is_gone_says_since_when_and_calls_nothing_free() -> None:
    rows: tuple[dict[str, Any], ...] = ({"uuid": "GPU-1", "state": "free", "leases": [], "instance": None, "index": 0},)
    picture = PagePicture({"simulated": False}, devices=rows, trouble="The broker ended.", time=100.0, heard=40.0)
    assert state_word(rows[0], picture) == "unknown"
    assert picture.document()["devices"][0]["state"] == "unknown"
    reply = sections(picture._replace(devices=()), Viewer(""))["summary"]["trouble"]
    assert clock(40.0, 100.0, seconds=True) in reply
    assert "The broker ended." in reply
