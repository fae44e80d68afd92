"""The broker's edge: sockets, pidfds, the sampler, users' errands and the clock, on one epoll. Nothing here decides.

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
from gpulease.broker.core import events as happened
from gpulease.broker.core import instructions as told
from gpulease.broker.core.core import Core
from gpulease.broker.core.events import Event, Key
from gpulease.broker.core.values import About
from gpulease.broker.edge.accounts import Accounts
from gpulease.broker.edge.agents import Agents, send_own, starter
from gpulease.broker.edge.alarms import Alarms
from gpulease.broker.edge.clients import Clients
from gpulease.broker.edge.clock import TICKS, clock_of
from gpulease.broker.edge.complaints import Complaints
from gpulease.broker.edge.gpuget import gpuget_beside
from gpulease.broker.edge.history import History
from gpulease.broker.edge.host import Host
from gpulease.broker.edge.launcher import GivenHome, Launching
from gpulease.broker.edge.neighbours import Neighbours
from gpulease.broker.edge.order import Ordering
from gpulease.broker.edge.reaper import Reaper
from gpulease.broker.edge.sampler import Sampling
from gpulease.broker.home import Home
from gpulease.broker.neighbours.safe_gpu import SafeGpuLock
from gpulease.broker.outbox import Outbox
from gpulease.errors import GpuleaseError
from gpulease.model.peer import Peer
from gpulease.model.store import Store
from gpulease.protocol.messages import Message, error
from gpulease.system import identity, places
from gpulease.system.service import SignsOfLife

HOUSEKEEPING = 5.0  # seconds between looks at what nobody watches any more and at the socket's own file
MOST_TOLD = 100_000  # ends of jobs that a hook is to be told of
STEP = 0.5  # seconds: smaller differences between the wall clock and the broker's are let be


class Server:
    def __init__(
        self,
        home: Home | GivenHome,
        store: Store,
        deadline: float,
        config: Config,
        launching: Launching | None = None,
        network: bool = False,
    ) -> None:
        files = _raise_file_limit()
        place = home.place
        self._poll = select.epoll()
        self._complaints = Complaints(self.log)  # a mistake of ours must cost one request, not everybody's broker
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
        self._sampling = Sampling(self._poll, deadline)
        gpuget = gpuget_beside(self._poll, store, self.log)
        lock = SafeGpuLock(name_of=self._accounts.name_of)
        self._neighbours = Neighbours(
            self._poll, self._sampling, self._events.append, self.log, gpuget, place, home.machine, lock,
            self._accounts.shown_as,
        )  # fmt: skip
        self._ordering = Ordering(self._poll, self._events.append)
        self._history = History(place.kept("history.db"), network, self.log)
        host = Host(self._clock, place, lambda one: DOES[type(one)](self, one), self._accounts)
        self._launching = launching
        start, send = (starter(files), send_own) if launching is None else (launching.start_agent, launching.signal)
        check = None if launching is None else launching.check_account
        self._agents = Agents(self._poll, start, send, host.job_folder, self._events.append, self.log, check)
        if launching is not None:
            self._clients.prove = launching.prove
            self._poll.register(launching.descriptor, select.EPOLLIN)
        self._hooks = Outbox("gpulease.broker.children.hooks", MOST_TOLD, self.log)
        self.housekeeping, self._house_kept = HOUSEKEEPING, time.monotonic()
        self._house_trouble = ""
        self._core = Core(store, host, self._about(place), config.texts)
        gc.disable()  # what is loaded stays: looking for garbage in it again and again takes a third of the time
        self._carry_out(self._core.load(self._clock.now()))
        self._neighbours.settle()
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
            self._guarded(self._keep_house)
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
        moments = [self.housekeeping] if idle_at is None else [self.housekeeping, idle_at - now]
        if self._alarms.next is not None:
            moments.append(self._alarms.next - self._clock.now())
        dues = (
            self._clients.due, self._sampling.due, self._neighbours.due, self._ordering.due, self._accounts.due,
            self._signs.due,
        )  # fmt: skip
        moments += [due - now for due in dues if due is not None]
        return max(0.0, min(moments)) + 0.0005

    def _keep_house(self) -> None:
        now = time.monotonic()
        if now - self._house_kept < self.housekeeping:
            return
        self._house_kept = now
        self._reaper.sweep()
        self._store.shrink()
        self._guarded(lambda: self._history.keep(self._clock.now()))
        for key in self._reaper.look_again():
            self._ended(key, already=True)
        self._neighbours.keep_house()
        self._agents.sweep()
        if self._launching is not None:
            self._launching.flush()
        _reap()
        self._clients.let_in()
        if not self._home.whole and (self._home.deserted or not self._core.busy):
            self.stop()  # somebody removed its folders, and nothing is held
        else:
            self._put_back()

    def _follow_wall_clock(self) -> None:
        ahead = self._clock.wall_ahead()
        if abs(ahead - self._wall_ahead) > STEP:
            self._wall_ahead = ahead
            self._events.append(happened.ClockStepped(ahead))

    def _put_back(self) -> None:
        """What somebody removed and the next client or the next broker needs."""
        trouble = ""
        try:
            if not self._home.whole:
                self._clients.listen_at(self._home.put_back())
                self._events.append(happened.HomeMoved(self._home.place.run))
                self.log(f"what had been removed is put back; broker serves {self._home.place.run}")
            self._store.keep()
        except GpuleaseError as error:
            trouble = error.what
        if trouble and trouble != self._house_trouble:
            self.log(trouble)
        self._house_trouble = trouble

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
            self._complaints.complain()

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
                self._guarded(self._neighbours.settle)
            finally:
                self._clients.end_round()
            self._carry_out(self._core.prepare(now))
        self._guarded(self._neighbours.settle)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self._complaints.complain()

    # ---------------------------------------------------------------- what happens

    def _ended(self, key: Key, already: bool = False) -> None:
        if key[1] is None and self._hooks.ended(key[0]):
            self._run_hooks()
        else:
            self._events.append(happened.ProcessEnded(key, already))

    def _signalled(self, numbers: bytes) -> None:
        """SIGHUP: users are looked up again, and the config is read; a wrong one changes nothing and is told."""
        if signal.SIGHUP not in numbers:
            return
        self._accounts.refresh()
        try:
            self._config = self._config.read()
        except GpuleaseError as trouble:
            self._events.append(happened.ConfigRead(self._config.texts, str(trouble)))
        else:
            self._events.append(happened.ConfigRead(self._config.texts))

    def _answers(self) -> None:
        for answer in self._sampling.read(time.monotonic()):
            if isinstance(answer, GpuleaseError):
                self._sample_failed(answer)
            elif "checked" in answer:
                seen = {
                    uuid: happened.Occupancy(used, to_processes(rows), lost, busy)
                    for uuid, used, rows, lost, busy in answer["checked"]
                }
                self._neighbours.checked(seen)
            else:
                sample = to_sample(answer)
                self._neighbours.see(sample.devices, partial(self._events.append, happened.Sampled(sample)))

    def _sample_failed(self, trouble: GpuleaseError) -> None:
        self._neighbours.failed()
        self._events.append(happened.SampleFailed(trouble))

    # ---------------------------------------------------------------- what follows

    def _carry_out(self, instructions: Iterable[told.Instruction]) -> None:
        for instruction in instructions:
            try:
                DOES[type(instruction)](self, instruction)
            except Exception:
                self._complaints.complain()
        self._run_hooks()

    def _send(self, one: told.Send) -> None:
        self._clients.send(one.peer, one.message, one.droppable, one.more)

    def _answer(self, peer: Peer, read: Callable[[], Message]) -> None:
        try:
            message: Message = {"ok": read()}
        except GpuleaseError as trouble:
            message = error(trouble)
        except Exception as mistake:
            self._complaints.complain()
            message = error(GpuleaseError(f"The broker failed: {type(mistake).__name__}."))
        self._clients.send(peer, message)

    def _take_sample(self, one: told.TakeSample) -> None:
        now = time.monotonic()
        if self._sampling.may_ask(now):
            self._sampling.ask("all", now)
        else:
            self._events.append(happened.SampleFailed(self._sampling.trouble))

    def _watch(self, key: Key) -> None:
        if not self._reaper.watch(*key):
            self._ended(key, already=True)

    def _run_hooks(self) -> None:
        pid = self._hooks.start()
        if pid is not None:
            self._watch((pid, None))  # a child of ours, so the number is nobody else's until it is reaped

    def stop(self, one: told.Stop | None = None) -> None:
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


DOES: dict[type, Callable[[Server, Any], None]] = {
    told.Send: Server._send,
    told.Check: lambda server, one: server._neighbours.check(one),
    told.Unlock: lambda server, one: server._neighbours.unlock(one),
    told.Keep: lambda server, one: server._neighbours.keep(one),
    told.TakeSample: Server._take_sample,
    told.Watch: lambda server, one: server._watch(one.key),
    told.Unwatch: lambda server, one: server._reaper.forget(one.key),
    told.Alarm: lambda server, one: server._alarms.set(one),
    told.Silence: lambda server, one: server._alarms.drop(one.what, one.id),
    told.Launch: lambda server, one: server._agents.give(one),
    told.ReadEnd: lambda server, one: server._agents.give(one),
    told.Find: lambda server, one: server._agents.give(one),
    told.SignalTree: lambda server, one: server._agents.give(one),
    told.Force: lambda server, one: server._agents.force(one),
    told.Replace: lambda server, one: server._agents.replace(one),
    told.Remove: lambda server, one: server._agents.remove(one),
    told.Tidy: lambda server, one: server._agents.tidy(one),
    told.Hook: lambda server, one: server._hooks.add(
        {"name": one.name, "hook": one.command, "subject": one.subject, "about": one.about}
    ),
    told.Notify: lambda server, one: server._agents.notify(one),
    told.AskOrder: lambda server, one: server._ordering.ask(one, time.monotonic()),
    told.GoOn: lambda server, one: server._clients.go_on(one.event),
    told.LookUp: lambda server, one: server._clients.look_up(one.event, one.question),
    told.Began: lambda server, one: server._history.began(one),
    told.Over: lambda server, one: server._history.over(one),
    told.JobOver: lambda server, one: server._history.job_over(one),
    told.Observed: lambda server, one: server._history.observed(one),
    told.AnswerHistory: lambda server, one: server._answer(one.peer, lambda: server._history.answer(one)),
    told.HoldState: lambda server, one: server._answer(one.peer, lambda: {"file": server._store.hold()}),
    told.LetStateGo: lambda server, one: server._store.let_go(),
    told.WriteLog: lambda server, one: server.log(one.text),
    told.Stop: Server.stop,
}


def _reap() -> None:
    """Children whose end was told otherwise: samplers, hooks, agents."""
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
