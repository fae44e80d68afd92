"""gpulimit's drop-in and the gpulease commands that it runs, without a new interpreter for each; the broker is real."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from gpulease.cli.main import main
from gpulease.client import connection
from gpulease.compat.shim_files import become
from support.machine import Machine

become("gpulimit", "gpulimit/__init__.py")

import gpulease_shim  # noqa: E402
from gpulease_shim import Completed  # noqa: E402
from gpulimit import gpulimit_client, tasks  # noqa: E402

__all__ = ["Completed", "InProcess", "tasks"]


class InProcess:
    def __init__(self, folder: Path, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True)
        self._machine, self._patch = Machine(folder, gpus), monkeypatch
        monkeypatch.setattr(gpulease_shim, "run", _run)

    def gpulimit(self, *words: str) -> Completed:
        self._enter()
        return _captured(lambda: gpulimit_client.main(list(words)))

    def gpulease(self, *words: str) -> Completed:
        self._enter()
        return _run(*words)

    def json(self, *words: str) -> Any:
        return json.loads(self.gpulease(*words, "--json").out)

    def _enter(self) -> None:
        connection.forget()
        for name, value in self._machine.environ.items():
            self._patch.setenv(name, value)
        self._patch.chdir(self.folder)

    def close(self) -> None:
        connection.forget()
        self._machine.run("kill", "all")
        self._machine.run("stop")


def _run(*words: str, stdin: int | None = None, quiet: bool = True) -> Completed:
    return _captured(lambda: main(list(words)))


def _captured(act: Callable[[], int]) -> Completed:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = act()
        except SystemExit as end:
            code = int(end.code or 0)
        out.flush()
        err.flush()
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Completed(code, *texts)
