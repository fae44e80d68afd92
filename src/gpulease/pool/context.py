"""What a task can ask about the worker that it runs in: `gpulease.worker()`."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple

from gpulease.errors import UsageError


class Worker(NamedTuple):
    name: str  # as in the log: `worker 1`
    gpus: str  # labels of its devices, as `0,3`
    uuids: tuple[str, ...]
    lease: str | None  # id; None where it works under somebody else's lease
    shared: Mapping[str, Any] = MappingProxyType({})  # what was given as `shared=`, read-only
    state: Any = None  # what `init` returned


current: Worker | None = None  # in a worker


def worker() -> Worker:
    """The worker that runs the caller. Raises UsageError outside of one."""
    if current is None:
        raise UsageError("This process is not a worker of a pool.", "Call it in a function that a pool runs.")
    return current


def enter(entered: Worker) -> None:
    global current
    current = entered


def prepare(entered: Worker, shared: Mapping[str, Any], init: bytes | None) -> None:
    """Once in each worker, before any item."""
    entered = entered._replace(shared=MappingProxyType(shared))
    enter(entered)
    if init is not None:
        function, arguments = pickle.loads(init)
        if isinstance(function, str):  # as `module:function`
            function = resolve_name(function)
        enter(entered._replace(state=function(*arguments)))
