"""What runs on a Ray cluster: one actor for each worker.

It stays warm, where Ray starts a process anew for each task that has a GPU.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from gpulease.pool import context
from gpulease.pool.failures import pack_failure
from gpulease.pool.pickling import Packed, pack

# (whether it worked, payload, buffers, seconds)
Answer = tuple[bool, bytes, list[Any], float]


class RayWorker:
    def __init__(self, name: str) -> None:
        self._name = name
        self._functions: dict[int, Any] = {}

    def prepare(self, init: bytes | None, shared: tuple[bytes, Sequence[Any]] | None, path: list[str]) -> Answer:
        """Once, before any item. The value is where it runs."""
        began = time.perf_counter()
        try:
            sys.path.extend(place for place in path if place not in sys.path)
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            values = pickle.loads(shared[0], buffers=list(shared[1])) if shared else {}
            current = context.Worker(self._name, gpus, tuple(gpus.split(",")), None, MappingProxyType(values))
            context.enter(current)
            if init is not None:
                function, arguments = pickle.loads(init)
                context.enter(current._replace(state=function(*arguments)))
            return _answer(True, pack(f"{os.uname().nodename}:{gpus}", "The place"), began)
        except BaseException as error:
            return _answer(False, pack_failure(error), began)

    def learn(self, key: int, function: bytes) -> None:
        self._functions[key] = function

    def work(self, key: int, payload: bytes, buffers: Sequence[Any]) -> Answer:
        began = time.perf_counter()
        try:
            function = self._functions[key]
            if isinstance(function, bytes):
                function = self._functions[key] = pickle.loads(function)
            arguments, keywords = pickle.loads(payload, buffers=[_own(buffer) for buffer in buffers])
            return _answer(True, pack(function(*arguments, **keywords), "The result"), began)
        except BaseException as error:
            return _answer(False, pack_failure(error), began)


def _own(buffer: Any) -> bytearray:
    """A copy that the task may write to: what lies in Ray's store is for all."""
    return bytearray(memoryview(buffer))


def _answer(worked: bool, packed: Packed, began: float) -> Answer:
    return worked, packed.payload, sendable(packed), time.perf_counter() - began


def sendable(packed: Packed) -> list[Any]:
    """Buffers that Ray puts beside its own pickle, uncopied."""
    return [pickle.PickleBuffer(buffer) for buffer in packed.buffers]
