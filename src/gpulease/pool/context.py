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


_current: Worker | None = None


def worker() -> Worker:
    """The worker that runs the caller. Raises UsageError outside of one."""
    if _current is None:
        raise UsageError("This process is no worker of a pool.", "Call it in a function that a pool runs.")
    return _current


def inside() -> Worker | None:
    return _current


def enter(current: Worker) -> None:
    global _current
    _current = current


def prepare(current: Worker, shared: Mapping[str, Any], init: bytes | None) -> None:
    """Once in each worker, before any item."""
    current = current._replace(shared=MappingProxyType(shared))
    enter(current)
    if init is not None:
        function, arguments = pickle.loads(init)
        if isinstance(function, str):  # as `module:function`
            function = resolve_name(function)
        enter(current._replace(state=function(*arguments)))
