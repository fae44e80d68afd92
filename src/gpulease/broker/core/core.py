"""The only writer: events in, one commit, instructions out.

All events that are ready are handled in one turn, then what can be granted is granted, then one commit makes it true,
and only then does anything leave. A commit that fails leaves the state as it was; then each event is handled apart, so
that whoever asked for what cannot be written is told so, and what the world said is tried again later.
Not here: sockets, processes, files and the clock, which are the edge (broker/edge/server.py).
"""

from __future__ import annotations

import traceback  # now: when it is needed there may be no descriptor left to load it
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

from gpulease.broker.core import backup as backups
from gpulease.broker.core import bulk, full_disk, known_devices, limit_names, outside_use, packing, pruning, recovery
from gpulease.broker.core import events as happened
from gpulease.broker.core import grants as granting
from gpulease.broker.core import history as remembering
from gpulease.broker.core import jobs as job_life
from gpulease.broker.core import lease_verbs as verbs
from gpulease.broker.core import neighbours as neighbouring
from gpulease.broker.core import notices as noticing
from gpulease.broker.core import order as own_order
from gpulease.broker.core import requests as requesting
from gpulease.broker.core import runs as job_ends
from gpulease.broker.core import subscriptions as subscribing
from gpulease.broker.core.events import Event, Received
from gpulease.broker.core.instructions import Alarm, Instruction, LookUp, Observed, Send, WriteLog
from gpulease.broker.core.leases import look_again
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import NotLookedUp, Planned, Turn, World
from gpulease.broker.core.values import NOTHING, About
from gpulease.errors import GpuleaseError, StateError
from gpulease.model.peer import Peer
from gpulease.model.store import Store
from gpulease.protocol.messages import error

LOOK_UP = 0.2  # seconds before it is asked again what the directory of users says
DISK = "disk"
STALLED = 30.0  # seconds that a long request which was begun waits for room on the disk
RETRY_DISK = 5.0  # seconds before what could not be written is tried again


class Core:
    def __init__(self, store: Store, world: World, about: About, config: Mapping[str, str] = NOTHING) -> None:
        self.state = State(store, about, config)
        self._world = world
        self._planned = Planned()
        self._late: list[Event] = []  # what happened and could not be written
        self._retries: set[str] = set()  # alarms that are set, to try again what a full disk kept from being done
        self._stalled: dict[Peer, float] = {}  # since when such a request could not go on
        self._logged: set[str] = set()  # what was written to the log of a trouble that is not over

    @property
    def busy(self) -> bool:
        """Whether there is anything to hold, run or wait for, or anybody who watches."""
        state = self.state
        return bool(state.requests.leases or state.requests.line or state.jobs.running or state.subscribers)

    def load(self, now: float) -> Iterator[Instruction]:
        """Find everything again as it was when the last broker ended, however it ended."""
        turn = self._turn(now)
        recovery.load(turn)
        turn.run_deferred()
        neighbouring.keep(turn)
        self.state.commit()
        yield from turn.instructions

    def handle(self, ready: Iterable[Event], now: float, more: Iterable[Event] = ()) -> Iterator[Instruction]:
        """Everything that follows from what is ready, in order.

        `more` is asked for the next event when the last one is done with, and ends when it is time to commit.
        """
        events = self._with_late(ready)
        if self.state.changes.unwritable is None:
            self._logged.clear()
            self._stalled.clear()
        turn = self._turn(now)
        try:
            for event in self._unfolded(events):
                self._take(turn, event)
            for event in more:
                events.append(event)
                self._take(turn, event)
            self._conclude(turn)
            self.state.commit()
        except Exception:
            self._undo()
            try:
                yield from self._apart(events, now)
            except Exception:
                self._undo()
                raise
            return
        yield from turn.instructions

    def prepare(self, now: float) -> Iterator[Instruction]:
        """Plan while a check is under way, so that the plan is there when the check is."""
        if self.state.devices.locked and self.state.requests.line and self.state.devices.sample is not None:
            turn = self._turn(now)
            granting.current_plan(turn)
            yield from turn.instructions

    def end(self, now: float) -> None:
        """The broker ends as it should."""
        try:
            self.state.learned.write()
            self.state.commit()
        except StateError:
            self._undo()

    # ---------------------------------------------------------------- one turn

    def _turn(self, now: float) -> Turn:
        return Turn(self.state, self._world, now, self._planned)

    def _with_late(self, ready: Iterable[Event]) -> list[Event]:
        events = list(ready)
        self._retries -= {event.what for event in events if isinstance(event, happened.Due) and event.id == DISK}
        if self._late and happened.Due("late", DISK) in events:
            events, self._late = [*self._late, *events], []
        return events

    def _unfolded(self, events: list[Event], apart: bool = False) -> Iterator[Event]:
        """The events, and behind a sample the messages that waited for it.

        `apart`: each of them is undone alone, and that they waited is over all the same.
        """
        for event in events:
            yield event
            if isinstance(event, (happened.Sampled, happened.SampleFailed)) and self.state.devices.awaiting:
                waiting = self.state.devices.awaiting
                self.state.devices.awaiting = ()
                if apart:
                    self.state.commit()
                yield from waiting

    def _take(self, turn: Turn, event: Event) -> None:
        """Handle one event. An error of a message that changed nothing is its answer; any other undoes the turn."""
        changes, instructions = self.state.changes.count, len(turn.instructions)
        try:
            HANDLERS[type(event)](turn, event)
            turn.run_deferred()
        except NotLookedUp as unknown:
            if not isinstance(event, Received) or self.state.changes.count != changes:
                raise
            del turn.instructions[instructions:]
            turn.emit(LookUp(event, unknown.question))
        except GpuleaseError as trouble:
            changed = self.state.changes.count != changes
            if not isinstance(event, Received) or isinstance(trouble, StateError) or changed:
                raise
            del turn.instructions[instructions:]
            turn.send(event.peer, error(trouble))

    def _conclude(self, turn: Turn) -> None:
        """What follows from all of them together."""
        granting.decide(turn)
        turn.run_deferred()
        requesting.answer(turn)
        granting.look_if_old(turn)
        subscribing.tell(turn)
        neighbouring.keep(turn)
        own_order.ask(turn)

    def _undo(self) -> None:
        self.state.rollback()
        self._planned = Planned()

    # ---------------------------------------------------------------- when a turn failed

    def _apart(self, events: list[Event], now: float) -> Iterator[Instruction]:
        together = self._turn(now)
        for event in self._unfolded(events, apart=True):
            turn = self._turn(now)
            try:
                self._take(turn, event)
                self.state.commit()
            except Exception as trouble:
                self._undo()
                yield from self._failed(event, trouble, now)
            else:
                yield from turn.instructions
                together.add_changes(turn)
        turn = together
        turn.planned = self._planned
        try:
            self._conclude(turn)
            self.state.commit()
        except Exception as trouble:
            self._undo()
            yield from self._cannot_conclude(trouble, now)
        else:
            yield from turn.instructions

    def _failed(self, event: Event, trouble: Exception, now: float) -> Iterator[Instruction]:
        """Who asked is told. What happened in the world has happened, and is written when that is possible again."""
        if isinstance(trouble, NotLookedUp) and isinstance(event, Received):
            yield LookUp(event, trouble.question)
            return
        self._remember(trouble)
        if isinstance(trouble, StateError) and (yield from self._without_disk(event, now)):
            return
        told = trouble if isinstance(trouble, GpuleaseError) else _mistake(trouble)
        if not isinstance(trouble, GpuleaseError):
            yield WriteLog("".join(traceback.format_exception(trouble)))
        if isinstance(event, Received) and not self._may_go_on(event, trouble, now):
            if event.progress is not None:  # what was done in earlier turns stays
                told = bulk.stopped(self.state, event, told)
                self.state.commit()
            yield Send(event.peer, error(told))
        elif isinstance(trouble, StateError):
            self._late.append(event)
            yield from self._log_once(f"not written, to be tried again: {trouble.what}")
            yield from self._retry("late", now)
        else:
            yield WriteLog(f"{event!r} could not be handled: {told.what}")

    def _may_go_on(self, event: Received, trouble: Exception, now: float) -> bool:
        """Whether a request that was begun in an earlier turn may be done later."""
        begun = isinstance(trouble, StateError) and event.progress is not None
        return begun and now - self._stalled.setdefault(event.peer, now) < STALLED

    def _remember(self, trouble: Exception) -> None:
        if isinstance(trouble, StateError):
            self.state.changes.unwritable = trouble.what

    def _without_disk(self, event: Event, now: float) -> Generator[Instruction, None, bool]:
        """Whether it was done in memory, to be written later."""
        turn = self._turn(now)
        try:
            later = full_disk.act(turn, event)
            self.state.commit()
        except Exception:
            self._undo()
            return False
        yield from turn.instructions
        self._late += later
        if later:
            yield from self._retry("late", now)
        return bool(later)

    def _retry(self, what: str, now: float) -> Iterator[Instruction]:
        """One alarm at a time, however much failed."""
        if what not in self._retries:
            self._retries.add(what)
            yield Alarm(now + RETRY_DISK, what, DISK)

    def _log_once(self, text: str) -> Iterator[Instruction]:
        if text not in self._logged:
            self._logged.add(text)
            yield WriteLog(text)

    def _cannot_conclude(self, trouble: Exception, now: float) -> Iterator[Instruction]:
        """Nothing can be granted, nor can anybody be made to wait; whoever was told that it waits goes on."""
        self._remember(trouble)
        if not isinstance(trouble, StateError):
            yield WriteLog("".join(traceback.format_exception(trouble)))
        else:
            yield from self._log_once(f"cannot grant: {trouble.what}")
        turn = self._turn(now)
        requesting.refuse_unwritten(turn, trouble if isinstance(trouble, GpuleaseError) else _mistake(trouble))
        granting.stop_check(turn)
        subscribing.tell(turn)
        neighbouring.keep(turn)
        self.state.commit()
        self._planned.decided = self.state.revision
        yield from turn.instructions
        yield from self._retry("plan", now)


def _mistake(trouble: Exception) -> GpuleaseError:
    """A mistake of ours must cost one request, not everybody's broker."""
    return GpuleaseError(f"The broker failed: {type(trouble).__name__}.")


# -------------------------------------------------------------------- what each event does


def _left(turn: Turn, event: happened.Left) -> None:
    if event.peer not in turn.state.jobs.adding:  # what was begun is done, and counted until then
        turn.state.jobs.gather(event.peer, None)
    turn.state.subscribers.drop(event.peer)
    requesting.left(turn, event.peer)
    backups.left(turn, event.peer)


def _sampled(turn: Turn, event: happened.Sampled) -> None:
    turn.state.devices.sampling = False
    sample = known_devices.identified(turn.state, event.sample)
    turn.state.devices.see(sample, turn.now)
    known_devices.look(turn)
    requesting.resume(turn)
    packing.observe(turn)
    noticing.look(turn)
    neighbouring.look(turn)
    turn.emit(Observed(turn.now, sample.devices, outside_use.look(turn)))


def _sample_failed(turn: Turn, event: happened.SampleFailed) -> None:
    """What was known gets old; leases stay as they are."""
    before = turn.state.devices.trouble
    turn.state.devices.sampling = False
    turn.state.devices.trouble = event.trouble
    turn.state.devices.failed_at = turn.now
    if before is None or before.what != event.trouble.what:
        turn.emit(WriteLog(event.trouble.what))
    granting.stop_check(turn)
    turn.planned.decided = turn.state.revision


def _due(turn: Turn, event: happened.Due) -> None:
    ALARMS[event.what](turn, event.id)


def _sample(turn: Turn, id: str) -> None:
    state = turn.state
    state.devices.look_due = False
    if state.looked_at and turn.now - state.devices.sampled_at >= state.settings.polling * 0.9:
        turn.take_sample()
    look_again(turn)


def _home_moved(turn: Turn, event: happened.HomeMoved) -> None:
    turn.state.about = turn.state.about._replace(directory=event.directory)


def _config_read(turn: Turn, event: happened.ConfigRead) -> None:
    turn.state.config_trouble = event.trouble
    turn.state.config = event.texts
    said = ["the config file was read again"] if event.trouble is None else [f"the old config stays: {event.trouble}"]
    for text in (*said, *turn.state.use_settings()):
        turn.emit(WriteLog(text))
    _name_strangers(turn)


def _name_strangers(turn: Turn, id: str = "") -> None:
    """Once the directory of users was asked for them."""
    try:
        found = limit_names.strangers(turn)
    except NotLookedUp:
        return turn.alarm(LOOK_UP, "strangers")
    for text in found:
        turn.emit(WriteLog(text))
    return None


def _write_usage(turn: Turn, id: str) -> None:
    turn.state.learned.usage_due = False
    turn.state.learned.write()


HANDLERS: dict[type, Callable[[Turn, Any], None]] = {
    happened.Received: verbs.handle,
    happened.Left: _left,
    happened.Behind: lambda turn, event: subscribing.behind(turn, event.peer),
    happened.Drained: lambda turn, event: subscribing.drained(turn, event.peer),
    happened.ProcessEnded: requesting.owner_gone,
    happened.Sampled: _sampled,
    happened.SampleFailed: _sample_failed,
    happened.Checked: granting.checked,
    happened.CheckRefused: granting.check_refused,
    happened.NeighboursChanged: neighbouring.changed,
    happened.LockUsed: neighbouring.lock_used,
    happened.LockOffered: lambda turn, event: turn.state.touch(),
    happened.Due: _due,
    happened.HomeMoved: _home_moved,
    happened.ConfigRead: _config_read,
    happened.ClockStepped: lambda turn, event: turn.state.requests.step_clock(event.wall_ahead),
    happened.AgentLost: job_ends.agent_lost,
    **dict.fromkeys(job_ends.HEARD, job_ends.heard),
    happened.Ordered: own_order.ordered,
}
ALARMS: dict[str, Callable[[Turn, str], object]] = {
    "until": requesting.time_over,
    "lease-ending": noticing.lease_ending,
    "deadline": requesting.deadline,
    "unclaimed": requesting.unclaimed,
    "sample": _sample,
    "held": lambda turn, id: remembering.look(turn),
    "usage": _write_usage,
    "plan": lambda turn, id: turn.state.touch(),
    "outside": lambda turn, id: outside_use.write(turn),
    "lost": lambda turn, id: noticing.write_lost(turn),
    "known-devices": lambda turn, id: known_devices.write(turn),
    "late": lambda turn, id: None,
    "time-limit": job_ends.over_time,
    "write-job": full_disk.write,
    "forget-request": full_disk.forget_request,
    "trees": lambda turn, id: job_ends.look_at_trees(turn),
    "free": job_life.free_later,
    "prune": lambda turn, id: pruning.prune(turn),
    "backup": backups.too_long,
    "forget-environments": pruning.forget_environments,
    "agent": job_ends.next_agent,
    "overdue": lambda turn, id: job_ends.overdue(turn),
    "tidy": job_ends.tidy,
    "strangers": _name_strangers,
    "neighbours": lambda turn, id: neighbouring.forget(turn),
    "safe-gpu": lambda turn, id: neighbouring.found(turn, neighbouring.REMEMBERED),
    "leaving": lambda turn, id: neighbouring.look_at_leaving(turn),
    "order": lambda turn, id: None,  # a turn is made, which asks
    "tell": lambda turn, id: subscribing.tell_late(turn),
}
