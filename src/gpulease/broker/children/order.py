"""The child that runs the administrator's own order, so that whatever it does the broker's loop goes on.

Reads for each question the number of bytes that it has, and the question from a file that the broker shares; answers
with one message. Nobody but the broker starts it: `python -m gpulease.broker.children.order FUNCTION DESCRIPTOR`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import resource
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from gpulease.planner.order import LineEntry
from gpulease.protocol.wire import Message, pack
from gpulease.system.execution import end_with

Function = Callable[[tuple[LineEntry, ...], float], Iterable[str]]

MEMORY = 1 << 30  # bytes of address space
PRINTED = 4096  # bytes that it may print into the broker's log: the rest would fill its disk


class Unusable(Exception):
    """Why there is no function to ask."""


def main(spec: str, descriptor: int) -> int:
    end_with(os.getppid())
    questions, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _bound()
    function: Function | None = None
    for line in questions:
        try:
            if function is None:
                function = load(spec)
                os.write(answers, pack({"loaded": True}))
            answer: Message = {"order": _asked(function, json.loads(os.pread(descriptor, int(line), 0)))}
        except Unusable as trouble:
            answer = {"trouble": str(trouble)}
        except BaseException as trouble:  # whatever it raises, SystemExit too
            answer = {"trouble": f"it raised {type(trouble).__name__}: {str(trouble)[:300]}{_where(trouble)}"}
        os.write(answers, pack(answer))
    return 0


def _bound() -> None:
    """What the function prints, and the memory that it takes."""
    log, (reading, writing) = os.dup(2), os.pipe()
    for output in (1, 2):
        os.dup2(writing, output)
    os.close(writing)
    threading.Thread(target=_copy_beginning, args=(reading, log), daemon=True).start()
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    bound = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def _copy_beginning(reading: int, log: int) -> None:
    left = PRINTED
    while data := os.read(reading, 1 << 16):
        left -= os.write(log, data[:left]) if left else 0


def _where(trouble: BaseException) -> str:
    frames = traceback.extract_tb(trouble.__traceback__)
    last = next((frame for frame in reversed(frames) if not frame.filename.startswith(("<", __file__))), None)
    return "" if last is None else f" ({last.filename}, line {last.lineno})"


def _asked(function: Function, question: dict[str, Any]) -> list[str]:
    waiting = tuple(LineEntry(*row)._replace(groups=tuple(row[3])) for row in question["waiting"])
    answer = function(waiting, question["now"])
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise Unusable(f"it returned {type(answer).__name__}, not a list of ids")
    found = [id for _, id in zip(range(len(waiting) + 1), answer)]  # noqa: B905  # it may never end
    if not all(type(id) is str for id in found):
        raise Unusable("it did not return a list of ids")
    return found


def load(spec: str) -> Function:
    """From `module:function`, or from the full path of a file."""
    where, _, name = spec.rpartition(":")
    module = _from_file(where) if where.startswith("/") else _installed(where)
    function = getattr(module, name, None)
    if not callable(function):
        raise Unusable(f"{where} has no function {name}")
    return function  # type: ignore[no-any-return]


def _from_file(path: str) -> ModuleType:
    """Compiled from the text that was checked; a cache beside it may be anybody's, and so may the folder be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a fifo would keep us waiting
    except OSError as error:
        link = os.path.islink(path)
        raise Unusable(f"{path} {'is a link' if link else f'cannot be read: {error.strerror}'}") from None
    with open(descriptor, "rb") as file:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise Unusable(f"{path} is not a Python file")
        if seen.st_uid not in (0, os.geteuid()) or seen.st_mode & 0o022:
            raise Unusable(f"{path} may be written by others than root and the user who runs the broker")
        text = file.read()
    module = ModuleType("gpulease_own_order")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look for it there
    exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
    return module


def _installed(name: str) -> ModuleType:
    found = importlib.util.find_spec(name.partition(".")[0])
    inside = list(found.submodule_search_locations or ()) if found else []
    around = [os.path.dirname(found.origin)] if found and found.has_location and found.origin else []
    for folder in around + inside:
        if os.path.isdir(folder) and os.stat(folder).st_mode & 0o002:
            raise Unusable(f"{folder}, where the module {name} is, may be written by everybody")
    return importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
