"""What the keys of `top` do, by their names and by their bytes."""

from __future__ import annotations

from support.top_rows import EVERYTHING, NOW

from gpulease.tui.entries import TableEntry, entries
from gpulease.tui.screen import decoded
from gpulease.tui.view import Action, View, press, with_valid_selection


def rows_of(*keys: str) -> list[TableEntry]:
    whole = entries(EVERYTHING, NOW)
    return [entry for entry in whole if not keys or entry.key in keys]


def typed(view: View, *keys: str) -> tuple[View, Action | None]:
    action = None
    for key in keys:
        view, action = press(view, key, rows_of(), None, 10)
    return view, action


def test_a_job_is_killed_only_after_a_yes() -> None:
    asked, action = typed(View(), "x")
    assert action is None
    assert asked.question is not None
    assert asked.question.text == "kill job 3 of ada (python train.py)?"
    assert typed(asked, "y")[1] == Action("kill", 3)
    for key in ("n", "enter", "escape", "x", "q"):
        after, action = typed(asked, key)
        assert (action, after.question, after.message) == (None, None, "nothing done")


def test_only_jobs_are_killed() -> None:
    assert typed(View(), "j", "x")[0].message == "L2 is not a job: `gpulease release L2` releases it"
    assert typed(View(), "j", "j", "x")[0].question is None


def test_pause_is_resume_for_what_is_held() -> None:
    assert typed(View(selected="J5"), "p", "y")[1] == Action("resume", 5)
    assert typed(View(), "p", "y")[1] == Action("pause", 3)


def test_letters_of_a_filter_are_no_commands() -> None:
    view, action = typed(View(), "/", "q", "x", "backspace", "y", "enter")
    assert (view.filter, view.typing, action) == ("qy", False, None)
    assert typed(view, "escape")[0].filter == ""
    assert typed(View(), "q")[1] == Action("quit")


def test_when_the_selected_one_goes_its_neighbour_is_selected() -> None:
    view = with_valid_selection(View(selected="L9"), rows_of())
    assert (view.selected, view.at) == ("L9", 4)
    assert with_valid_selection(view, rows_of("J3", "L2", "77", "J4", "J5")).selected == "J5"
    assert with_valid_selection(view, []).selected == ""


def test_q_goes_back_from_a_page_before_it_leaves() -> None:
    view, _ = typed(View(), "enter")
    assert (view.page, view.opened) == ("entry", "J3")
    view, action = typed(view, "up", "q")
    assert (view.page, view.scroll, action) == ("table", 0, None)


def test_keys_are_known_by_their_bytes_also_in_parts() -> None:
    table = {b"\x1b[A": "up", b"\x1bOP": "f1"}
    assert decoded("aé\r\x7f".encode(), table) == (["a", "é", "enter", "backspace"], b"")
    assert decoded(b"\x1b[A\x1bOPq", table) == (["up", "f1", "q"], b"")
    assert decoded(b"\x1b[99;5~q", table) == (["q"], b"")  # one that nobody knows
    for part in (b"\x1b", b"\x1b[", b"\x1bO"):
        assert decoded(b"a" + part, table) == (["a"], part)
    assert decoded(b"\x1bq", table) == (["escape", "q"], b"")
