"""The child that runs the administrator's own order, so that whatever it does the broker's loop goes on.

Reads for each question the number of bytes that it has, and the question from a file that the broker shares; answers
with one message. Nobody but the broker starts it: `python -m gpulease.broker.order_child FUNCTION DESCRIPTOR`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from gpulease.execution import end_with
from gpulease.planner.ranking import LineEntry
from gpulease.wire import Message, pack

Function = Callable[[tuple[LineEntry, ...], float], Iterable[str]]


class Unusable(Exception):
    """Why there is no function to ask."""


def main(spec: str, descriptor: int) -> int:
    end_with(os.getppid())
    questions, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the function prints belongs into the broker's log, not among the answers
    function: Function | None = None
    for line in questions:
        question = json.loads(os.pread(descriptor, int(line), 0))
        try:
            if function is None:
                function = load(spec)
                os.write(answers, pack({"loaded": True}))
            answer: Message = {"order": _asked(function, question)}
        except Unusable as trouble:
            answer = {"trouble": str(trouble)}
        except BaseException as trouble:  # whatever it raises, SystemExit too
            answer = {"trouble": f"it raised {type(trouble).__name__}: {str(trouble)[:300]}{_where(trouble)}"}
        os.write(answers, pack(answer))
    return 0


def _where(trouble: BaseException) -> str:
    frames = traceback.extract_tb(trouble.__traceback__)
    last = next((frame for frame in reversed(frames) if not frame.filename.startswith(("<", __file__))), None)
    return "" if last is None else f" ({last.filename}, line {last.lineno})"


def _asked(function: Function, question: dict[str, Any]) -> list[str]:
    waiting = tuple(LineEntry(*row)._replace(groups=tuple(row[3])) for row in question["waiting"])
    told = function(waiting, question["now"])
    if isinstance(told, (str, bytes)) or not isinstance(told, Iterable):
        raise Unusable(f"it returned {type(told).__name__}, not a list of ids")
    found = [id for _, id in zip(range(len(waiting) + 1), told)]  # noqa: B905  # it may never end
    if not all(type(id) is str for id in found):
        raise Unusable("it did not return a list of ids")
    return found


def load(spec: str) -> Function:
    """From `module:function`, or from the full path of a file."""
    where, _, name = spec.rpartition(":")
    module = _from_file(where) if where.startswith("/") else importlib.import_module(where)
    function = getattr(module, name, None)
    if not callable(function):
        raise Unusable(f"{where} has no function {name}")
    return function  # type: ignore[no-any-return]


def _from_file(path: str) -> Any:
    try:
        seen = os.stat(path)
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}") from None
    if seen.st_uid not in (0, os.geteuid()) or seen.st_mode & 0o022:
        raise Unusable(f"{path} may be written by others than root and the user who runs the broker")
    found = importlib.util.spec_from_file_location("gpulease_own_order", path)
    if found is None or found.loader is None:
        raise Unusable(f"{path} is no Python file")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
