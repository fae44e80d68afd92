"""A world for the broker's core in one process: what it asks for is kept, and answered when the test says so.

Not a mock of ours: the core, its state and its store are real. What is scripted is the kernel, the driver and the disk.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, cast

from gpulease.broker.core import events, instructions
from gpulease.broker.core.core import Core
from gpulease.broker.core.events import Event, ProcessKey, RunNote
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Planned, Turn
from gpulease.broker.core.values import About
from gpulease.errors import StateError
from gpulease.model.jobs import Job
from gpulease.model.peer import Account, Peer
from gpulease.model.store import HistoryEvent
from gpulease.model.values import Device, HostMemory, Process, Sample
from gpulease.protocol.messages import Reply
from gpulease.protocol.wire import Unpacker, pack
from support.memory_store import MemoryStore

LARGEST = 16 << 20  # bytes of a message
MEMORY = 80 << 30
BOOT = "boot-1"
DEVICES = 3


LIES: dict[type, Callable[[int, int], Event]] = {
    events.EndRead: lambda id, run: events.EndRead(id, run, RunNote(2, 0), False, None),
    events.LaunchFailed: lambda id, run: events.LaunchFailed(id, run, "a lie", temporary=True),
    events.Launched: lambda id, run: events.Launched(id, run, 2, 1, 0),
    events.Found: lambda id, run: events.Found(id, run, RunNote(), None, None, False),
    events.TreeSeen: lambda id, run: events.TreeSeen(id, run, 0),
}


class Disk(MemoryStore):
    """A store whose writes and commits fail when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_writes = self.fail_commits = self.fail_appends = 0
        self.writes = 0  # so far
        self.dirty = False

    def write(self, table: str, key: str, document: dict[str, Any] | None) -> None:
        if self.fail_writes:
            self.fail_writes -= 1
            raise StateError("The disk is full.")
        self.dirty = True
        self.writes += 1
        super().write(table, key, document)

    def append(self, event: HistoryEvent) -> None:
        if self.fail_appends:
            self.fail_appends -= 1
            raise StateError("The disk is full.")
        super().append(event)

    def commit(self, durable: bool = False) -> bool:
        if self.dirty and self.fail_commits:
            self.fail_commits -= 1
            raise StateError("The disk is full.")
        self.dirty = False
        return super().commit(durable)

    def rollback(self) -> None:
        self.dirty = False
        super().rollback()


class Client:
    """One connection: what it asked, and what it knows."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.asked: list[dict[str, Any]] = []  # messages that were not answered yet
        self.shown: dict[str, dict[str, Any]] = {}  # to a subscriber, by topic and key
        self.open: int | None = None
        self.missed = False  # it did not read what came before, so the edge left something out

    def hear(self, message: Mapping[str, Any]) -> None:
        if "snapshot" in message:
            self.shown = {topic: {} for topic in message["snapshot"] if topic != "open"}
        for topic, rows in next(iter(message.values())).items():
            if topic == "open":
                self.open = rows
            else:
                kept = {**self.shown[topic], **rows}
                self.shown[topic] = {key: row for key, row in kept.items() if row is not None}


class ScriptedWorld:
    """The kernel's part of the world, and the edge's duty to carry out."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.wall_ahead = 0.0  # of the broker that is started next
        self.disk = Disk()
        self.processes: set[ProcessKey] = set()  # that live
        self.watched: set[ProcessKey] = set()
        self.outside: dict[str, int] = {}  # devices with somebody on them, and who
        self.clients: dict[Peer, Client] = {}
        self.left: dict[Peer, Client] = {}  # who left; what they had asked for is done all the same
        self.ready: list[Event] = []
        self.alarms: list[tuple[float, str, str]] = []
        self.checks: list[instructions.Check] = []
        self.samples = 0
        self.launches: list[instructions.Launch] = []
        self.ends: list[instructions.ReadEnd] = []
        self.trees: list[instructions.SignalTree] = []
        self.finds: list[instructions.FindRun] = []
        self.shells: dict[tuple[int, int], ProcessKey] = {}  # by job and run
        self.tended: set[tuple[int, int]] = set()  # runs that an agent watches
        self.adopted: set[tuple[int, int]] = set()  # those of them that a former agent started: it learns no code
        self.checking = False  # the account of the jobs' user is checked: launches have not been sent to the agent yet
        self.silent = False  # the agent neither does what it is told nor tells of anything
        self.codes: dict[tuple[int, int], int] = {}  # noted by shells; one that was killed notes nothing
        self.children: set[tuple[int, int]] = set()  # runs with a process that outlives its shell, and TERM
        self.notices: list[instructions.Notify] = []
        self.hooked: list[instructions.CallHook] = []
        self.lost: dict[str, str] = {}  # devices that the driver lost, and why
        self.logs: list[str] = []
        self.questions: list[instructions.AskForOrder] = []  # to a function that orders the line
        self.removed: list[str] = []  # logs of jobs
        self.sent: list[instructions.Send] = []  # in the last turn
        self.launched: list[Job] = []  # in the last turn
        self.turns = 0
        self.asked: dict[int, int] = {}  # checks by revision: the turn in which each was asked for
        self.looked: dict[str, int] = {}  # devices, and the turn in which the last check of them was asked for
        self.slow = False  # subscribers do not read
        self.locked = False
        self.neighbour: dict[str, str] = {}  # devices that a neighbour took, and who
        self.claimed: set[str] = set()  # devices that the neighbour let us have; it remembers them whoever dies
        self.undecided: set[str] = set()  # of a check that was answered
        self.placeholders: dict[str, int] = {}  # by device
        self.kept = instructions.UpdateNeighbours()
        self.remembered: dict[str, tuple[str, ...]] = {}  # leases that the history knows of, and their devices
        self.memory: float | None = 0.9
        self.pids = iter(range(1000, 10_000_000))
        self.core = self._start()

    # ---------------------------------------------------------------- facts, as the core may ask for them

    def identify(self, pid: int, named: int | None) -> tuple[int | None, int | None, int | None]:
        pid = pid if named is None else named
        return (pid, 1, 1000) if self._lives(pid) else (pid, None, None)

    def _lives(self, pid: int) -> bool:
        return any(pid == key[0] for key in self.processes)

    def above(self, pid: int) -> list[int]:
        return [pid]

    def requesting_process(self, pid: int) -> int:
        return 2  # one script for all

    def is_gone(self, pid: int, start_time: int | None) -> bool:
        return not self._lives(pid)

    def groups_of(self, uid: int) -> tuple[str, ...]:
        return ("users",)

    def uid_of(self, name: str) -> int | None:
        return int(name.removeprefix("user"))

    def has_group(self, name: str) -> bool:
        return name == "users"

    def job_folder(self, uid: int) -> str:
        return f"/jobs/{uid}"

    def host_memory(self) -> HostMemory:
        return HostMemory(1000, None if self.memory is None else round(1000 * self.memory))

    def at_once(self, instruction: instructions.Check | instructions.TakeSample) -> None:
        if isinstance(instruction, instructions.Check):
            self.locked = True
            self.asked[instruction.revision] = self.turns
            self.checks.append(instruction)
        else:
            self.samples += 1

    # ---------------------------------------------------------------- the broker

    def _start(self) -> Core:
        beside = {"neighbours.safe-gpu": "on"}
        about = About("host", BOOT, kind="system", began=self.now, wall_ahead=self.wall_ahead)
        core = Core(self.disk, self, about, beside)
        self.carry_out(core.load(self.now))
        self.settle()
        if self.neighbour:
            self.tell_neighbours()
        return core

    def restart(self) -> None:
        """Killed at this instant: what was not committed is gone, and so is everything that was under way."""
        self.disk.rollback()
        self.ready.clear()
        for store in (self.alarms, self.checks, self.launches, self.ends, self.trees, self.finds):
            store.clear()
        self.samples, self.locked = 0, False
        self.undecided.clear()
        self.placeholders.clear()
        self.watched.clear()
        self.tended.clear()
        self.silent = False
        self.remembered.clear()
        self.clients.clear()
        self.core = self._start()

    def turn(self) -> None:
        """Everything that is ready, handled at once."""
        events, self.ready = self.ready, []
        self.turns += 1
        self.sent.clear()
        self.launched.clear()
        self.carry_out(self.core.handle(events, self.now))
        self.settle()
        self.carry_out(self.core.prepare(self.now))

    def carry_out(self, instructions: Any) -> None:
        for one in instructions:
            assert not self.disk.dirty, f"{one} left before its commit"
            getattr(self, f"_{type(one).__name__}")(one)

    # ---------------------------------------------------------------- carrying out

    def _Send(self, one: instructions.Send) -> None:
        client = self.clients.get(one.peer)
        one = one._replace(
            message=cast(Reply, Unpacker(LARGEST).feed(pack(one.message, LARGEST))[0])
        )  # as it is read there
        self.sent.append(one)
        if client is None or client.missed:
            return
        if one.droppable and self.slow:
            client.missed = True
            self.ready.append(events.Behind(one.peer))
        elif "snapshot" in one.message or "changed" in one.message:
            client.hear(one.message)
            if one.more:
                self.ready.append(events.CaughtUp(one.peer))

    def _Continue(self, one: instructions.Continue) -> None:
        self.ready.append(one.event)

    def _AnswerHistory(self, one: instructions.AnswerHistory) -> None:
        self._Send(instructions.Send(one.peer, {"ok": {"rows": []}}))

    def _Unlock(self, one: instructions.Unlock) -> None:
        if not self.checks:
            self.locked = False
            self.undecided.clear()

    def _UpdateNeighbours(self, one: instructions.UpdateNeighbours) -> None:
        self.kept = one

    def settle(self) -> None:
        """Give back to the neighbour what is nobody's."""
        self.claimed &= self.kept.held.keys() | self.kept.leaving | self.undecided
        assert not self.kept.held.keys() & self.neighbour.keys(), "a device of ours was given back while it was held"
        self.claimed |= self.kept.held.keys()
        for uuid in self.placeholders.keys() - self.claimed:
            del self.placeholders[uuid]

    def _Watch(self, one: instructions.Watch) -> None:
        if one.key in self.processes:
            self.watched.add(one.key)
        else:
            self.ready.append(events.ProcessEnded(one.key, already=True))

    def _Unwatch(self, one: instructions.Unwatch) -> None:
        self.watched.discard(one.key)

    def _SetAlarm(self, one: instructions.SetAlarm) -> None:
        if one.id:
            self._CancelAlarm(instructions.CancelAlarm(one.what, one.id))  # it is set anew
        heappush(self.alarms, (one.time, one.what, one.id))

    def _CancelAlarm(self, one: instructions.CancelAlarm) -> None:
        self.alarms = [alarm for alarm in self.alarms if alarm[1:] != (one.what, one.id)]
        heapify(self.alarms)

    def _Launch(self, one: instructions.Launch) -> None:
        self.launched.append(one.job)
        self._order(self.launches, one)

    def _CancelLaunch(self, one: instructions.CancelLaunch) -> None:
        if self.checking and any(launch.job.id == one.job.id for launch in self.launches):
            self.launches = [launch for launch in self.launches if launch.job.id != one.job.id]
            self.ready.append(events.LaunchFailed(one.job.id, one.job.run, "it was ended before it began"))

    def _ReadEnd(self, one: instructions.ReadEnd) -> None:
        self._order(self.ends, one)

    def _SignalTree(self, one: instructions.SignalTree) -> None:
        self._order(self.trees, one)

    def _FindRun(self, one: instructions.FindRun) -> None:
        self._order(self.finds, one)

    def _order(self, orders: list[Any], one: Any) -> None:
        if not self.silent:
            orders.append(one)

    def _ForceEnd(self, one: instructions.ForceEnd) -> None:
        """The broker ends the run's processes itself, and has another agent."""
        run = (one.job.id, one.job.run)
        key = self.shells.get(run)
        alive = key in self.processes or run in self.children
        self.children.discard(run)
        if key is not None:
            self.die(key)
        self.ready.append(events.Forced(one.job.id, one.job.run, int(alive)))
        self.lose_agent(one.job.uid)

    def _ReplaceAgent(self, one: instructions.ReplaceAgent) -> None:
        self.lose_agent(one.uid)

    def _AskForOrder(self, one: instructions.AskForOrder) -> None:
        if one.waiting:
            self.questions.append(one)

    def _WriteLog(self, one: instructions.WriteLog) -> None:
        self.logs.append(one.text)

    def _Notify(self, one: instructions.Notify) -> None:
        self.notices.append(one)

    def _CallHook(self, one: instructions.CallHook) -> None:
        self.hooked.append(one)

    def _nothing(self, one: object) -> None:
        pass

    _RemoveNotes = _Stop = _JobEnded = _DevicesSampled = _nothing

    def _LeaseStarted(self, one: instructions.LeaseStarted) -> None:
        assert one.lease.id not in self.remembered, "a lease began twice"
        self.remembered[one.lease.id] = one.lease.devices

    def _LeaseEnded(self, one: instructions.LeaseEnded) -> None:
        del self.remembered[one.id]

    def _RemoveLogs(self, one: instructions.RemoveLogs) -> None:
        self.removed += one.logs

    # ---------------------------------------------------------------- what the world does

    def connect(self, uid: int = 1000) -> Client:
        pid = next(self.pids)
        self.processes.add((pid, 1))
        peer = Peer(pid, uid, Account(f"user{uid}" if uid else "root", ("users",)))
        self.clients[peer] = Client(peer)
        return self.clients[peer]

    def say(self, client: Client, verb: str, **fields: Any) -> None:
        message = {"v": 1, "do": verb, **fields}
        client.asked.append(message)
        self.ready.append(events.Received(client.peer, message))

    def read(self) -> None:
        """Slow subscribers read everything that was sent to them."""
        for client in self.clients.values():
            if client.missed:
                client.missed = False
                self.ready.append(events.CaughtUp(client.peer))

    def leave(self, client: Client) -> None:
        self.left[client.peer] = self.clients.pop(client.peer)
        self.ready.append(events.ClientGone(client.peer))

    def die(self, key: ProcessKey) -> None:
        if key in self.processes:
            self.processes.discard(key)
            if key in self.watched:
                self.watched.discard(key)
                self.ready.append(events.ProcessEnded(key))

    def devices(self) -> list[Device]:
        return [self._device(index) for index in range(DEVICES)]

    def _device(self, index: int) -> Device:
        uuid = f"GPU-{index}"
        pid = self.outside.get(uuid)
        processes = [] if pid is None else [Process(pid, 5, "stranger", "x", 1 << 30)]
        if uuid in self.placeholders:
            processes.append(Process(self.placeholders[uuid], 5, "root", "placeholder", 1 << 28))
        used = sum(process.memory or 0 for process in processes)
        lost = self.lost.get(uuid)
        return Device(index, uuid, "A100", memory_total=MEMORY, memory_used=used, processes=tuple(processes), lost=lost)

    def answer_sample(self) -> None:
        self.samples -= 1
        self.ready.append(events.Sampled(Sample(self.now, tuple(self.devices()), True, "550")))

    def fail_driver(self) -> None:
        """Whatever it was asked for."""
        self.samples = 0
        self.checks.clear()
        self.undecided.clear()
        self.ready.append(events.SampleFailed(StateError("The driver did not answer.")))

    def answer_check(self) -> None:
        check = self.checks.pop(0)
        self.looked |= dict.fromkeys(check.devices, self.asked[check.revision])
        seen = {one.uuid: events.Occupancy(one.memory_used, one.processes, one.lost) for one in self.devices()}
        held = {uuid: who for uuid, who in self.neighbour.items() if uuid in check.devices}
        claimed = set(check.devices) - held.keys()
        self.claimed |= claimed
        self.undecided |= claimed
        self.ready.append(events.Checked(check.revision, {uuid: seen[uuid] for uuid in sorted(claimed)}, held))

    def refuse_check(self) -> None:
        check = self.checks.pop(0)
        self.locked = bool(self.checks)
        self.ready.append(events.CheckRefused(check.revision, "Process 7 is choosing GPUs.", temporary=True))

    def neighbour_takes(self, uuid: str, told: bool) -> None:
        """What it let us have it cannot take. It may tell of it only when it is asked for the device."""
        if uuid not in self.claimed:
            self.neighbour[uuid] = "gpuget"
            if told:
                self.tell_neighbours()

    def neighbour_gives(self, uuid: str) -> None:
        self.neighbour.pop(uuid, None)
        self.tell_neighbours()

    def place(self, uuid: str) -> None:
        """A placeholder appears on a device of a lease, or of a check; it is told of before it can be seen."""
        if uuid in self.claimed:
            self.placeholders[uuid] = next(self.pids)
            self.tell_neighbours()

    def tell_neighbours(self) -> None:
        placeholders: dict[ProcessKey, str] = {(pid, 5): uuid for uuid, pid in self.placeholders.items()}
        self.ready.append(events.NeighboursChanged(dict(self.neighbour), placeholders))

    def launch(self, fails: bool = False, temporary: bool = False) -> None:
        job = self.launches.pop(0).job
        if fails:
            self.ready.append(events.LaunchFailed(job.id, job.run, "no such file", temporary))
            return
        key = (next(self.pids), 1)
        self.processes.add(key)
        self.shells[job.id, job.run] = key
        self.tended.add((job.id, job.run))
        self.ready.append(events.Launched(job.id, job.run, key[0], 1, 0))

    def alive(self) -> list[tuple[int, int]]:
        """Runs whose shell lives."""
        return sorted(run for run, key in self.shells.items() if key in self.processes)

    def end_shell(self, run: tuple[int, int], code: int) -> None:
        if code >= 0:
            self.codes[run] = code
        self.die(self.shells[run])
        if run in self.tended and not self.silent:
            self.tended.discard(run)
            self.ready.append(events.RunEnded(*run, None if run in self.adopted else code))

    def lose_agent(self, uid: int = 0) -> None:
        """With all that it was told and has not done, and all that it has not told."""
        for store in (self.launches, self.ends, self.trees, self.finds):
            store.clear()
        self.tended.clear()
        self.silent = False
        told_by_agent = (events.Launched, events.LaunchFailed, events.RunEnded, events.Found)
        told_by_agent += (events.EndRead, events.TreeSeen)  # type: ignore[assignment]
        self.ready = [event for event in self.ready if not isinstance(event, told_by_agent)]
        self.ready.append(events.AgentLost(uid))

    def silence_agent(self) -> None:
        """It hangs, or its user keeps it from acting; nobody hears of that."""
        for store in (self.launches, self.ends, self.trees, self.finds):
            store.clear()
        self.silent = True

    def lie(self, event: type, id: int, run: int) -> None:
        """The agent is a user's program: it may tell of what it was not asked for."""
        self.ready.append(LIES[event](id, run))

    def sweep(self) -> None:
        """The edge replaces an agent that does not tell of the end of a shell which everybody can see."""
        if self.silent and any(self.shells[run] not in self.processes for run in self.tended):
            self.lose_agent()

    def obey(self, launches: bool = True) -> None:
        """What a healthy agent does: everything that it was told to."""
        while launches and self.launches:
            self.launch()
        while self.finds:
            self.find()
        while self.trees:
            self.see_tree()
        while self.ends:
            self.read_end()

    def read_end(self) -> None:
        one = self.ends.pop(0)
        run = (one.job.id, one.job.run)
        code = one.code if one.code is not None else self.codes.get(run)
        self.ready.append(events.EndRead(*run, RunNote(one.job.pid, code), False, None))

    def see_tree(self) -> None:
        """A tree that gets TERM or KILL ends, but for a child that outlives TERM; its shell notes that."""
        one = self.trees.pop(0)
        run = (one.job.id, one.job.run)
        key = self.shells.get(run)
        alive, left = key in self.processes, run in self.children
        if one.signals == (9,):
            self.children.discard(run)
        if alive and key is not None and one.signals and one.signals[0] in (9, 15):
            self.end_shell(run, 128 + one.signals[0])
        self.ready.append(events.TreeSeen(*run, alive + left))

    def find(self) -> None:
        one = self.finds.pop(0)
        run = (one.job.id, one.job.run)
        key = self.shells.get(run)
        alive = key is not None and key in self.processes
        fate = RunNote(None if key is None else key[0], self.codes.get(run))
        if alive and not fate.over:
            self.tended.add(run)
            self.adopted.add(run)
        self.ready.append(
            events.Found(*run, fate, None if key is None else key[0], 1 if alive else None, alive and not fate.over)
        )

    def until_next_alarm(self) -> None:
        if self.alarms:
            self.jump(max(0.0, self.alarms[0][0] - self.now))

    def jump(self, seconds: float) -> None:
        self.now += seconds
        while self.alarms and self.alarms[0][0] <= self.now:
            _, what, id = heappop(self.alarms)
            self.ready.append(events.AlarmRang(what, id))

    # ---------------------------------------------------------------- looking

    def reloaded(self) -> State:
        """The state as another broker would find it now."""
        from gpulease.broker.core import recovery

        disk = copy.deepcopy(self.disk)
        disk.fail_writes = disk.fail_commits = 0
        state = State(disk, self.core.state.about)
        turn = Turn(state, self, self.now, Planned())
        recovery.load(turn)
        turn.run_deferred()
        return state
