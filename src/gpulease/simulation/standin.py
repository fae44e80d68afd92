"""The simulated library in pure Python, for where there is no C compiler.

An object that takes the place of `pynvml.nvmlLib`: its attributes are callables that take the
ctypes arguments which the bindings pass, fill in what they point to, and return NVML's codes. It
reads the same files as `native/nvmlsim.c` and passes the same conformance suite; only Python
programs see it. Here is the way into a call, with its faults; the answers are in
`standin_answers`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulease.simulation import standin_answers as answers
from gpulease.simulation.standin_view import Answer, Code, Failure, View, error_string, unanswered
from gpulease.simulation.state import gpu_count, parse

HANGING_SECONDS = 0.02  # between two looks whether a hanging call may go on
GRANULARITY_NANOSECONDS = 50_000_000  # two changes may bear one timestamp when they are this close


def install(directory: Path) -> None:
    """From here on `pynvml` in this process reads the simulated machine in `directory`."""
    import pynvml

    pynvml.nvmlLib = StandIn(directory)
    getattr(pynvml, "_nvmlGetFunctionPointer_cache", {}).clear()


class StandIn:
    """Looks like the ctypes library to the bindings."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()  # which stays true when the process changes its own
        self._initialized = 0
        self._machine: dict[str, str] = {}
        self._stamp: tuple[int, ...] | None = None

    def __getattr__(self, name: str) -> Callable[..., object]:
        if not _is_known(name):
            raise AttributeError(name)
        call = self._own_call(name) or self._answering(name, answers.ANSWERS.get(name, unanswered))
        setattr(self, name, call)
        return call

    def _own_call(self, name: str) -> Callable[..., object] | None:
        """As plain functions: the bindings set attributes such as `restype` on what they get."""
        own: dict[str, Callable[..., object]] = {
            "nvmlInit": lambda: self._initialize(),
            "nvmlInit_v2": lambda: self._initialize(),
            "nvmlInitWithFlags": lambda _flags: self._initialize(),
            "nvmlShutdown": lambda: self._shut_down(),
            "nvmlErrorString": error_string,
        }
        return own.get(name)

    def _answering(self, name: str, answer: Answer) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                if not self._initialized:
                    raise Failure(Code.UNINITIALIZED)
                answer(self._view(name), *arguments)
            except Failure as failure:
                return failure.code
            return Code.SUCCESS

        return call

    def _view(self, function: str) -> View:
        """The machine as this call sees it, once no fault makes the call hang."""
        while (view := View(self._refresh(), self._directory, function)).hangs():
            time.sleep(HANGING_SECONDS)
        return view

    def _initialize(self) -> int:
        try:
            view = self._view("nvmlInitWithFlags")
            view.begin()
        except Failure as failure:
            return failure.code
        if code := view.machine_number("fault.init"):
            return code
        self._initialized += 1
        return Code.SUCCESS

    def _shut_down(self) -> int:
        if not self._initialized:
            return Code.UNINITIALIZED
        self._initialized -= 1
        return Code.SUCCESS

    def _refresh(self) -> dict[str, str]:
        """The machine as it is now, read again only when its file changed."""
        path = self._directory / "machine"
        try:
            found = os.stat(path)
            stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp != self._stamp:
                self._machine = parse(path.read_text(encoding="utf-8"))
                age = abs(time.time_ns() - found.st_mtime_ns)
                self._stamp = stamp if age > GRANULARITY_NANOSECONDS else None
        except (OSError, UnicodeDecodeError):
            raise Failure(Code.DRIVER_NOT_LOADED) from None
        if not gpu_count(self._machine):
            raise Failure(Code.DRIVER_NOT_LOADED)
        return self._machine


def _is_known(name: str) -> bool:
    """Every symbol that is answered, and every other that the bindings know; theirs lack the version."""
    import pynvml

    if name in answers.ANSWERS or name in ("nvmlInit_v2", "nvmlShutdown", "nvmlErrorString"):
        return True
    names = (name, re.sub(r"_v\d+$", "", name), re.sub(r"V$", "", name))
    return name.startswith("nvml") and any(hasattr(pynvml, known) for known in names)
