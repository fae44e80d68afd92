"""`Pool(engine="ray")`: the same pool on a Ray cluster, one warm actor for each worker.

Ray grants the GPUs here, on whichever machines it has; leases are for one machine. Ray's threads only put what happened
into a queue; one thread of ours works it off.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Sequence
from itertools import count
from queue import SimpleQueue
from typing import Any

from gpulease.errors import GpuleaseError, NotEnoughDevices, PoolBroken, PoolClosed, TaskFailed, UsageError
from gpulease.pool import windows
from gpulease.pool.failures import Ending, RemoteTraceback, died, unpack_failure
from gpulease.pool.items import Item
from gpulease.pool.local import Plan
from gpulease.pool.log import Log
from gpulease.pool.pickling import unpack
from gpulease.pool.ray_actor import RayWorker, sendable

DEEPEST = 8  # items ahead: they cannot be taken back from an actor
MOST_FAILURES = 3


class Actor:
    def __init__(self, name: str, handle: Any) -> None:
        self.name, self.handle = name, handle
        self.place = ""
        self.ready = False
        self.in_flight: deque[Item] = deque()
        self.known: set[int] = set()
        self.done = 0

    def room(self, item: Item) -> int:
        depth = min(DEEPEST, windows.depth(item.function.seconds))
        return windows.room(len(self.in_flight), depth) if self.ready else 0


class RayBackend:
    def __init__(self, plan: Plan, log: Log, retries: int, address: str | None) -> None:
        self._ray = _load_ray()
        self._log = log
        self._most_tries = windows.most_tries(retries)
        self._started_ray = _connect(self._ray, address)
        self._gpus_each = plan.request["gpus"]
        self._workers = _count_workers(self._ray, plan)
        self._init = None if plan.init is None else plan.init.payload
        self._shared = None
        if plan.shared is not None:
            self._shared = self._ray.put((plan.shared.payload, sendable(plan.shared)))
        self._lock = threading.RLock()
        self._queue: deque[Item] = deque()
        self._actors: list[Actor] = []
        self._numbers, self._names = count(1), count(1)
        self._failures = 0
        self._closing = False
        self._trouble: GpuleaseError | None = None
        self._happened: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gpulease-pool-ray", daemon=True)
        for _ in range(self._workers):
            self._add()
        self._thread.start()

    # ---------------------------------------------------------------- from any thread

    def submit(self, items: Sequence[Item], more: bool = False) -> None:
        with self._lock:
            if self._trouble is not None:
                raise type(self._trouble)(self._trouble.what, self._trouble.next_step) from self._trouble.__cause__
            if self._closing:
                raise PoolClosed("The pool was shut down and takes no more items.")
            for item in items:
                item.number = next(self._numbers)
            self._queue.extend(items)
            self._dispatch()

    def close(self, cancel: bool = False) -> None:
        with self._lock:
            self._closing = True
            dropped = list(self._queue) if cancel else []
            if cancel:
                self._queue.clear()
        for item in dropped:
            item.cancel()
        self._happened.put(lambda: None)

    def terminate(self) -> None:
        with self._lock:
            self._trouble = self._trouble or PoolClosed("The pool was ended while items were under way.")
        self.close()
        self._happened.put(lambda: self._fail_all(self._trouble))

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def gpus(self) -> list[str]:
        return [actor.place for actor in self._actors if actor.ready]

    # ---------------------------------------------------------------- our thread

    def _run(self) -> None:
        while not self._finished():
            try:
                self._happened.get()()
            except Exception:
                logging.getLogger("gpulease.pool").exception("the pool failed at one thing and goes on")
        for actor in self._actors:
            self._ray.kill(actor.handle)
        self._log.close()
        if self._started_ray:
            self._ray.shutdown()

    def _finished(self) -> bool:
        with self._lock:
            self._dispatch()
            return self._closing and not self._queue and not any(actor.in_flight for actor in self._actors)

    def _when(self, reference: Any, action: Any) -> None:
        """`action(future)` in our thread, once Ray has the result."""
        reference.future().add_done_callback(lambda future: self._happened.put(lambda: action(future)))

    # ---------------------------------------------------------------- workers

    def _add(self) -> None:
        name = f"worker {next(self._names)}"
        options = {"num_gpus": self._gpus_each, "num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
        actor = Actor(name, self._ray.remote(RayWorker).options(**options).remote(name))
        self._actors.append(actor)
        reference = actor.handle.prepare.remote(self._init, self._shared, list(sys.path))
        self._when(reference, lambda future: self._prepared(actor, future))

    def _prepared(self, actor: Actor, future: Any) -> None:
        if future.exception() is not None:
            return self._lost(actor, future.exception())
        worked, payload, buffers, seconds = future.result()
        if not worked:
            return self._cannot_start(actor, unpack(payload, buffers))
        actor.place = unpack(payload, buffers)
        self._log.note(f"{actor.name} is ready on {actor.place} after {seconds:.2f} s")
        with self._lock:
            actor.ready = True
            self._failures = 0
            self._dispatch()

    def _cannot_start(self, actor: Actor, told: tuple[Any, ...]) -> None:
        _, _, text, short, _ = told
        self._log.note(f"{actor.name} failed in `init`: {short}", logging.WARNING, text)
        self._actors.remove(actor)
        self._ray.kill(actor.handle)
        if not self._actors:
            trouble = PoolBroken(f"Every worker failed in `init`; {actor.name}: {short[:500]}.")
            trouble.__cause__ = RemoteTraceback(text)
            self._fail_all(trouble)

    def _lost(self, actor: Actor, error: BaseException) -> None:
        """The actor died: its first item was begun, since items run in order; the others were not."""
        if actor not in self._actors:
            return
        ending = Ending(told=f"died on {actor.place or 'its machine'} ({_short(error)})")
        self._log.note(f"{actor.name} {ending}", logging.WARNING)
        with self._lock:
            self._actors.remove(actor)
            items = list(actor.in_flight)
            actor.in_flight.clear()
            self._queue.extendleft(reversed(items[1:]))
            self._failures = 0 if actor.done or items else self._failures + 1
        if items:
            self._once_more(items[0], ending)
        if self._failures >= MOST_FAILURES * self._workers:
            return self._fail_all(PoolBroken(f"Workers end before they have done anything; the last one {ending}."))
        if not self._closing or self._queue:
            self._add()

    def _once_more(self, item: Item, ending: Ending) -> None:
        item.deaths += 1
        if item.deaths >= self._most_tries:
            return item.fail(died(ending, item.deaths, item.function.name))
        with self._lock:
            self._queue.appendleft(item)

    def _fail_all(self, error: GpuleaseError | None) -> None:
        trouble = error or PoolClosed("The pool was ended.")
        with self._lock:
            self._trouble = self._trouble or trouble
            items = [*self._queue, *(item for actor in self._actors for item in actor.in_flight)]
            self._queue.clear()
            for actor in self._actors:
                actor.in_flight.clear()
            self._closing = True
        for item in items:
            item.fail(trouble)

    # ---------------------------------------------------------------- items

    def _dispatch(self) -> None:
        for actor in sorted(self._actors, key=lambda actor: len(actor.in_flight)):
            room = actor.room(self._queue[0]) if self._queue else 0
            for _ in range(min(room, windows.share(len(self._queue), len(self._actors)))):
                if self._queue:
                    self._give(actor, self._queue.popleft())

    def _give(self, actor: Actor, item: Item) -> None:
        if not item.begin():
            return
        function = item.function
        if function.key not in actor.known:
            actor.known.add(function.key)
            actor.handle.learn.remote(function.key, function.payload)
        actor.in_flight.append(item)
        reference = actor.handle.work.remote(function.key, item.packed.payload, sendable(item.packed))
        self._when(reference, lambda future: self._worked(actor, item, future))

    def _worked(self, actor: Actor, item: Item, future: Any) -> None:
        if future.exception() is not None:
            return self._lost(actor, future.exception())
        worked, payload, buffers, seconds = future.result()
        with self._lock:
            if item not in actor.in_flight:
                return  # the pool was ended
            actor.in_flight.remove(item)
            actor.done += 1
            item.function.seconds = windows.learn(item.function.seconds, seconds)
            self._dispatch()
        try:
            value = unpack(payload, buffers)
            if worked:
                return item.succeed(value)
            error: BaseException = unpack_failure(value, f"{actor.name} ({actor.place})")
        except Exception as trouble:
            error = TaskFailed(f"The result cannot be read here: {type(trouble).__name__}: {trouble}.")
        item.fail(error)


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


def _count_workers(ray: Any, plan: Plan) -> int:
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
