"""A progress bar with rate, failures and GPUs. Rich is loaded only when one is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from gpulease.waiting import show_instead

REFRESH = 0.1  # seconds


class Bar:
    def __init__(self, title: str | bool, iterables: tuple[Iterable[Any], ...], gpus: Callable[[], list[str]]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        lengths = [len(each) for each in iterables if hasattr(each, "__len__")]  # type: ignore[arg-type]
        self._total = min(lengths) if lengths else None  # where that can be known
        self.done, self._failed, self._gpus = 0, 0, gpus
        self._began = self._shown = time.monotonic()
        told = TextColumn("{task.fields[told]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), told, TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(
            title if isinstance(title, str) else "", total=self._total, told="waiting for a GPU"
        )
        self._progress.start()
        self._waits = ""  # the place in the line, and why
        self._leave_terminal = show_instead(self._show_waiting)

    def advance(self, failed: bool) -> None:
        self.done += 1
        self._failed += failed
        if time.monotonic() - self._shown >= REFRESH:
            self._shown = time.monotonic()
            self._show()

    def close(self) -> None:
        self._total = self._total or self.done  # known now
        self._leave_terminal()
        self._show()
        self._progress.stop()

    def _show_waiting(self, text: str) -> None:
        self._waits = text
        self._show()

    def _show(self) -> None:
        from rich.markup import escape

        rate = self.done / max(time.monotonic() - self._began, 1e-3)
        failed = f"[red]{self._failed} failed[/red] " if self._failed else ""
        gpus = self._gpus()
        told = f"{rate:.1f}/s {failed}" + (
            f"GPU {','.join(gpus)}" if gpus else escape(self._waits) or "waiting for a GPU"
        )
        self._progress.update(self._task, completed=self.done, total=self._total, told=told)
