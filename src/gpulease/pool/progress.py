"""A progress bar with rate, failures and GPUs. Rich is loaded only when one is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

REFRESH = 0.1  # seconds


def total_of(iterables: tuple[Iterable[Any], ...]) -> int | None:
    """How many items there are, where that can be known."""
    lengths = [len(each) for each in iterables if hasattr(each, "__len__")]  # type: ignore[arg-type]
    return min(lengths) if lengths else None


class Bar:
    def __init__(self, title: str, total: int | None, gpus: Callable[[], list[str]]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._done, self._failed, self._gpus = 0, 0, gpus
        self._began = self._shown = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[failed]}"),
            TextColumn("{task.fields[gpus]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(title, total=total, **self._fields())
        self._progress.start()

    def advance(self, failed: bool) -> None:
        self._done += 1
        self._failed += failed
        now = time.monotonic()
        if now - self._shown >= REFRESH:
            self._shown = now
            self._show()

    def close(self) -> None:
        self._show()
        self._progress.stop()

    def _show(self) -> None:
        self._progress.update(self._task, completed=self._done, **self._fields())

    def _fields(self) -> dict[str, Any]:
        rate = self._done / max(time.monotonic() - self._began, 1e-3)
        gpus = self._gpus()
        return {
            "rate": f"{rate:.1f}/s",
            "failed": f"[red]{self._failed} failed[/red]" if self._failed else "",
            "gpus": f"GPU {','.join(gpus)}" if gpus else "waiting for a GPU",
        }
