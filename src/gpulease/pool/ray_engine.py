"""`Pool(engine="ray")`: the same pool on a Ray cluster, one warm actor for each worker.

Ray grants the GPUs here, on whichever machines it has; leases are for one machine. Items go the same way as on one
machine: this is another source of workers for the engine, and another kind of link. An actor stays warm, where Ray
starts a process anew for each task that has a GPU.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

from gpulease.errors import NotEnoughDevices, PoolBroken, UsageError
from gpulease.pool import context, frames
from gpulease.pool.engine import Engine
from gpulease.pool.failures import Ending, RemoteTraceback, pack_failure
from gpulease.pool.items import Item
from gpulease.pool.link import Link
from gpulease.pool.log import Log
from gpulease.pool.pickling import Packed, pack, unpack
from gpulease.pool.plan import PoolPlan
from gpulease.pool.reactor import Reactor
from gpulease.pool.window import Window

MOST_FAILURES = 3


def start_on_ray(plan: PoolPlan, log: Log, retries: int, address: str | None) -> Engine:
    return Cluster(plan, log, retries, address).engine


class Answered(NamedTuple):
    kind: int
    number: int
    seconds: float
    payload: bytes
    buffers: list[Any]


class RayLink(Link):
    """One actor. It has one item at a time, since nobody can take items back from it."""

    def __init__(self, name: str, place: str, handle: Any, cluster: Cluster) -> None:
        super().__init__(name, place, Window(deepest=1))
        self._handle, self._cluster = handle, cluster
        self._known: set[int] = set()

    def send(self, items: Sequence[Item]) -> list[Item]:
        for item in items:
            function, number = item.function, item.number
            if function.key not in self._known:
                self._known.add(function.key)
                self._handle.learn.remote(function.key, function.payload)
            reference = self._handle.work.remote(function.key, item.packed.payload, sendable(item.packed))
            self._cluster.when(reference, partial(self._worked, number))
        return list(items)

    def _worked(self, number: int, future: Any) -> None:
        if self.hear is None:
            return  # it was lost before
        if future.exception() is not None:
            return self._cluster.lost(self, future.exception())
        worked, payload, buffers, seconds = future.result()
        kind = frames.RESULT if worked else frames.ERROR
        self.hear([Answered(kind, number, seconds, payload, buffers)])

    def take_tokens(self, most: int) -> int:
        return 0

    def forget(self, key: int) -> None:
        if key in self._known:
            self._known.remove(key)
            self._handle.forget.remote(key)

    def value(self, told: Answered) -> Any:
        return unpack(told.payload, told.buffers)

    def close(self) -> None:
        self.hear = None


class Cluster:
    """The actors, as a source of workers."""

    def __init__(self, plan: PoolPlan, log: Log, retries: int, address: str | None) -> None:
        self._ray = _load_ray()
        self._log = log
        self._started_ray = _connect(self._ray, address)
        self._gpus_each = plan.request["gpus"]
        self._workers = _count_workers(self._ray, plan)
        self._init = plan.init
        self._shared = None
        if plan.shared is not None:
            self._shared = self._ray.put((plan.shared.payload, sendable(plan.shared)))
        self.reactor = Reactor("gpulease-pool-ray")
        self.engine = Engine(self.reactor, log, retries)
        self.engine.source = self
        self._handles: dict[str, Any] = {}  # by the worker's name
        self._numbers = count(1)
        self._failures = 0  # ends in a row of actors of which nothing came
        self._ended = False
        for _ in range(self._workers):
            self._add()
        self.reactor.start()

    def expecting(self) -> bool:
        return len(self._handles) > len(self.engine.links)

    def starting(self) -> int:
        return 0  # Ray does not tell whether an actor waits for a GPU

    def stop(self) -> None:
        self._ended = True
        for link in list(self.engine.links):
            self.engine.left(link, Ending())
        for handle in self._handles.values():
            self._ray.kill(handle)
        self._log.close()
        if self._started_ray:
            self._ray.shutdown()
        self.reactor.stop()

    kill = stop

    def when(self, reference: Any, action: Callable[[Any], None]) -> None:
        """`action(future)` in the reactor's thread, once Ray has the result."""
        reference.future().add_done_callback(lambda future: self.reactor.call(lambda: action(future)))

    # ---------------------------------------------------------------- one actor's life

    def _add(self) -> None:
        name = f"worker {next(self._numbers)}"
        options = {"num_gpus": self._gpus_each, "num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
        handle = self._handles[name] = self._ray.remote(RayWorker).options(**options).remote(name)
        reference = handle.prepare.remote(self._init, self._shared, list(sys.path))
        self.when(reference, lambda future: self._prepared(name, future))

    def _prepared(self, name: str, future: Any) -> None:
        if future.exception() is not None:
            return self._cannot_begin(name, _ending("its machine", future.exception()))
        worked, payload, buffers, seconds = future.result()
        told = unpack(payload, buffers)
        if not worked:
            return self._cannot_start(name, told)
        self._log.note(f"{name} is ready on {told} after {seconds:.2f} s")
        self._failures = 0
        self.engine.joined(RayLink(name, told, self._handles[name], self))

    def _cannot_start(self, name: str, told: tuple[Any, ...]) -> None:
        _, _, text, short, _ = told
        self._log.note(f"{name} failed in `init`: {short}", logging.WARNING, text)
        self._ray.kill(self._handles.pop(name))
        if not self._handles:
            trouble = PoolBroken(f"Every worker failed in `init`; {name}: {short[:500]}.")
            trouble.__cause__ = RemoteTraceback(text)
            self.engine.broken(trouble)

    def lost(self, link: RayLink, error: BaseException) -> None:
        ending = _ending(link.gpus, error)
        self.engine.left(link, ending)
        self._replace(link.name, ending)

    def _cannot_begin(self, name: str, ending: Ending) -> None:
        self._failures += 1
        if self._failures < MOST_FAILURES * self._workers:
            return self._replace(name, ending)
        self.engine.broken(PoolBroken(f"Workers end before they have done anything; the last one {ending}."))

    def _replace(self, name: str, ending: Ending) -> None:
        self._log.note(f"{name} {ending}", logging.WARNING)
        self._handles.pop(name, None)
        if not self._ended:
            self._add()


def _ending(place: str, error: BaseException) -> Ending:
    return Ending(told=f"died on {place} ({_short(error)})")


def _load_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed.", "Install it: pip install 'gpulease[ray]'.") from None
    return ray


def _connect(ray: Any, address: str | None) -> bool:
    """Whether Ray was started or joined here, and is to be left at the end."""
    if ray.is_initialized():
        return False
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise PoolBroken(f"Ray cannot be reached at {address}: {_short(error)}.", "Check address=.") from None
    return True


def _count_workers(ray: Any, plan: PoolPlan) -> int:
    if plan.request.get("mem") is not None:
        raise UsageError("Ray knows no shares by memory.", "Leave out mem=.")
    each: int = plan.request["gpus"]
    there = int((ray.available_resources() if plan.elastic else ray.cluster_resources()).get("GPU", 0))
    if plan.elastic and there >= each:
        return there // each
    if plan.workers * each > there:
        wanted = each if plan.elastic else plan.workers * each
        raise NotEnoughDevices(f"The pool asks for {wanted} GPUs, and the Ray cluster has {there}.", "Ask for fewer.")
    return plan.workers


def _short(error: BaseException) -> str:
    """Ray's errors are long: what is wrong stands behind `Worker exit type`, else in the first line."""
    text = str(error)
    _, found, detail = text.partition("Worker exit type: ")
    line = (detail if found else text).strip().splitlines()[0] if text.strip() else type(error).__name__
    return line.split(" Some common causes")[0].rstrip(". ")[:200]


# -------------------------------------------------------------------- on the cluster

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

    def forget(self, key: int) -> None:
        self._functions.pop(key, None)

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
