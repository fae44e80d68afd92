"""One log for a whole pool, with the worker named on each line."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import IO

from gpulease.errors import UsageError, in_words


class Log:
    """To a file, everything; with no file, workers' output to stderr, and the pool's own notes to the logger."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._file: IO[str] | None = None
        if path is not None:
            try:
                self._file = open(path, "a", buffering=1, errors="replace")  # noqa: SIM115  # as long as the pool
            except (OSError, TypeError, ValueError) as error:
                raise UsageError(
                    f"The log {str(path)!r} cannot be written: {in_words(error)}.",
                    "Give the path of a file, as log='pool.log'.",
                ) from None

    def printed(self, worker: str, text: str) -> None:
        """A line that a worker printed."""
        self._write(f"[{worker}] {text}")

    def note(self, text: str, level: int = logging.INFO, detail: str = "") -> None:
        """What the pool has to say itself; `detail`, as a traceback, is for the file alone."""
        if self._file is None:
            return logging.getLogger("gpulease.pool").log(level, text)
        self._write(f"[pool] {text}" + (f"\n{detail}" if detail else ""))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S ") if self._file else ""
        try:
            print(f"{stamp}{text}", file=self._file or sys.stderr, flush=True)
        except (OSError, ValueError):
            pass  # a full disk or a closed stream must not end the pool


class Lines:
    """Bytes as they come from a worker's output, whole lines as they are complete."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 1 << 16:
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode(errors="replace").rstrip("\r") for line in whole]

    def end(self) -> list[str]:
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []
