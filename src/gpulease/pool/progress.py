"""A progress bar with rate, failures and GPUs. Rich is loaded only when one is asked for."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from gpulease.client.wait_notice import in_notebook, show_instead

REFRESH = 0.1  # seconds
LINE = 5.0  # seconds between lines, where there is no bar
# What becomes of an item: it was computed, it failed, its result was there already, or it was never done.
DONE, FAILED, STORED, DROPPED = "done", "failed", "stored", "dropped"


class Bar:
    def __init__(self, title: str | bool, iterables: tuple[Iterable[Any], ...], gpus: Callable[[], list[str]]) -> None:
        lengths = [len(each) for each in iterables if hasattr(each, "__len__")]  # type: ignore[arg-type]
        self._total = min(lengths) if lengths else None  # where that can be known
        self._ends: Counter[str] = Counter()
        self._gpus, self._open = gpus, True
        self._began = self._shown = time.monotonic()
        self._drawn = (_Lines if _without_widgets() else _Rich)(title if isinstance(title, str) else "", self._total)
        self._waits = ""  # the place in the line, and why
        self._leave_terminal = show_instead(self._show_waiting)

    @property
    def ended(self) -> int:
        """Items that nothing more will be heard of."""
        return self._ends.total()

    def advance(self, end: str) -> None:
        self._ends[end] += 1
        if time.monotonic() - self._shown >= REFRESH:
            self._shown = time.monotonic()
            self._show()

    def close(self) -> None:
        self._total = self._total or self.ended  # known now
        self._open = False
        self._leave_terminal()
        self._show()
        self._drawn.end()

    def _show_waiting(self, text: str) -> None:
        self._waits = text
        self._show()

    def _show(self) -> None:
        gpus = self._gpus()
        if self._open and not gpus and not self._ends[DONE]:
            self._began = time.monotonic()  # to wait for a GPU is no work
        waits = (self._waits or "waiting for a GPU") if self._open else ""
        text = summary(self._ends, self._total, time.monotonic() - self._began, self._open)
        where = f"GPU {','.join(gpus)}" if gpus else waits
        completed = self.ended - self._ends[DROPPED]
        self._drawn.show(completed, self._total, text, where)


class _Rich:
    def __init__(self, title: str, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        text_column = TextColumn("{task.fields[told]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), text_column)
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(title, total=total, told="waiting for a GPU")
        self._progress.start()

    def show(self, completed: int, total: int | None, text: str, where: str) -> None:
        from rich.markup import escape

        self._progress.update(self._task, completed=completed, total=total, told=f"{text} {escape(where)}")

    def end(self) -> None:
        self._progress.refresh()  # in a notebook `stop` does not
        self._progress.stop()


class _Lines:
    """In a notebook without ipywidgets, which Rich would need: a line now and then, and one at the end."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._line = title, ""
        self._printed = time.monotonic()

    def show(self, completed: int, total: int | None, text: str, where: str) -> None:
        plain = text.replace("[red]", "").replace("[/red]", "")
        self._line = f"{self._title} {completed}/{'?' if total is None else total} {plain} {where}".strip()
        if time.monotonic() - self._printed >= LINE:
            self._print()

    def end(self) -> None:
        self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        print(self._line, file=sys.stderr, flush=True)


def _without_widgets() -> bool:
    return in_notebook() and find_spec("ipywidgets") is None


def summary(ends: Mapping[str, int], total: int | None, elapsed: float, open: bool = True) -> str:
    """Rate and rest of the time, of what was computed here: stored results came for nothing."""
    computed = ends[DONE] + ends[FAILED]
    rest = 0 if total is None else total - computed - ends[STORED]
    parts = [f"{computed / max(elapsed, 1e-3):.1f}/s"]
    if ends[FAILED]:
        parts.append(f"[red]{ends[FAILED]} failed[/red]")
    if ends[STORED]:
        parts.append(f"{ends[STORED]} stored")
    if rest > 0 and not open:
        parts.append(f"{rest} not done")
    elif rest > 0 and computed:
        parts.append(f"{_clock(rest * elapsed / computed)} left")
    return " ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
