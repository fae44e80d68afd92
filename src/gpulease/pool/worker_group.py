"""Keeps workers alive: starts them, hears from them, replaces the ones that die, and gives up on what never works.

All of it runs in the reactor's thread. Not for: items. The owner of the group is called when workers are ready or gone.

To grow, one worker more than is ready stands in the machine's one line, behind everybody else; what it is granted was
idle.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpulease.client.wait_notice import WaitNotice
from gpulease.errors import GpuleaseError, PoolBroken, by_code
from gpulease.pool import context
from gpulease.pool.engine import Engine, Source
from gpulease.pool.failures import Ending, RemoteTraceback, ending_of
from gpulease.pool.log import Log
from gpulease.pool.pickling import to_body
from gpulease.pool.plan import PoolPlan, grown
from gpulease.pool.reactor import Reactor
from gpulease.pool.slot import EMPTY, READY, STARTING, STOPPING, WorkerSlot

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulease.protocol.messages import StillWaiting

GRACE = 10.0  # seconds for a worker that was told to stop and has nothing to do


class WorkerGroupOwner:
    """Who hears of the workers."""

    def worker_ready(self, slot: WorkerSlot) -> None: ...

    def worker_waits(self, slot: WorkerSlot) -> None:
        """It waits in the queue."""

    def worker_retires(self, slot: WorkerSlot) -> None:
        """It gets nothing new, and will be gone."""

    def worker_gone(self, slot: WorkerSlot, ending: Ending) -> None: ...

    def crew_broken(self, error: GpuleaseError) -> None: ...

    def crew_gone(self) -> None: ...


class WorkerGroup(Source):
    def __init__(
        self, reactor: Reactor, log: Log, owner: WorkerGroupOwner, plan: PoolPlan, engine: Engine | None = None
    ) -> None:
        """`engine`: where the work is seen that the workers do, so that an elastic group can follow it."""
        self.slots: list[WorkerSlot] = []
        self._reactor, self._log, self._owner = reactor, log, owner
        self._setup, self._memory = make_setup(plan)
        self._plan = plan._replace(shared=None)  # the copy in shared memory is the one that is kept
        self._elastic = Elastic(self, plan, engine) if plan.elastic else None
        self._watch = BrokerWatch(reactor, self, self._elastic.on_line if self._elastic else None)
        self._waiting = WaitingWorkers(plan.quiet)
        self._stopping = self._gone = False
        self._given_up: set[WorkerSlot] = set()
        self._trouble: GpuleaseError | None = None

    def begin(self) -> None:
        nested = nested_devices(self._plan)
        if not nested:
            self._watch.begin()
        for changes in nested or [{}] * (1 if self._elastic else self._plan.workers):
            self.add(changes)

    def grow(self, gpus: int, request: Mapping[str, Any]) -> None:
        plan = grown(self._plan, gpus, request)
        for _ in range(plan.workers):
            self._reactor.call(partial(self.add, {"request": dict(plan.request)}))

    def add(self, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
        """One worker more; `changes` to the setup are for it alone."""
        if not self._stopping:
            self.slots.append(WorkerSlot(len(self.slots) + 1, {**self._setup, **changes}))
            self._start(self.slots[-1])

    def fill(self, slot: WorkerSlot) -> None:
        """A worker for a place that is empty."""
        slot.renewing = False
        if slot.state == EMPTY and not self._stopping:
            self._start(slot)

    def state_of(self, slot: WorkerSlot) -> str:
        """As it is shown to people."""
        if slot in self._given_up and slot.state == EMPTY:
            return "failed"
        return "waiting" if slot.state == STARTING and slot.waits else slot.state

    def expecting(self) -> bool:
        return any(slot.state == STARTING or slot.renewing for slot in self.slots if slot not in self._given_up)

    def starting(self) -> int:
        return sum(slot.state == STARTING and not slot.waits for slot in self.slots if slot not in self._given_up)

    def renew(self, slot: WorkerSlot, lease: str) -> None:
        """The worker's lease is over: it ends after its item, and the next worker waits in the queue again."""
        if slot.lease != lease or slot.state not in (READY, STARTING) or self._stopping or slot.is_gone:
            return  # of a worker that ended by itself the lease ends too
        self._log.note(f"{slot.label}: its lease {lease} was ended from outside; another is asked for", logging.WARNING)
        slot.renewing = True
        self.retire(slot)

    def retire(self, slot: WorkerSlot) -> None:
        """It ends after what it runs."""
        self._owner.worker_retires(slot)
        slot.stop()

    def stop(self, grace: float | None = GRACE) -> None:
        """End all, gently; after `grace` seconds, or never, by force."""
        self._stopping = True
        for slot in self.slots:
            slot.stop()
        if grace is not None:
            self._reactor.later(grace, self.kill)
        self._check_gone()

    def kill(self) -> None:
        self._stopping = True
        for slot in self.slots:
            slot.kill()
        self._check_gone()

    # ---------------------------------------------------------------- one worker's life

    def _start(self, slot: WorkerSlot) -> None:
        slot.start(self._memory)
        self._reactor.watch(slot.control, lambda: self._hear(slot))
        self._reactor.watch(slot.output, lambda: self._print(slot))
        self._reactor.watch(slot.pidfd, lambda: self._ended(slot))
        self._log.note(f"{slot.name} starts (pid {slot.process.pid if slot.process else 0})")

    def _hear(self, slot: WorkerSlot) -> None:
        try:
            for message in slot.hear():
                self._told(slot, message)
        except BlockingIOError:
            pass
        except EOFError:
            self._reactor.unwatch(slot.control)

    def _told(self, slot: WorkerSlot, message: dict[str, Any]) -> None:
        if "leased" in message:
            slot.lease, slot.broker, slot.gpus = message["leased"], message["broker"], message["gpus"]
            slot.waits = False
            self._waiting.got(slot.gpus)
            self._log.note(f"{slot.name} has GPU {slot.gpus}")
        elif "waiting" in message:
            slot.waits = True
            self._log.note(f"{slot.name} waits in the queue. {message['waiting']}")
            self._owner.worker_waits(slot)
        elif "waits" in message:
            self._waiting.waits(slot, message["waits"], self.slots)
        elif "ready" in message:
            if slot.state == STARTING:
                slot.state = READY
                slot.ready_since = time.monotonic()
                self._log.note(f"{slot.label} is ready after {message['ready']:.2f} s")
                self._owner.worker_ready(slot)
                if self._elastic is not None:
                    self._elastic.grow()
        elif "worn" in message:
            self._log.note(f"{slot.label} has done {message['worn']} items and is replaced")
            slot.worn = True
            self._owner.worker_retires(slot)
        else:
            self._failed(slot, message)

    def _failed(self, slot: WorkerSlot, message: dict[str, Any]) -> None:
        """It said itself that it cannot work. To try again would raise the same again."""
        doing = "could not get its lease" if message["failed"] == "lease" else "failed in `init`"
        detail = "" if message["known"] else message["text"].rstrip()
        self._log.note(f"{slot.label} {doing}: {message['short']}", logging.WARNING, detail)
        if message["known"] is not None:
            code, what, next_step = message["known"]
            trouble = by_code(code, what, next_step, {})
        else:
            trouble = PoolBroken(f"Every worker {doing}; {slot.name}: {message['short'][:500]}.")
        trouble.__cause__ = RemoteTraceback(message["text"])
        self._trouble = trouble
        self._given_up.add(slot)

    def _print(self, slot: WorkerSlot) -> bool:
        """Whether there may be more; a child of its own may hold the pipe open after its end."""
        try:
            data = os.read(slot.output, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._reactor.unwatch(slot.output)
        for line in slot.lines.feed(data) if data else slot.lines.end():
            self._log.printed(slot.label, line)
        return bool(data)

    def _ended(self, slot: WorkerSlot) -> None:
        self._hear(slot)
        while self._print(slot):
            pass
        for line in slot.lines.end():
            self._log.printed(slot.label, line)
        label, stopping = slot.label, slot.state == STOPPING or self._stopping
        worn = slot.worn and not stopping
        for descriptor in (slot.control, slot.output, slot.pidfd):
            self._reactor.unwatch(descriptor)
        ending = ending_of(slot.ended())
        self._waiting.gone(slot)
        if not stopping and not worn and slot not in self._given_up:
            self._log.note(f"{label} {ending}", logging.WARNING)
        # Said before its items are given to others: an item's last try is for the worker that follows.
        slot.renewing = (slot.renewing or not stopping) and not self._stopping
        self._owner.worker_gone(slot, ending)
        if worn:
            self.fill(slot)
        elif slot.renewing:
            self._replace(slot, ending)
        elif self._stopping:
            self._check_gone()

    def _replace(self, slot: WorkerSlot, ending: Ending) -> None:
        ready_for = None if slot.ready_since is None else time.monotonic() - slot.ready_since
        slot.restarts = slot.restarts.ended(ready_for)
        if slot.restarts.hopeless and slot not in self._given_up:
            self._given_up.add(slot)
            times = slot.restarts.unready
            self._trouble = PoolBroken(
                f"Workers end before they have done anything, {times} times in a row; the last one {ending}."
            )
        if slot not in self._given_up:
            if slot.restarts.pause:
                self._log.note(f"{slot.name} starts again in {slot.restarts.pause:.1f} s", logging.WARNING)
            self._reactor.later(slot.restarts.pause, partial(self.fill, slot))
        elif all(slot in self._given_up for slot in self.slots):
            assert self._trouble is not None
            self._owner.crew_broken(self._trouble)

    def _check_gone(self) -> None:
        if any(slot.state != EMPTY for slot in self.slots) or self._gone:
            return
        self._gone = True
        if self._memory is not None:
            os.close(self._memory)
        self._watch.end()
        self._owner.crew_gone()


def make_setup(plan: PoolPlan) -> tuple[dict[str, Any], int | None]:
    """What each worker gets at its start, and the memory with what all of them share."""
    shared, memory = (b"", None) if plan.shared is None else to_body(plan.shared)
    setup = {
        "request": dict(plan.request),
        "path": list(sys.path),
        "init": plan.init,
        "shared": shared,
        "max_items": plan.max_items,
    }
    return setup, memory


def nested_devices(plan: PoolPlan) -> list[dict[str, Any]]:
    """In a worker of another pool: its own devices, divided. A lease of their own would wait for what it holds."""
    above = context.current
    if above is None:
        return []
    each, labels = plan.request["gpus"], above.gpus.split(",")
    parts = [slice(number * each, (number + 1) * each) for number in range(plan.workers)]
    return [{"request": None, "gpus": ",".join(labels[part]), "uuids": above.uuids[part]} for part in parts]


# -------------------------------------------------------------------- all that is idle


class Elastic:
    """`engine` is None for a named pool, which does not see what programs do: it keeps warm whatever is idle."""

    def __init__(self, group: WorkerGroup, plan: PoolPlan, engine: Engine | None) -> None:
        self._group, self._engine = group, engine
        self._each: int = plan.request["gpus"]
        self._priority: int = plan.request["priority"]
        self._given: dict[str, int] = {}  # request in the line -> GPUs that were let go for it, once
        if engine is not None:
            engine.on_waiting = self.grow

    def grow(self) -> None:
        """After a worker became ready, new work came, or nobody waits any more: one more into the line."""
        starting = any(slot.state == STARTING for slot in self._group.slots)
        if starting or (self._engine is not None and not self._engine.pending()):
            return
        empty = next((slot for slot in self._group.slots if slot.state == EMPTY and not slot.renewing), None)
        if empty is not None:
            self._group.fill(empty)
        else:
            self._group.add()

    def on_line(self, line: dict[str, Any]) -> None:
        """Who stands ahead of ours in the line: for each of them workers are let go, once."""
        before = self._given
        self._given = {id: row["gpus"] for id, row in line.items() if row["priority"] < self._priority}
        wanted = sum(gpus for id, gpus in self._given.items() if id not in before)
        if wanted:
            self._let_go(-(-wanted // self._each))
        elif not self._given:
            self.grow()

    def _let_go(self, count: int) -> None:
        """Retire workers, idle ones first; the last one stays, so that the work goes on."""
        for slot in self._group.slots:
            if slot.state == STARTING:
                slot.stop()
        ready = [slot for slot in self._group.slots if slot.state == READY]
        ready.sort(key=self._load)
        for slot in ready[: min(count, len(ready) - 1)]:
            self._group.retire(slot)

    def _load(self, slot: WorkerSlot) -> int:
        links = [] if self._engine is None else self._engine.links
        return next((len(link.in_flight) for link in links if link.name == slot.name), 0)


AGAIN = 1.0  # seconds before a broker that is not there is looked for again
LISTEN = 0.2  # seconds after which the thread sees whether it is still wanted


class BrokerWatch:
    """Subscribed at the broker of the group's leases, as soon as it has one."""

    def __init__(self, reactor: Reactor, group: WorkerGroup, on_line: Callable[[dict[str, Any]], None] | None) -> None:
        self._reactor, self._group, self._on_line = reactor, group, on_line
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpulease-pool-watch", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Its thread is gone then, unless the broker hangs: for that nobody waits."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(AGAIN)

    def _run(self) -> None:
        while not self._ended.is_set():
            held = next((slot for slot in list(self._group.slots) if slot.lease is not None), None)
            if held is None:
                self._ended.wait(LISTEN)
                continue
            try:
                self._listen(held.broker)
            except (GpuleaseError, OSError):
                self._ended.wait(AGAIN)  # no broker now: it will know what it knew when it is back

    def _listen(self, broker: str | None) -> None:
        from gpulease.client.connection import Client
        from gpulease.client.subscriptions import Subscription

        topics = ("leases",) if self._on_line is None else ("leases", "line")
        with Subscription(*topics, client=Client(start=False, directory=broker)) as subscription:
            while not self._ended.is_set():
                changed = subscription.receive(LISTEN) or {}
                if "leases" in changed:
                    self._find_ended(subscription.rows["leases"])
                if "line" in changed and self._on_line is not None:
                    self._reactor.call(partial(self._on_line, subscription.rows["line"]))

    def _find_ended(self, leases: dict[str, Any]) -> None:
        """A lease that was ended from outside: its worker's GPU may be somebody else's now."""
        from gpulease.client.connection import ask

        for slot in list(self._group.slots):
            lease = slot.lease
            if lease is None or lease in leases or slot.state not in (READY, STARTING):
                continue
            if not ask("taken", at=slot.broker, id=lease)["taken"]:  # else it is so new that nobody was told yet
                self._reactor.call(partial(self._group.renew, slot, lease))


# -------------------------------------------------------------------- while all wait


class WaitingWorkers:
    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._told: dict[WorkerSlot, StillWaiting] = {}
        self._waiting: WaitNotice | None = None

    def waits(self, slot: WorkerSlot, subscription: StillWaiting, group: Iterable[WorkerSlot]) -> None:
        if any(other.lease for other in group):
            return  # the work goes on
        self._waiting = self._waiting or WaitNotice(self._quiet)
        self._told[slot] = subscription
        if self._waiting.tell is not None:
            self._waiting.tell(min(self._told.values(), key=lambda one: one["place"]))

    def got(self, gpus: str) -> None:
        self._told.clear()
        self._end(gpus)

    def gone(self, slot: WorkerSlot) -> None:
        self._told.pop(slot, None)
        if not self._told:
            self._end(None)

    def _end(self, gpus: str | None) -> None:
        if self._waiting is not None:
            self._waiting.end(gpus)
            self._waiting = None
