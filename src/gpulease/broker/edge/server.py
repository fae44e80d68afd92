"""The broker's edge: sockets, pidfds, the sampler, users' agents and the clock, on one epoll. Nothing here decides.

What happens becomes events for the core; what the core says is carried out. Written on epoll and not on asyncio: a
hand-off is a handful of system calls, and the loop around them costs as much again in asyncio as the rest together
(`gpulease help decisions/0005`).
"""

from __future__ import annotations

import contextlib
import gc
import grp  # noqa: F401  # now, as pwd: when they are needed there may be no descriptor left to load them
import os
import pwd  # noqa: F401
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gpulease import __version__
from gpulease.broker.children.sampler import to_processes, to_sample
from gpulease.broker.config import Config
from gpulease.broker.core import events, instructions
from gpulease.broker.core.core import Core
from gpulease.broker.core.events import Event, ProcessKey
from gpulease.broker.core.values import About
from gpulease.broker.edge.accounts import Accounts
from gpulease.broker.edge.agents import Agents, send_own, starter
from gpulease.broker.edge.clients import Clients
from gpulease.broker.edge.clock import TICKS, Alarms, clock_of
from gpulease.broker.edge.exception_log import ExceptionLog
from gpulease.broker.edge.gpuget import gpuget_neighbour
from gpulease.broker.edge.history import History
from gpulease.broker.edge.host import Host
from gpulease.broker.edge.launcher import InheritedHome, LauncherLink
from gpulease.broker.edge.neighbours import Neighbours
from gpulease.broker.edge.order import OrderChild
from gpulease.broker.edge.reaper import Reaper
from gpulease.broker.edge.sampler import SamplerChild
from gpulease.broker.home import Home
from gpulease.broker.neighbours.safe_gpu import SafeGpuLock
from gpulease.broker.outbox import Outbox
from gpulease.errors import GpuleaseError
from gpulease.model.peer import Peer
from gpulease.model.store import Store
from gpulease.protocol.messages import Message, error
from gpulease.system import identity, places
from gpulease.system.service import SignsOfLife

MAINTENANCE_INTERVAL = 5.0  # seconds between looks at what nobody watches any more and at the socket's own file
MAX_HOOK_CALLS = 100_000  # ends of jobs that a hook is to be told of
STEP = 0.5  # seconds: smaller differences between the wall clock and the broker's are let be


class Server:
    def __init__(
        self,
        home: Home | InheritedHome,
        store: Store,
        deadline: float,
        config: Config,
        launching: LauncherLink | None = None,
        network: bool = False,
    ) -> None:
        files = _raise_file_limit()
        place = home.place
        self._poll = select.epoll()
        self._exceptions = ExceptionLog(self.log)  # a mistake of ours must cost one request, not everybody's broker
        self._store, self._home, self._config = store, home, config
        self._clock = clock_of(store)
        self._events: list[Event] = []
        self._alarms = Alarms()
        self._running = True
        self._wakers: tuple[socket.socket, ...] = ()
        self._signs = SignsOfLife(None, lambda: None)
        self._accounts = Accounts(self._poll, self.log)
        self._clients = Clients(self._poll, home.listen(), self._events.append, self.log, self._accounts)
        self._reaper = Reaper(self._poll)
        self._sampling = SamplerChild(self._poll, deadline)
        gpuget = gpuget_neighbour(self._poll, store, self.log)
        lock = SafeGpuLock(name_of=self._accounts.name_of)
        self._neighbours = Neighbours(
            self._poll, self._sampling, self._events.append, self.log, gpuget, place, home.machine, lock,
            self._accounts.shown_as,
        )  # fmt: skip
        self._ordering = OrderChild(self._poll, self._events.append)
        self._history = History(place.kept("history.db"), network, self.log)
        host = Host(self._clock, place, lambda one: ACTIONS[type(one)](self, one), self._accounts)
        self._launching = launching
        start, send = (starter(files), send_own) if launching is None else (launching.start_agent, launching.signal)
        check = None if launching is None else launching.check_account
        self._agents = Agents(self._poll, start, send, host.job_folder, self._events.append, self.log, check)
        if launching is not None:
            self._clients.prove = launching.prove
            self._poll.register(launching.descriptor, select.EPOLLIN)
        self._hooks = Outbox("gpulease.broker.children.hooks", MAX_HOOK_CALLS, self.log)
        self.maintenance_interval, self._maintained_at = MAINTENANCE_INTERVAL, time.monotonic()
        self._maintenance_trouble = ""
        self._core = Core(store, host, self._about(place), config.texts)
        gc.disable()  # what is loaded stays: looking for garbage in it again and again takes a third of the time
        self._carry_out(self._core.load(self._clock.now()))
        self._neighbours.reconcile()
        self._accounts.account(os.geteuid())
        self._accounts.starting = False
        gc.freeze()
        gc.enable()

    def _about(self, place: places.Place) -> About:
        uid, clock = os.geteuid(), self._clock
        self._wall_ahead = clock.wall_ahead()  # as the core was told last
        return About(
            os.uname().nodename, identity.boot_id(), uid, identity.user_name(uid), os.getpid(), place.kind, place.run,
            place.state, __version__, clock.now(), clock.offset, TICKS, places.simulated(os.environ),
            self._wall_ahead, len(os.sched_getaffinity(0)),
        )  # fmt: skip

    # ---------------------------------------------------------------- the loop

    def run(self, idle: float | None) -> None:
        """Serve until stopped, or until there was nothing to hold, run or wait for during `idle` seconds."""
        last_busy = time.monotonic()
        while self._running:
            now = time.monotonic()
            last_busy = now if self._core.busy or self._clients.heard else last_busy
            self._clients.heard = False
            if idle is not None and now - last_busy >= idle:
                break
            self._guarded(self._maintain)
            for descriptor, flags in self._poll.poll(self._timeout(None if idle is None else last_busy + idle)):
                self._dispatch(descriptor, flags)
            self._guarded(self._by_the_clock)
            self._guarded(self._handle)
            self._signs.give(time.monotonic())
        self._close()

    def _timeout(self, idle_at: float | None) -> float:
        if self._clients.waiting or self._events or not self._running:
            return 0.0
        now = time.monotonic()
        moments = [self.maintenance_interval] if idle_at is None else [self.maintenance_interval, idle_at - now]
        if self._alarms.next is not None:
            moments.append(self._alarms.next - self._clock.now())
        dues = (
            self._clients.due, self._sampling.due, self._neighbours.due, self._ordering.due, self._accounts.due,
            self._signs.due,
        )  # fmt: skip
        moments += [due - now for due in dues if due is not None]
        return max(0.0, min(moments)) + 0.0005

    def _maintain(self) -> None:
        now = time.monotonic()
        if now - self._maintained_at < self.maintenance_interval:
            return
        self._maintained_at = now
        self._reaper.sweep()
        self._store.shrink()
        self._guarded(lambda: self._history.keep(self._clock.now()))
        for key in self._reaper.recheck():
            self._ended(key, already=True)
        self._neighbours.maintain()
        self._agents.sweep()
        if self._launching is not None:
            self._launching.flush()
        _reap()
        self._clients.accept_waiting()
        if not self._home.whole and (self._home.deserted or not self._core.busy):
            self.stop()  # somebody removed its folders, and nothing is held
        else:
            self._put_back()

    def _follow_wall_clock(self) -> None:
        ahead = self._clock.wall_ahead()
        if abs(ahead - self._wall_ahead) > STEP:
            self._wall_ahead = ahead
            self._events.append(events.ClockStepped(ahead))

    def _put_back(self) -> None:
        """What somebody removed and the next client or the next broker needs."""
        trouble = ""
        try:
            if not self._home.whole:
                self._clients.listen_at(self._home.put_back())
                self._events.append(events.HomeMoved(self._home.place.run))
                self.log(f"removed files are put back; broker serves {self._home.place.run}")
            self._store.keep()
        except GpuleaseError as error:
            trouble = error.what
        if trouble and trouble != self._maintenance_trouble:
            self.log(trouble)
        self._maintenance_trouble = trouble

    def _dispatch(self, descriptor: int, flags: int) -> None:
        try:
            if self._clients.owns(descriptor):
                self._clients.ready(descriptor, flags)
            elif descriptor == self._sampling.descriptor:
                self._answers()
            elif descriptor == self._ordering.descriptor:
                self._ordering.answered(time.monotonic())
            elif descriptor == self._accounts.descriptor:
                self._accounts.read()
            elif self._neighbours.owns(descriptor):
                self._neighbours.ready(descriptor, flags)
            elif self._launching is not None and descriptor == self._launching.descriptor:
                if not self._launching.ready():
                    self.stop()
            elif self._agents.owns(descriptor):
                self._agents.ready(descriptor, flags)
            elif self._reaper.owns(descriptor):
                self._ended(self._reaper.ended(descriptor))
            elif self._wakers and descriptor == self._wakers[0].fileno():
                self._signalled(self._wakers[0].recv(4096))
        except Exception:
            self._exceptions.log_exception()

    def _by_the_clock(self) -> None:
        now = time.monotonic()
        if self._sampling.due is not None and self._sampling.due <= now:
            self._sample_failed(self._sampling.overdue(now))
        self._guarded(lambda: self._neighbours.overdue(now))
        if self._ordering.due is not None and self._ordering.due <= now:
            self._ordering.overdue()
        if self._accounts.due is not None and self._accounts.due <= now:
            self._accounts.overdue()
        self._clients.cut_partial(now)
        self._follow_wall_clock()  # before any message is handled that names a time of it
        due = self._clock.now()
        self._events += self._alarms.due(due)

    def _handle(self) -> None:
        """What happened, and a round of the messages, in one turn of the core."""
        if self._events or self._clients.waiting:
            events, self._events[:] = self._events[:], []
            now = self._clock.now()
            try:
                self._carry_out(self._core.handle(events, now, self._clients.round()))
                self._guarded(self._neighbours.reconcile)
            finally:
                self._clients.end_round()
            self._carry_out(self._core.prepare(now))
        self._guarded(self._neighbours.reconcile)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self._exceptions.log_exception()

    # ---------------------------------------------------------------- what happens

    def _ended(self, key: ProcessKey, already: bool = False) -> None:
        if key[1] is None and self._hooks.ended(key[0]):
            self._run_hooks()
        else:
            self._events.append(events.ProcessEnded(key, already))

    def _signalled(self, numbers: bytes) -> None:
        """SIGHUP: look users up again and read the config. An invalid config changes nothing and is logged."""
        if signal.SIGHUP not in numbers:
            return
        self._accounts.refresh()
        try:
            self._config = self._config.read()
        except GpuleaseError as trouble:
            self._events.append(events.ConfigRead(self._config.texts, str(trouble)))
        else:
            self._events.append(events.ConfigRead(self._config.texts))

    def _answers(self) -> None:
        for answer in self._sampling.read(time.monotonic()):
            if isinstance(answer, GpuleaseError):
                self._sample_failed(answer)
            elif "checked" in answer:
                seen = {
                    uuid: events.Occupancy(used, to_processes(rows), lost, busy)
                    for uuid, used, rows, lost, busy in answer["checked"]
                }
                self._neighbours.checked(seen)
            else:
                sample = to_sample(answer)
                self._neighbours.see(sample.devices, partial(self._events.append, events.Sampled(sample)))

    def _sample_failed(self, trouble: GpuleaseError) -> None:
        self._neighbours.failed()
        self._events.append(events.SampleFailed(trouble))

    # ---------------------------------------------------------------- what follows

    def _carry_out(self, instructions: Iterable[instructions.Instruction]) -> None:
        for instruction in instructions:
            try:
                ACTIONS[type(instruction)](self, instruction)
            except Exception:
                self._exceptions.log_exception()
        self._run_hooks()

    def _send(self, one: instructions.Send) -> None:
        self._clients.send(one.peer, one.message, one.droppable, one.more)

    def _answer(self, peer: Peer, read: Callable[[], Message]) -> None:
        try:
            message: Message = {"ok": read()}
        except GpuleaseError as trouble:
            message = error(trouble)
        except Exception as mistake:
            self._exceptions.log_exception()
            message = error(GpuleaseError(f"The broker failed: {type(mistake).__name__}."))
        self._clients.send(peer, message)

    def _take_sample(self, one: instructions.TakeSample) -> None:
        now = time.monotonic()
        if self._sampling.may_ask(now):
            self._sampling.ask("all", now)
        else:
            self._events.append(events.SampleFailed(self._sampling.trouble))

    def _watch(self, key: ProcessKey) -> None:
        if not self._reaper.watch(*key):
            self._ended(key, already=True)

    def _run_hooks(self) -> None:
        pid = self._hooks.start()
        if pid is not None:
            self._watch((pid, None))  # a child of ours, so the number is nobody else's until it is reaped

    def stop(self, one: instructions.Stop | None = None) -> None:
        self._running = False

    def wake_on(self, *ends: socket.socket) -> None:
        """The numbers of signals come out of the first of these, and end a wait; keep both open."""
        self._wakers = ends
        self._poll.register(ends[0].fileno(), select.EPOLLIN)

    def give_signs(self, signs: SignsOfLife) -> None:
        self._signs = signs

    @staticmethod
    def log(text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk
            print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)

    def _close(self) -> None:
        self._sampling.close()
        self._ordering.close()
        self._accounts.close()
        self._neighbours.close()
        self._agents.close()
        self._core.end(self._clock.now())
        self._hooks.flush()
        self._guarded(lambda: self._history.close(self._clock.now()))
        busy = self._core.busy
        self._store.close()
        self._clients.close()  # last: whoever asked for the end is told of it so, and may ask the next broker at once
        if not busy:
            self._home.leave()


ACTIONS: dict[type, Callable[[Server, Any], None]] = {
    instructions.Send: Server._send,
    instructions.Check: lambda server, one: server._neighbours.check(one),
    instructions.Unlock: lambda server, one: server._neighbours.unlock(one),
    instructions.UpdateNeighbours: lambda server, one: server._neighbours.keep(one),
    instructions.TakeSample: Server._take_sample,
    instructions.Watch: lambda server, one: server._watch(one.key),
    instructions.Unwatch: lambda server, one: server._reaper.forget(one.key),
    instructions.SetAlarm: lambda server, one: server._alarms.set(one),
    instructions.CancelAlarm: lambda server, one: server._alarms.drop(one.what, one.id),
    instructions.Launch: lambda server, one: server._agents.send_order(one),
    instructions.CancelLaunch: lambda server, one: server._agents.cancel_launch(one),
    instructions.ReadEnd: lambda server, one: server._agents.send_order(one),
    instructions.FindRun: lambda server, one: server._agents.send_order(one),
    instructions.SignalTree: lambda server, one: server._agents.send_order(one),
    instructions.ForceEnd: lambda server, one: server._agents.force(one),
    instructions.ReplaceAgent: lambda server, one: server._agents.replace(one),
    instructions.RemoveLogs: lambda server, one: server._agents.remove(one),
    instructions.RemoveNotes: lambda server, one: server._agents.remove_notes(one),
    instructions.CallHook: lambda server, one: server._hooks.add(
        {"name": one.name, "hook": one.command, "subject": one.subject, "about": one.about}
    ),
    instructions.Notify: lambda server, one: server._agents.notify(one),
    instructions.AskForOrder: lambda server, one: server._ordering.ask(one, time.monotonic()),
    instructions.Continue: lambda server, one: server._clients.continue_later(one.event),
    instructions.LookUpAccount: lambda server, one: server._clients.look_up_account(one.event, one.question),
    instructions.LeaseStarted: lambda server, one: server._history.lease_started(one),
    instructions.LeaseEnded: lambda server, one: server._history.lease_ended(one),
    instructions.JobEnded: lambda server, one: server._history.job_ended(one),
    instructions.DevicesSampled: lambda server, one: server._history.devices_sampled(one),
    instructions.AnswerHistory: lambda server, one: server._answer(one.peer, lambda: server._history.answer(one)),
    instructions.FreezeState: lambda server, one: server._answer(one.peer, lambda: {"file": server._store.freeze()}),
    instructions.UnfreezeState: lambda server, one: server._store.unfreeze(),
    instructions.WriteLog: lambda server, one: server.log(one.text),
    instructions.Stop: Server.stop,
}


def _reap() -> None:
    """Children whose end is noticed otherwise: samplers, hooks, agents."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _raise_file_limit() -> int:
    """What it was before, which is what jobs get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    except (OSError, ValueError):
        pass
    return soft


def listen_to_signals(server: Server) -> None:
    """SIGTERM and SIGINT end the broker as `gpulease stop` does, SIGHUP reads its config; a pipe wakes the loop."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
    server.wake_on(ours, theirs)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: server.stop())
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # the pipe tells of it
