"""The only writer: events in, one commit, instructions out.

All events that are ready are handled in one turn, then what can be granted is granted, then one commit makes it true,
and only then does anything leave. A commit that fails leaves the state as it was; then each event is handled apart, so
that a client hears which of its requests could not be written, and events from outside are tried again later.
Not here: sockets, processes, files and the clock, which are the edge (broker/edge/server.py).
"""

from __future__ import annotations

import traceback  # now: when it is needed there may be no descriptor left to load it
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

from gpulease.broker.core import (
    bulk,
    devices,
    events,
    full_disk,
    grants,
    history,
    jobs,
    lease_verbs,
    limits,
    neighbours,
    notices,
    order,
    packing,
    recovery,
    requests,
    runs,
    subscriptions,
)
from gpulease.broker.core.events import Event, Received
from gpulease.broker.core.instructions import DevicesSampled, Instruction, LookUpAccount, Send, SetAlarm, WriteLog
from gpulease.broker.core.leases import schedule_sample
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import AccountUnknown, Planned, Turn, World, as_error
from gpulease.broker.core.values import NOTHING, About
from gpulease.errors import GpuleaseError, StateError
from gpulease.model.peer import Peer
from gpulease.model.store import Store
from gpulease.protocol.messages import error

LOOKUP_RETRY = 0.2  # seconds before it is asked again what the directory of users says
DISK = "disk"
STALL_LIMIT = 30.0  # seconds that a long request which was begun waits for room on the disk
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
        neighbours.update(turn)
        self.state.commit()
        yield from turn.instructions

    def handle(self, ready: Iterable[Event], now: float, more: Iterable[Event] = ()) -> Iterator[Instruction]:
        """Everything that follows from what is ready, in order.

        `more` is asked for the next event when the last one is done with, and ends when it is time to commit.
        """
        arrived = self._with_late(ready)
        if self.state.changes.unwritable is None:
            self._logged.clear()
            self._stalled.clear()
        turn = self._turn(now)
        try:
            for event in self._unfolded(arrived):
                self._take(turn, event)
            for event in more:
                arrived.append(event)
                self._take(turn, event)
            self._conclude(turn)
            self.state.commit()
        except Exception:
            self._undo()
            try:
                yield from self._apart(arrived, now)
            except Exception:
                self._undo()
                raise
            return
        yield from turn.instructions

    def prepare(self, now: float) -> Iterator[Instruction]:
        """Plan while a check is under way, so that the plan is there when the check is."""
        if self.state.devices.locked and self.state.requests.line and self.state.devices.sample is not None:
            turn = self._turn(now)
            grants.current_plan(turn)
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
        arrived = list(ready)
        self._retries -= {event.what for event in arrived if isinstance(event, events.AlarmRang) and event.id == DISK}
        if self._late and events.AlarmRang("late", DISK) in arrived:
            arrived, self._late = [*self._late, *arrived], []
        return arrived

    def _unfolded(self, arrived: list[Event], apart: bool = False) -> Iterator[Event]:
        """The events, and behind a sample the messages that waited for it.

        `apart`: each of them is undone alone, and that they waited is over all the same.
        """
        for event in arrived:
            yield event
            if isinstance(event, (events.Sampled, events.SampleFailed)) and self.state.devices.awaiting:
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
        except AccountUnknown as unknown:
            if not isinstance(event, Received) or self.state.changes.count != changes:
                raise
            del turn.instructions[instructions:]
            turn.emit(LookUpAccount(event, unknown.question))
        except GpuleaseError as trouble:
            changed = self.state.changes.count != changes
            if not isinstance(event, Received) or isinstance(trouble, StateError) or changed:
                raise
            del turn.instructions[instructions:]
            turn.send(event.peer, error(trouble))

    def _conclude(self, turn: Turn) -> None:
        """What follows from all of them together."""
        grants.decide(turn)
        turn.run_deferred()
        requests.answer(turn)
        grants.sample_if_stale(turn)
        subscriptions.send_changes(turn)
        neighbours.update(turn)
        order.ask(turn)

    def _undo(self) -> None:
        self.state.rollback()
        self._planned = Planned()

    # ---------------------------------------------------------------- when a turn failed

    def _apart(self, arrived: list[Event], now: float) -> Iterator[Instruction]:
        together = self._turn(now)
        for event in self._unfolded(arrived, apart=True):
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
        """Answer the client. What happened in the world has happened, and is written when that is possible again."""
        if isinstance(trouble, AccountUnknown) and isinstance(event, Received):
            yield LookUpAccount(event, trouble.question)
            return
        self._note_trouble(trouble)
        if isinstance(trouble, StateError) and (yield from self._without_disk(event, now)):
            return
        reported = as_error(trouble)
        if not isinstance(trouble, GpuleaseError):
            yield WriteLog("".join(traceback.format_exception(trouble)))
        if isinstance(event, Received) and not self._may_continue(event, trouble, now):
            if event.progress is not None:  # what was done in earlier turns stays
                reported = bulk.stopped(self.state, event, reported)
                self.state.commit()
            yield Send(event.peer, error(reported))
        elif isinstance(trouble, StateError):
            self._late.append(event)
            yield from self._log_once(f"the state was not written, and the broker tries again: {trouble.what}")
            yield from self._retry("late", now)
        else:
            yield WriteLog(f"{event!r} could not be handled: {reported.what}")

    def _may_continue(self, event: Received[Any], trouble: Exception, now: float) -> bool:
        """Whether a request that was begun in an earlier turn may be done later."""
        begun = isinstance(trouble, StateError) and event.progress is not None
        return begun and now - self._stalled.setdefault(event.peer, now) < STALL_LIMIT

    def _note_trouble(self, trouble: Exception) -> None:
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
            yield SetAlarm(now + RETRY_DISK, what, DISK)

    def _log_once(self, text: str) -> Iterator[Instruction]:
        if text not in self._logged:
            self._logged.add(text)
            yield WriteLog(text)

    def _cannot_conclude(self, trouble: Exception, now: float) -> Iterator[Instruction]:
        """Nothing can be granted, and no new request can wait. Requests that wait already go on."""
        self._note_trouble(trouble)
        if not isinstance(trouble, StateError):
            yield WriteLog("".join(traceback.format_exception(trouble)))
        else:
            yield from self._log_once(f"cannot grant: {trouble.what}")
        turn = self._turn(now)
        requests.refuse_unwritten(turn, as_error(trouble))
        grants.stop_check(turn)
        subscriptions.send_changes(turn)
        neighbours.update(turn)
        self.state.commit()
        self._planned.decided = self.state.revision
        yield from turn.instructions
        yield from self._retry("plan", now)


# -------------------------------------------------------------------- what each event does


def _client_gone(turn: Turn, event: events.ClientGone) -> None:
    if event.peer not in turn.state.jobs.adding:  # what was begun is done, and counted until then
        turn.state.jobs.gather(event.peer, None)
    turn.state.subscribers.drop(event.peer)
    requests.client_gone(turn, event.peer)
    lease_verbs.end_backup(turn, event.peer)


def _sampled(turn: Turn, event: events.Sampled) -> None:
    turn.state.devices.sampling = False
    sample = devices.identified(turn.state, event.sample)
    turn.state.devices.set_sample(sample, turn.now)
    devices.update_known(turn)
    requests.resume(turn)
    packing.observe(turn)
    notices.check_lost_devices(turn)
    neighbours.look(turn)
    turn.emit(DevicesSampled(turn.now, sample.devices, devices.update_outside_use(turn)))


def _sample_failed(turn: Turn, event: events.SampleFailed) -> None:
    """What was known gets old; leases stay as they are."""
    before = turn.state.devices.trouble
    turn.state.devices.sampling = False
    turn.state.devices.trouble = event.trouble
    turn.state.devices.failed_at = turn.now
    if before is None or before.what != event.trouble.what:
        turn.emit(WriteLog(event.trouble.what))
    grants.stop_check(turn)
    turn.planned.decided = turn.state.revision


def _alarm_rang(turn: Turn, event: events.AlarmRang) -> None:
    ALARMS[event.what](turn, event.id)


def _sample(turn: Turn, id: str) -> None:
    state = turn.state
    state.devices.sample_due = False
    if state.needs_samples and turn.now - state.devices.sampled_at >= state.settings.polling * 0.9:
        turn.take_sample()
    schedule_sample(turn)


def _home_moved(turn: Turn, event: events.HomeMoved) -> None:
    turn.state.about = turn.state.about._replace(directory=event.directory)


def _config_read(turn: Turn, event: events.ConfigRead) -> None:
    turn.state.config_trouble = event.trouble
    turn.state.config = event.texts
    said = ["the config file was read again"] if event.trouble is None else [f"the old config stays: {event.trouble}"]
    for text in (*said, *turn.state.use_settings()):
        turn.emit(WriteLog(text))
    _log_unknown_names(turn)


def _log_unknown_names(turn: Turn, id: str = "") -> None:
    """Once the directory of users was asked for them."""
    try:
        found = limits.unknown_names(turn)
    except AccountUnknown:
        return turn.alarm(LOOKUP_RETRY, "strangers")
    for text in found:
        turn.emit(WriteLog(text))
    return None


def _write_usage(turn: Turn, id: str) -> None:
    turn.state.learned.usage_due = False
    turn.state.learned.write()


HANDLERS: dict[type, Callable[[Turn, Any], None]] = {
    events.Received: lease_verbs.handle,
    events.ClientGone: _client_gone,
    events.Behind: lambda turn, event: subscriptions.behind(turn, event.peer),
    events.CaughtUp: lambda turn, event: subscriptions.drained(turn, event.peer),
    events.ProcessEnded: requests.owner_gone,
    events.Sampled: _sampled,
    events.SampleFailed: _sample_failed,
    events.Checked: grants.checked,
    events.CheckRefused: grants.check_refused,
    events.NeighboursChanged: neighbours.changed,
    events.LockUsed: neighbours.lock_used,
    events.LockOffered: lambda turn, event: turn.state.touch(),
    events.AlarmRang: _alarm_rang,
    events.HomeMoved: _home_moved,
    events.ConfigRead: _config_read,
    events.ClockStepped: lambda turn, event: turn.state.requests.step_clock(event.wall_ahead),
    events.AgentLost: runs.agent_lost,
    **dict.fromkeys(runs.RUN_EVENTS, runs.handle),
    events.OrderAnswered: order.ordered,
}
ALARMS: dict[str, Callable[[Turn, str], object]] = {
    "until": requests.lease_expired,
    "lease-ending": notices.lease_ending,
    "deadline": requests.deadline,
    "unclaimed": requests.unclaimed,
    "sample": _sample,
    "held": lambda turn, id: history.sample_held_devices(turn),
    "usage": _write_usage,
    "plan": lambda turn, id: turn.state.touch(),
    "outside": lambda turn, id: devices.write_outside_use(turn),
    "lost": lambda turn, id: notices.record_lost_devices(turn),
    "known-devices": lambda turn, id: devices.write_known(turn),
    "late": lambda turn, id: None,
    "time-limit": runs.time_limit_reached,
    "write-job": full_disk.write,
    "forget-request": full_disk.forget_request,
    "trees": lambda turn, id: runs.check_trees(turn),
    "free": jobs.free_later,
    "prune": lambda turn, id: jobs.prune(turn),
    "backup": lease_verbs.backup_too_long,
    "forget-environments": jobs.forget_environments,
    "agent": runs.next_agent,
    "overdue": lambda turn, id: runs.overdue(turn),
    "tidy": runs.remove_notes,
    "strangers": _log_unknown_names,
    "neighbours": lambda turn, id: neighbours.forget_unseen(turn),
    "safe-gpu": lambda turn, id: neighbours.found(turn, neighbours.REMEMBERED),
    "leaving": lambda turn, id: neighbours.look_at_leaving(turn),
    "order": lambda turn, id: None,  # a turn is made, which asks
    "tell": lambda turn, id: subscriptions.send_late(turn),
}
