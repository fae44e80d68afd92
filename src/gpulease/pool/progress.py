"""A progress bar with rate, failures and GPUs. Rich is loaded only when one is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

REFRESH = 0.1  # seconds
SAY = 10.0  # seconds between lines where there is no terminal


def total_of(iterables: tuple[Iterable[Any], ...]) -> int | None:
    """How many items there are, where that can be known."""
    lengths = [len(each) for each in iterables if hasattr(each, "__len__")]  # type: ignore[arg-type]
    return min(lengths) if lengths else None


class Bar:
    def __init__(self, title: str, total: int | None, gpus: Callable[[], list[str]]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.done, self._failed, self._gpus, self._total = 0, 0, gpus, total
        self._last_gpus: list[str] = []
        self._title = title
        self._began = self._shown = self._said = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[failed]}"),
            TextColumn("{task.fields[gpus]}"),
            TimeRemainingColumn(),
            console=_console(),
        )
        self._task = self._progress.add_task(title, total=total, **self._fields())
        console = self._progress.console
        self._draws = console.is_terminal or console.is_jupyter
        self._progress.start()

    def advance(self, failed: bool) -> None:
        self.done += 1
        self._failed += failed
        now = time.monotonic()
        if now - self._shown >= REFRESH:
            self._shown = now
            self._show()
        if now - self._said >= SAY and not self._draws:
            self._said = now
            self._say()

    def close(self) -> None:
        if self._total is None:  # known now
            self._progress.update(self._task, total=self.done)
        self._show()
        self._progress.stop()

    def _show(self) -> None:
        self._progress.update(self._task, completed=self.done, **self._fields())

    def _say(self) -> None:
        """Where nothing can be redrawn: a line now and then."""
        fields, total = self._fields(), "" if self._total is None else f"/{self._total}"
        words = [self._title, f"{self.done}{total}", fields["rate"], fields["failed"], fields["gpus"]]
        self._progress.console.print(" ".join(word for word in words if word))

    def _fields(self) -> dict[str, Any]:
        rate = self.done / max(time.monotonic() - self._began, 1e-3)
        self._last_gpus = self._gpus() or (self._last_gpus if self.done else [])  # at the end they are gone
        gpus = self._last_gpus
        return {
            "rate": f"{rate:.1f}/s",
            "failed": f"[red]{self._failed} failed[/red]" if self._failed else "",
            "gpus": f"GPU {','.join(gpus)}" if gpus else "waiting for a GPU",
        }


def _console() -> Any:
    """In a notebook, rich draws with ipywidgets; without them it would complain, or write what is for terminals."""
    from importlib.util import find_spec

    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter and find_spec("ipywidgets") is None:
        return Console(stderr=True, force_jupyter=False, force_terminal=False)
    return console
