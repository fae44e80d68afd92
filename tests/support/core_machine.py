"""The broker's core under every order of events: what it promised holds, whatever happens in between.

One process, no sleeps: checks that take any time, processes that die, commits that fail, clients that leave, a clock
that jumps, a broker that is killed. After every turn all invariants are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpulease.broker.core import requests
from gpulease.broker.core.events import AlarmRang, EndRead, LaunchFailed
from gpulease.broker.core.grants import current_plan
from gpulease.broker.core.turn import Planned, Turn
from gpulease.broker.core.values import Checking, Refused
from gpulease.model.jobs import OPEN, RUNNING
from gpulease.model.values import Lease
from support.scripted import MEMORY, Client, ScriptedWorld

REQUESTS = st.one_of(
    st.builds(lambda gpus: {"gpus": gpus}, st.integers(1, 3)),
    st.builds(lambda part: {"memory": MEMORY * part // 10}, st.integers(1, 6)),
    st.builds(lambda index: {"devices": [str(index)]}, st.integers(0, 2)),
)


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ScriptedWorld()
        self.excluded: set[str] = set()  # as acknowledged
        self.killed: set[int] = set()  # jobs that were acknowledged as killed while they waited
        self.wants: dict[int, dict[str, Any]] = {}  # what a job asks for, as acknowledged
        self.paused = False
        self.ended: dict[str, int] = {}  # devices, and the turn in which the last lease on them ended
        self.disk_failed_at = float("-inf")

    @initialize()
    def see_the_devices(self) -> None:
        self.world.connect()
        self.world.say(next(iter(self.world.clients.values())), "status")
        self._turn()
        self.world.answer_sample()
        self._turn()

    # ---------------------------------------------------------------- turns

    def _turn(self) -> None:
        if self.world.disk.fail_writes or self.world.disk.fail_commits:
            self.disk_failed_at = self.world.now
        before = dict(self.world.core.state.requests.leases)
        try:
            self.world.turn()
        except AssertionError:
            raise
        except Exception as trouble:
            raise AssertionError("the broker's loop has ended") from trouble
        self.world.disk.fail_writes = self.world.disk.fail_commits = 0
        self._read_answers(before)

    def _maybe(self, now: bool) -> None:
        """Handle what is ready now, or leave it to be handled together with what comes next."""
        if now:
            self._turn()

    def _read_answers(self, before: dict[str, Lease]) -> None:
        """What was granted and acknowledged in this turn, in the order of sending."""
        leases = self.world.core.state.requests.leases
        for lease in [one for id, one in leases.items() if id not in before]:
            for uuid in lease.devices:
                looked = self.world.looked.get(uuid, -1)
                assert looked >= self.ended.get(uuid, 0), f"{uuid} was granted without a look since its last lease"
                assert uuid not in self.world.neighbour, f"{uuid} was granted, and a neighbour holds it"
        self.ended |= {uuid: self.world.turns for id, one in before.items() if id not in leases for uuid in one.devices}
        for one in self.world.sent:
            client = self.world.clients.get(one.peer) or self.world.left.get(one.peer)
            if client is not None and not one.droppable:
                self._read(client, one.message)
        for job in self.world.launched:  # what is decided in a turn follows all that was acknowledged in it
            self._check_launch(job)

    def _read(self, client: Client, message: Mapping[str, Any]) -> None:
        if "granted" in message:
            self._check_granted(message["granted"])
        if "ok" not in message and "error" not in message:
            return
        asked = next((one for one in client.asked if one["do"] != "acquire"), None)
        if asked is None or (("error" in message) and not client.asked):
            return
        if "error" in message and client.asked[0]["do"] == "acquire":
            client.asked.pop(0)
            return
        client.asked.remove(asked)
        if "ok" in message:
            self._acknowledged(asked, message["ok"])

    def _acknowledged(self, asked: dict[str, Any], told: dict[str, Any]) -> None:
        verb = asked["do"]
        if verb == "exclude":
            self.excluded |= {f"GPU-{label}" for label in told["excluded"]}
        elif verb == "include":
            self.excluded -= {f"GPU-{label}" for label in told["included"]}
        elif verb == "add":
            self.wants |= dict.fromkeys(range(told["first"], told["last"] + 1), asked["request"])
        elif verb == "edit":
            self.wants |= {id: {**asked["changes"]["request"]} for id in told["ids"]}
        elif verb == "kill":
            stored = {id: self.world.core.state.jobs.get(id) for id in told["ids"]}
            self.killed |= {id for id, job in stored.items() if job is not None and job.state == "killed"}
        elif verb in ("retry", "rm", "start"):
            self.killed -= set(told["ids"])
        elif verb in ("pause", "resume") and "paused" in told:
            self.paused = told["paused"]

    def _check_launch(self, job: Any) -> None:
        assert job.id not in self.killed, f"job {job.id} was acknowledged as killed, and starts"
        wanted = self.wants.get(job.id)
        if wanted is not None and job.tries <= 1:
            assert job.spec.request.gpus == wanted.get("gpus", 1), f"job {job.id} starts as it was before it was edited"
        lease = self.world.core.state.requests.leases.get(f"J{job.id}")
        if lease is not None:
            assert not self.excluded & set(lease.devices), "an excluded device was granted to a job"

    def _check_granted(self, granted: dict[str, Any]) -> None:
        given = {device["uuid"] for device in granted["devices"]}
        assert not self.excluded & given, "an excluded device was granted"
        assert granted["id"] in self.world.core.state.requests.leases

    # ---------------------------------------------------------------- clients

    @rule(request=REQUESTS, wait=st.sampled_from([None, 0.0, 30.0]), other=st.booleans(), now=st.booleans())
    def acquire(self, request: dict[str, Any], wait: float | None, other: bool, now: bool) -> None:
        client = self.world.connect()
        owner = self.world.connect().peer.pid if other else None
        self.world.say(client, "acquire", request=request, kind="acquire", wait=wait, owner=owner)
        self._maybe(now)

    @rule(seconds=st.sampled_from([5.0, 100.0, None]), now=st.booleans())
    def reserve(self, seconds: float | None, now: bool) -> None:
        """For a time, or until it is released."""
        self.world.say(self.world.connect(), "acquire", request={"duration": seconds}, kind="reservation")
        self._maybe(now)

    @precondition(lambda self: self.world.core.state.requests.leases)
    @rule(data=st.data(), verb=st.sampled_from(["release", "taken", "cancel", "renew"]), now=st.booleans())
    def use_lease(self, data: st.DataObject, verb: str, now: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.world.core.state.requests.leases)))
        gone = verb == "release" and data.draw(st.booleans())
        fields: dict[str, dict[str, Any]] = {
            "release": {"what": [id, "L0"], "if_held": True, "gone": gone},
            "renew": {"what": [id], "duration": 50.0},
        }
        self.world.say(self.world.connect(), verb, **fields.get(verb, {"id": id}))
        self._maybe(now)

    @precondition(lambda self: self.world.core.state.requests.pending)
    @rule(data=st.data(), verb=st.sampled_from(["cancel", "why", "explain"]), now=st.booleans())
    def use_request(self, data: st.DataObject, verb: str, now: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.world.core.state.requests.pending)))
        self.world.say(self.world.connect(), verb, id=id)
        self._maybe(now)

    @rule(
        request=REQUESTS,
        count=st.integers(1, 3),
        after=st.lists(st.integers(1, 6), max_size=2) | st.sampled_from(("all", "last", [[1, 4]])),
        options=st.fixed_dictionaries(
            {},
            optional={
                "hold": st.just(True),
                "retry": st.just(1),
                "time_limit": st.just(20.0),
                "after_any": st.just(True),
                "label": st.just("a"),
                "after_label": st.just("a"),
            },
        ),
        now=st.booleans(),
    )
    def add(self, request: dict[str, Any], count: int, after: Any, options: dict[str, Any], now: bool) -> None:
        options = {"cwd": "/", "environment": {}, "after": after, **options}
        self.world.say(self.world.connect(0), "add", request=request, commands=[["true"]] * count, options=options)
        self._maybe(now)

    @precondition(lambda self: self.world.core.state.jobs.number)
    @rule(
        data=st.data(),
        verb=st.sampled_from(["kill", "rm", "pause", "resume", "start", "retry", "show", "clean"]),
        now=st.booleans(),
    )
    def use_job(self, data: st.DataObject, verb: str, now: bool) -> None:
        id = data.draw(st.integers(1, self.world.core.state.jobs.number))
        self.world.say(self.world.connect(0), verb, select={"ids": [[id, id]]})
        self._maybe(now)

    @precondition(lambda self: any(entry.kind == "job" for entry in self.world.core.state.requests.line))
    @rule(data=st.data(), request=REQUESTS, move=st.booleans(), now=st.booleans())
    def change_waiting_job(self, data: st.DataObject, request: dict[str, Any], move: bool, now: bool) -> None:
        waiting = [entry.id for entry in self.world.core.state.requests.line if entry.kind == "job"]
        id = int(data.draw(st.sampled_from(sorted(waiting)))[1:])
        if move:
            self.world.say(self.world.connect(0), "move", id=id, index=data.draw(st.integers(0, 3)))
        else:
            changes = {"request": {"gpus": 1, "memory": None, "devices": None, **request}}
            self.world.say(self.world.connect(0), "edit", select={"ids": [[id, id]]}, changes=changes)
        self._maybe(now)

    @rule(verb=st.sampled_from(["exclude", "include"]), index=st.integers(0, 2), now=st.booleans())
    def manage(self, verb: str, index: int, now: bool) -> None:
        self.world.say(self.world.connect(0), verb, what=[str(index)])
        self._maybe(now)

    @rule(verb=st.sampled_from(["pause", "resume"]), now=st.booleans())
    def pause_queue(self, verb: str, now: bool) -> None:
        self.world.say(self.world.connect(0), verb, queue=True)
        self._maybe(now)

    @rule(verb=st.sampled_from(["status", "ls", "events"]), now=st.booleans())
    def look(self, verb: str, now: bool) -> None:
        self.world.say(self.world.connect(), verb)
        self._maybe(now)

    @rule(topics=st.lists(st.sampled_from(["devices", "leases", "line", "jobs"]), min_size=1), now=st.booleans())
    def subscribe(self, topics: list[str], now: bool) -> None:
        self.world.say(self.world.connect(), "subscribe", topics=topics)
        self._maybe(now)

    @rule(slow=st.booleans())
    def read_slowly(self, slow: bool) -> None:
        self.world.slow = slow
        if not slow:
            self.world.read()
            self._turn()

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data(), dies=st.booleans(), now=st.booleans())
    def leave(self, data: st.DataObject, dies: bool, now: bool) -> None:
        peers = list(self.world.clients)
        peer = peers[data.draw(st.integers(0, len(peers) - 1))]
        self.world.leave(self.world.clients[peer])
        if dies:
            self.world.die((peer.pid, 1))
        self._maybe(now)

    # ---------------------------------------------------------------- the world

    @precondition(lambda self: self.world.checks)
    @rule(now=st.booleans(), refused=st.sampled_from([False, False, False, True]))
    def answer_check(self, now: bool, refused: bool) -> None:
        if refused:
            self.world.refuse_check()
        else:
            self.world.answer_check()
        self._maybe(now)

    @precondition(lambda self: self.world.samples)
    @rule(now=st.booleans())
    def answer_sample(self, now: bool) -> None:
        self.world.answer_sample()
        self._maybe(now)

    @precondition(lambda self: self.world.samples or self.world.checks)
    @rule(now=st.booleans())
    def fail_driver(self, now: bool) -> None:
        self.world.fail_driver()
        self._maybe(now)

    @precondition(lambda self: self.world.launches)
    @rule(now=st.booleans(), fails=st.sampled_from([False, False, True]), temporary=st.booleans())
    def launch(self, now: bool, fails: bool, temporary: bool) -> None:
        self.world.launch(fails, temporary)
        self._maybe(now)

    @rule(now=st.booleans())
    def lose_agent(self, now: bool) -> None:
        self.world.lose_agent()
        self._maybe(now)

    @rule(now=st.booleans())
    def silence_agent(self, now: bool) -> None:
        self.world.silence_agent()
        self._maybe(now)

    @precondition(lambda self: self.world.alive())
    @rule(data=st.data(), event=st.sampled_from([EndRead, LaunchFailed]), now=st.booleans())
    def lie(self, data: st.DataObject, event: type, now: bool) -> None:
        """About a run that began, and of which nothing was asked."""
        self.world.lie(event, *data.draw(st.sampled_from(self.world.alive())))
        self._maybe(now)

    @precondition(lambda self: self.world.alive())
    @rule(data=st.data(), code=st.sampled_from([0, 0, 1, 127, -9]), now=st.booleans())
    def end_shell(self, data: st.DataObject, code: int, now: bool) -> None:
        self.world.end_shell(data.draw(st.sampled_from(self.world.alive())), code)
        self._maybe(now)

    @precondition(lambda self: self.world.ends or self.world.trees or self.world.finds)
    @rule(now=st.booleans())
    def finish_errands(self, now: bool) -> None:
        self.world.obey(launches=False)
        self._maybe(now)

    @rule(index=st.integers(0, 2), now=st.booleans())
    def use_outside(self, index: int, now: bool) -> None:
        uuid = f"GPU-{index}"
        if self.world.outside.pop(uuid, None) is None:
            self.world.outside[uuid] = next(self.world.pids)
        self._maybe(now)

    @rule(index=st.integers(0, 2), told=st.booleans(), now=st.booleans())
    def let_neighbour_take(self, index: int, told: bool, now: bool) -> None:
        self.world.neighbour_takes(f"GPU-{index}", told)
        self._maybe(now)

    @rule(index=st.integers(0, 2), now=st.booleans())
    def let_neighbour_give(self, index: int, now: bool) -> None:
        self.world.neighbour_gives(f"GPU-{index}")
        self._maybe(now)

    @rule(index=st.integers(0, 2), now=st.booleans())
    def place(self, index: int, now: bool) -> None:
        self.world.place(f"GPU-{index}")
        self._maybe(now)

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.5, 60.0, 90_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.jump(seconds)
        self._turn()

    @rule()
    def pass_to_next_alarm(self) -> None:
        self.world.until_next_alarm()
        self._turn()

    @rule(commits=st.integers(0, 6), writes=st.integers(0, 3))
    def fail_disk(self, commits: int, writes: int) -> None:
        """In the next turn."""
        self.world.disk.fail_commits, self.world.disk.fail_writes = commits, writes

    @rule(memory=st.sampled_from([0.9, 0.05, None]))
    def use_host_memory(self, memory: float | None) -> None:
        """The kernel tells nobody; the next look at it comes by an alarm."""
        self.world.memory = memory
        self.world.core.state.touch()
        self._turn()

    @rule()
    def kill_broker(self) -> None:
        before = dict(self.world.core.state.requests.leases)
        self.world.restart()
        self._read_answers(before)
        self._turn()

    # ---------------------------------------------------------------- what comes to pass in the end

    def teardown(self) -> None:
        """With an agent that does what it is told every run ends; and after a `kill` with one that does nothing."""
        self._pass_an_hour(healthy=True)
        state, world = self.world.core.state, self.world
        for job in state.jobs.running.values():
            assert world.shells.get((job.id, job.run)) in world.processes, f"job {job.id} runs, and its shell is dead"
            assert job.ending is None, f"job {job.id} was to end"
        world.say(world.connect(0), "kill", select={"all": True, "user": "*"})
        self._pass_an_hour(healthy=False)
        assert not state.jobs.running, "not even a kill ended it"
        assert not [id for id, lease in state.requests.leases.items() if lease.kind == "job"]

    def _pass_an_hour(self, healthy: bool) -> None:
        """Alarms ring, one after the other at first."""
        world, until = self.world, self.world.now + 3600
        world.disk.fail_writes = world.disk.fail_commits = 0
        for step in range(10_000):
            if healthy:
                world.obey()
            else:
                world.silence_agent()
            while world.samples:
                world.answer_sample()
            while world.checks:
                world.answer_check()
            if not world.ready:
                if world.now >= until:
                    return
                world.until_next_alarm() if step < 50 else world.jump(60.0)
                world.sweep()
            world.turn()
        raise AssertionError("it never comes to rest")

    # ---------------------------------------------------------------- what always holds

    @invariant()
    def nothing_is_broken(self) -> None:
        assert not [text for text in self.world.logs if "Traceback" in text], self.world.logs[-1]

    @invariant()
    def no_device_is_granted_twice(self) -> None:
        taken: dict[str, list[int | None]] = {}
        for lease in self.world.core.state.requests.leases.values():
            for uuid in lease.devices:
                taken.setdefault(uuid, []).append(lease.memory)
        for uuid, amounts in taken.items():
            assert len(amounts) == 1 or None not in amounts, f"{uuid} was granted twice"
            assert sum(amount or 0 for amount in amounts) <= MEMORY

    @invariant()
    def the_history_knows_every_lease(self) -> None:
        leases = self.world.core.state.requests.leases
        assert self.world.remembered == {id: lease.devices for id, lease in leases.items()}

    @invariant()
    def the_neighbours_have_what_is_nobodys(self) -> None:
        """And nothing else: what is leased is ours, and what no check wants is given back."""
        world, state = self.world, self.world.core.state
        leased = {uuid for lease in state.requests.leases.values() for uuid in lease.devices}
        assert world.kept.held.keys() == leased
        assert leased <= world.claimed
        if not world.ready and not world.checks:
            assert world.claimed == leased

    @invariant()
    def the_neighbours_know_where_nothing_is_to_be_seen(self) -> None:
        state = self.world.core.state
        placed = {pid for pid, _ in state.devices.placeholders}
        for uuid in self.world.kept.held:
            seen = state.devices.by_uuid[uuid].processes if uuid in state.devices.by_uuid else ()
            assert (uuid in self.world.kept.unseen) == all(one.pid in placed for one in seen or ())

    @invariant()
    def the_store_has_the_state(self) -> None:
        state = self.world.core.state
        assert not state.changes.count
        found = self.world.reloaded()
        assert dict(found.requests.leases) == dict(state.requests.leases)
        written = {id: one for id, one in state.requests.pending.items() if id not in state.requests.unwritten}
        later = [
            event.id for event in self.world.core._late if isinstance(event, AlarmRang)
        ]  # no room to write that it left
        left = {id for id in later if id in found.requests.pending and id not in state.requests.pending}
        assert {id: one for id, one in found.requests.pending.items() if id not in left} == written
        assert dict(found.devices.excluded) == dict(state.devices.excluded)
        assert dict(found.texts) == dict(state.texts)
        assert {name: n for name, n in found.jobs.counts.items() if n} == {
            name: n for name, n in state.jobs.counts.items() if n
        }
        assert found.jobs.running.keys() == state.jobs.running.keys()
        waiting = {entry.id for entry in state.requests.line} - state.requests.unwritten.keys()
        assert {entry.id for entry in found.requests.line} - left == waiting
        assert {entry.id: entry for entry in found.requests.line if entry.kind == "job"} == {
            entry.id: entry for entry in state.requests.line if entry.kind == "job"
        }
        assert set(state.requests.unclaimed) == set(found.requests.unclaimed)

    @invariant()
    def each_is_in_the_place_of_its_state(self) -> None:
        state = self.world.core.state
        for job in state.jobs.running.values():
            assert job.state in RUNNING
            assert job.planner_id in state.requests.leases
        for lease in state.requests.leases.values():
            assert lease.kind != "job" or int(lease.id[1:]) in state.jobs.running
        for entry in state.requests.line:
            stored = state.jobs.get(int(entry.id[1:])) if entry.kind == "job" else None
            assert entry.id in state.requests.pending or (stored is not None and stored.state == "waiting")
        assert state.jobs.runs.keys() == state.jobs.running.keys()
        owners = [(id, one.owner) for id, one in state.requests.leases.items()]
        owners += [(id, one.owner) for id, one in state.requests.pending.items()]
        owned = {id for ids in state.requests.owned.values() for id in ids}
        assert owned == {id for id, owner in owners if owner.pid is not None}

    @invariant()
    def no_phase_of_a_run_lasts_but_one(self) -> None:
        state, world = self.world.core.state, self.world
        due = [run.due for run in state.jobs.runs.values()]
        assert [run.phase for run in state.jobs.runs.values() if run.due == inf and run.phase != "running"] == []
        late = any(kind == "late" for _, kind, _ in world.alarms)  # what a full disk undid is tried again then
        if not world.ready and not late:
            assert all(time > world.now for time in due)
            assert min(due, default=inf) >= state.jobs.runs_due
            assert state.jobs.runs_due == inf or (state.jobs.runs_due, "overdue", "runs") in world.alarms

    @invariant()
    def what_lives_is_known_to_run(self) -> None:
        """A job whose shell lives neither ended nor waits for another run."""
        for (id, run), key in self.world.shells.items():
            job = self.world.core.state.jobs.running.get(id)
            assert key not in self.world.processes or (job is not None and job.run == run), f"job {id} lives"

    @invariant()
    def subscribers_know_what_is(self) -> None:
        """Unless they are about to be told, or have not read what they were sent."""
        state = self.world.core.state
        if state.subscribers.alarm_at is not None:
            return
        for peer, subscriber in state.subscribers.items():
            client = self.world.clients.get(peer)
            if client is None or client.missed or subscriber.fresh or self.world.ready:
                continue
            if "jobs" in subscriber.topics:
                assert client.open == sum(state.jobs.counts.get(one, 0) for one in OPEN)
            if "leases" in subscriber.topics:
                assert client.shown["leases"].keys() == state.requests.leases.keys()
            if "line" in subscriber.topics:
                assert client.shown["line"].keys() == {entry.id for entry in state.requests.line}
            for id, row in client.shown.get("jobs", {}).items():
                job = state.jobs.get(int(id))
                assert job is None or job.state == row["state"]

    @invariant()
    def whoever_waits_has_a_true_reason(self) -> None:
        state, world = self.world.core.state, self.world
        if state.devices.sample is None:
            return
        cached = Turn(state, world, world.now, world.core._planned)
        fresh = Turn(state, world, world.now, Planned())
        for entry in state.requests.line:
            assert requests.reason(cached, entry.id)[0] == requests.reason(fresh, entry.id)[0]
            assert requests.place(fresh, entry.id) >= 1

    @invariant()
    def what_fits_does_not_wait(self) -> None:
        """Unless something is under way for it."""
        state, world = self.world.core.state, self.world
        if world.ready or state.devices.sample is None or state.devices.trouble is not None:
            return
        if isinstance(state.devices.check, (Checking, Refused)) or world.now - self.disk_failed_at < 10:
            return
        fresh = Turn(state, world, world.now, Planned())
        assert not current_plan(fresh).grants

    @invariant()
    def nobody_is_left_without_an_answer(self) -> None:
        state, world = self.world.core.state, self.world
        if world.ready:
            return
        checking = isinstance(state.devices.check, Checking)
        assert checking == any(state.devices.check.revision == one.revision for one in world.checks if checking)  # type: ignore[union-attr]
        if state.requests.unwritten:
            assert world.checks or world.samples or isinstance(state.devices.check, Refused)
        if not world.checks:
            assert not world.locked, "safe-gpu's lock is kept"
