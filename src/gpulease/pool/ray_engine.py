"""`Pool(engine="ray")`: the same pool on a Ray cluster, one warm actor for each worker.

Ray grants the GPUs here, on whichever machines it has; leases are for one machine. Items go the same way as on one
machine: this is another source of workers for the engine, and another kind of link. An actor stays warm, where Ray
starts a new process for each task that has a GPU.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gpulease.errors import NotEnoughDevices, PoolBroken, UsageError
from gpulease.pool import context
from gpulease.pool.engine import Engine, OnStart, Source
from gpulease.pool.failures import Ending, RemoteTraceback
from gpulease.pool.items import Item, Window, place_of
from gpulease.pool.link import ERROR, Link
from gpulease.pool.log import Log
from gpulease.pool.pickling import Packed, unpack
from gpulease.pool.plan import PoolPlan
from gpulease.pool.reactor import Reactor
from gpulease.pool.session import Functions, attempt
from gpulease.pool.slot import Restarts


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
        self.place = place_of(name, place.rpartition(":")[2])
        self._handle, self._cluster = handle, cluster
        self._known: set[int] = set()
        self.since = time.monotonic()

    def room(self, item: Item) -> int:
        return 0 if self.done == self._cluster.max_items else super().room(item)

    def send(self, items: Sequence[Item]) -> list[Item]:
        for item in items:
            key, packed = item.function.key, item.packed
            if key not in self._known:
                self._known.add(key)
                self._handle.learn.remote(key, item.function.payload)
            reference = self._handle.work.remote(key, item.number, packed.payload, sendable(packed))
            self._cluster.when(reference, self._worked)
        return list(items)

    def _worked(self, future: Any) -> None:
        if self not in self._cluster.engine.links:
            return  # it was lost before
        if future.exception() is not None:
            return self._cluster.lost(self, future.exception())
        self.hear([future.result()])
        self._cluster.worked(self)

    def forget(self, key: int) -> None:
        if key in self._known:
            self._known.remove(key)
            self._handle.forget.remote(key)

    def value(self, result: Answered) -> Any:
        return unpack(result.payload, result.buffers)


class Cluster(Source):
    """The actors. Ray does not tell whether one of them waits for a GPU."""

    def __init__(
        self, plan: PoolPlan, log: Log, retries: int, address: str | None, on_start: OnStart | None = None
    ) -> None:
        self._log = log
        self._ray, self._started_ray = _connect(address)
        self._gpus_each = plan.request["gpus"]
        names = [f"worker {number}" for number in range(1, _count_workers(self._ray, plan) + 1)]
        self._init, self.max_items = plan.init, plan.max_items
        self._shared = None
        if plan.shared is not None:
            self._shared = self._ray.put((plan.shared.payload, sendable(plan.shared)))
        self.reactor = Reactor("gpulease-pool-ray")
        self.engine = Engine(self.reactor, log, retries, on_start)
        self.engine.source = self
        self._handles: dict[str, Any] = {}  # by the worker's name
        self._restarts = dict.fromkeys(names, Restarts())  # of those that are not given up
        self._ended = False
        for name in names:
            self._start(name)
        self.reactor.start()

    def expecting(self) -> bool:
        return len(self._restarts) > len(self.engine.links)

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

    def when(self, reference: Any, action: Callable[[Any], None]) -> None:
        """`action(future)` in the reactor's thread, once Ray has the result."""
        reference.future().add_done_callback(lambda future: self.reactor.call(lambda: action(future)))

    # ---------------------------------------------------------------- one actor's life

    def _start(self, name: str) -> None:
        if self._ended:
            return
        options = {"num_gpus": self._gpus_each, "num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
        handle = self._handles[name] = self._ray.remote(RayWorker).options(**options).remote(name)
        reference = handle.prepare.remote(self._init, self._shared, list(sys.path))
        self.when(reference, partial(self._prepared, name))

    def _prepared(self, name: str, future: Any) -> None:
        if future.exception() is not None:
            return self._replace(name, _ending("its machine", future.exception()), None)
        answered = future.result()
        result = unpack(answered.payload, answered.buffers)
        if answered.kind == ERROR:
            return self._failed(name, result)
        self._log.note(f"{name} is ready on {result} after {answered.seconds:.2f} s")
        self.engine.joined(RayLink(name, result, self._handles[name], self))

    def _failed(self, name: str, result: tuple[Any, ...]) -> None:
        _, text, short, _ = result
        self._log.note(f"{name} failed in `init`: {short}", logging.WARNING, text)
        self._ray.kill(self._handles.pop(name))
        trouble = PoolBroken(f"Every worker failed in `init`; {name}: {short[:500]}.")
        trouble.__cause__ = RemoteTraceback(text)
        self._give_up(name, trouble)

    def lost(self, link: RayLink, error: BaseException) -> None:
        ending = _ending(link.gpus, error)
        self.engine.left(link, ending)
        self._replace(link.name, ending, time.monotonic() - link.since)

    def worked(self, link: RayLink) -> None:
        """After each item: a worker that has done its number is replaced."""
        if link.done != self.max_items or self._ended:
            return
        self._log.note(f"{link.name} has done {link.done} items and is replaced")
        self.engine.left(link, Ending())
        self._ray.kill(self._handles.pop(link.name))
        self._start(link.name)

    def _replace(self, name: str, ending: Ending, ready_for: float | None) -> None:
        self._log.note(f"{name} {ending}", logging.WARNING)
        self._handles.pop(name, None)
        restarts = self._restarts[name] = self._restarts[name].ended(ready_for)
        if restarts.hopeless:
            return self._give_up(
                name, PoolBroken(f"Workers end before they have done anything; the last one {ending}.")
            )
        self.reactor.later(restarts.pause, partial(self._start, name))

    def _give_up(self, name: str, trouble: PoolBroken) -> None:
        del self._restarts[name]
        if not self._restarts:
            self.engine.broken(trouble)


def _ending(place: str, error: BaseException) -> Ending:
    return Ending(reported=f"died on {place} ({_short(error)})")


def _connect(address: str | None) -> tuple[Any, bool]:
    """Ray, and whether it was started or joined here, and is to be left at the end."""
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed.", "Install it: pip install 'gpulease[ray]'.") from None
    if ray.is_initialized():
        return ray, False
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise PoolBroken(f"Ray cannot be reached at {address}: {_short(error)}.", "Check address=.") from None
    return ray, True


def _count_workers(ray: Any, plan: PoolPlan) -> int:
    if plan.request.get("mem") is not None:
        raise UsageError("Ray knows no shares by memory.", "Leave out mem=.")
    each: int = plan.request["gpus"]
    there = int((ray.available_resources() if plan.elastic else ray.cluster_resources()).get("GPU", 0))
    wanted = each if plan.elastic else plan.workers * each
    if wanted > there:
        raise NotEnoughDevices(f"The pool asks for {wanted} GPUs, and the Ray cluster has {there}.", "Ask for fewer.")
    return there // each if plan.elastic else plan.workers


def _short(error: BaseException) -> str:
    """Ray's errors are long: the first line says it."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(". ")[:200]


# -------------------------------------------------------------------- on the cluster


class RayWorker(Functions):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def prepare(self, init: bytes | None, shared: tuple[bytes, list[Any]] | None, path: list[str]) -> Answered:
        """Once, before any item. The value is where it runs."""

        def begin() -> str:
            sys.path.extend(place for place in path if place not in sys.path)
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            current = context.Worker(self._name, gpus, tuple(gpus.split(",")), None)
            context.prepare(current, unpack(*shared) if shared else {}, init)
            return f"{os.uname().nodename}:{gpus}"

        return _answer(0, *attempt(begin))

    def work(self, key: int, number: int, payload: bytes, buffers: Sequence[Any]) -> Answered:
        """With copies that the task may write to: what lies in Ray's store is for all."""
        return _answer(number, *self.run(key, lambda: unpack(payload, [*map(bytearray, buffers)])))


def _answer(number: int, kind: int, packed: Packed, seconds: float) -> Answered:
    return Answered(kind, number, seconds, packed.payload, sendable(packed))


def sendable(packed: Packed) -> list[Any]:
    """Buffers that Ray puts beside its own pickle, uncopied."""
    return [pickle.PickleBuffer(buffer) for buffer in packed.buffers]
