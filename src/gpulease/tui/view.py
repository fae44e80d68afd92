"""PURE: what is looked at, and what each key does to it. A key that is to change a job becomes an `Action`."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from gpulease.tui.entries import COLUMN_STEPS as STEPS
from gpulease.tui.entries import SORTS, TableEntry

GPU_ROWS = ("some", "all", "none")
LONGEST_FILTER = 200
RESUMED = ("paused", "held")
Value = TypeVar("Value")
UP, DOWN = ("up", "k"), ("down", "j")


class Action(NamedTuple):
    """What the broker is asked to do to a job, or `quit`."""

    verb: str
    job: int = 0


class Question(NamedTuple):
    action: Action
    text: str


class View(NamedTuple):
    page: str = "table"  # or "entry", "hosts" or "help"
    selected: str = ""  # the key of an entry
    at: int = 0  # where it stood: if it goes, another one there is selected
    opened: str = ""  # the key of the entry whose page is shown
    filter: str = ""
    typing: bool = False
    sort: str = SORTS[0]
    reverse: bool = False
    mine: bool = False
    ended: bool = True
    gpus: str = GPU_ROWS[0]
    step: int = STEPS[0]
    scroll: int = 0  # lines of a log between its end and what is shown, 0 follows it; of hosts those above
    question: Question | None = None
    message: str = ""


def with_valid_selection(view: View, rows: list[TableEntry]) -> View:
    """With a row selected that is there."""
    if not rows:
        return view._replace(selected="", at=0)
    keys = [row.key for row in rows]
    at = keys.index(view.selected) if view.selected in keys else min(view.at, len(keys) - 1)
    return view._replace(selected=keys[at], at=at)


def press(
    view: View, key: str, rows: list[TableEntry], opened: TableEntry | None, page: int
) -> tuple[View, Action | None]:
    """The view after a key. `rows` are those that the table shows, `page` how many lines a page has."""
    view = with_valid_selection(view._replace(message=""), rows)
    if view.question is not None:
        asked, view = view.question, view._replace(question=None)
        if key in ("y", "Y"):
            return view, asked.action
        return view._replace(message="nothing done"), None
    if view.typing:
        return _type(view, key), None
    if key in ("q", "f10"):
        return (view, Action("quit")) if view.page == "table" else (view._replace(page="table", scroll=0), None)
    if view.page == "help":
        return view._replace(page="table"), None
    if view.page == "hosts":
        return _move_hosts(view, key, page), None
    row = opened if view.page == "entry" else next((row for row in rows if row.key == view.selected), None)
    if key in ("x", "f9", "p"):
        return _ask(view, key, row), None
    if key in ("?", "f1"):
        return view._replace(page="help"), None
    if key == "h":
        return view._replace(page="hosts", scroll=0), None
    return (_move_log(view, key, page) if view.page == "entry" else _move(view, key, rows, page)), None


def _type(view: View, key: str) -> View:
    """The filter, letter by letter."""
    if key == "enter":
        return view._replace(typing=False)
    if key == "escape":
        return view._replace(typing=False, filter="")
    if key == "backspace":
        return view._replace(filter=view.filter[:-1])
    if len(key) == 1 and key.isprintable():
        return view._replace(filter=(view.filter + key)[:LONGEST_FILTER])
    return view


def _ask(view: View, key: str, row: TableEntry | None) -> View:
    if row is None:
        return view._replace(message="nothing is selected")
    if row.job is None:
        step = f"`gpulease release {row.key}` releases it" if row.group == "holding" else "gpulease did not start it"
        return view._replace(message=f"{row.key} is not a job: {step}")
    verb = "kill" if key != "p" else "resume" if row.state in RESUMED else "pause"
    text = f"{verb} job {row.job} of {row.user} ({row.what})?"
    return view._replace(question=Question(Action(verb, row.job), text))


def _move(view: View, key: str, rows: list[TableEntry], page: int) -> View:
    steps = {**dict.fromkeys(UP, -1), **dict.fromkeys(DOWN, 1), "pageup": -page, "pagedown": page}
    steps |= {"home": -len(rows), "end": len(rows)}
    if key in steps:
        at = max(0, min(len(rows) - 1, view.at + steps[key]))
        return view._replace(selected=rows[at].key, at=at) if rows else view
    if key == "enter" and view.selected:
        return view._replace(page="entry", opened=view.selected, scroll=0)
    if key in ("/", "f3", "f4"):
        return view._replace(typing=True)
    if key == "escape":
        return view._replace(filter="", mine=False)
    if key in ("s", "f6"):
        sort = _next(SORTS, view.sort)
        return view._replace(sort=sort, message=f"sorted by {sort}")
    return _switch(view, key)


def _switch(view: View, key: str) -> View:
    switched = {
        "r": view._replace(reverse=not view.reverse),
        "m": view._replace(mine=not view.mine),
        "e": view._replace(ended=not view.ended),
        "g": view._replace(gpus=_next(GPU_ROWS, view.gpus)),
        "t": view._replace(step=_next(STEPS, view.step)),
    }
    return switched.get(key, view)


def _move_log(view: View, key: str, page: int) -> View:
    if key in ("escape", "left"):
        return view._replace(page="table", scroll=0)
    steps = {**dict.fromkeys(UP, 1), **dict.fromkeys(DOWN, -1), "pageup": page, "pagedown": -page}
    steps |= {"home": 1 << 30, "end": -view.scroll, "enter": -view.scroll}
    return view._replace(scroll=max(0, view.scroll + steps.get(key, 0)))


def _move_hosts(view: View, key: str, page: int) -> View:
    if key in ("?", "f1"):
        return view._replace(page="help", scroll=0)
    if key in ("h", "escape", "left"):
        return view._replace(page="table", scroll=0)
    steps = {**dict.fromkeys(UP, -1), **dict.fromkeys(DOWN, 1), "pageup": -page, "pagedown": page}
    steps |= {"home": -view.scroll, "end": 1 << 30}
    return view._replace(scroll=max(0, view.scroll + steps.get(key, 0)))


def _next(values: tuple[Value, ...], now: Value) -> Value:
    return values[(values.index(now) + 1) % len(values)]
