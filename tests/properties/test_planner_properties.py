"""After every step, whatever happened: no double grant, no grant of what is out of reach, true reasons."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gpulease.model.values import Cause, Device, Lease, Owner, Process, Request, Waiting
from gpulease.planner import DeviceView, Hold, Limit, Line, Plan, Policy, device_state, lease_of, plan

G = 1 << 30
USERS = ("ada", "ben", "cyd")
GROUPS = {"ada": ("lab",), "ben": ("lab", "guests"), "cyd": ()}
NAMES = ("A100", "V100")
OUT_OF_REACH = {"outside", "draining", "excluded", "lost"}
POLICIES = (
    Policy(),
    Policy(
        hold_ratio=2.0,
        hold_ratio_guessed=2.0,
        memory_reserve=0.0,
        max_leases=2,
        patience_undeclared=100.0,
        longest_wait=1000.0,
    ),
    Policy(
        patience=1.0,
        patience_floor=20.0,
        hold_ratio_guessed=1.0,
        patience_undeclared=50.0,
        longest_wait=400.0,
        limits=(
            Limit("user", "*", gpus=3, shares=2),
            Limit("user", "@guests", gpus=1),
            Limit("user", "cyd", shares=3, jobs=0),
            Limit("group", "lab", gpus=4),
            Limit("priority", "7", gpus=1),
        ),
    ),
)


def _request(fields: dict[str, Any]) -> Request:
    return Request(**fields)


requests = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from((1, 1, 2, 2, 3, 4)),
        "models": st.sampled_from(((), (), ("a100",), ("V100", "A100"), ("V100",))),
        "min_memory": st.sampled_from((None, None, None, 20 * G)),
        "priority": st.sampled_from((5, 5, 4, 8)),
        "duration": st.sampled_from((None, 30.0, 300.0, 5000.0)),
    }
).map(_request)
shares = st.fixed_dictionaries(
    {
        "memory": st.sampled_from((G, 4 * G, 7 * G, 15 * G, 39 * G)),
        "models": st.sampled_from(((), (), ("A100",))),
        "max_leases": st.sampled_from((None, None, 0, 1)),
        "priority": st.sampled_from((5, 5, 4, 8)),
        "duration": st.sampled_from((None, 30.0, 300.0)),
    }
).map(_request)


class Machine(RuleBasedStateMachine):
    """Random devices, requests, deaths, samples and clock steps; the caller applies every grant."""

    @initialize(hosts=st.integers(1, 2), count=st.integers(2, 4), policy=st.sampled_from(POLICIES))
    def begin(self, hosts: int, count: int, policy: Policy) -> None:
        self.policy = policy
        self.count = count
        self.now = 1000.0
        self.next_id = 0
        self.devices: dict[str, Device] = {}
        self.views: dict[str, DeviceView] = {}
        for host in range(hosts):
            for at in range(count):
                self._add_device(f"h{host}", at)
        self.line = Line(policy)
        self.leases: dict[str, Lease] = {}
        self.forced: set[str] = set()
        self.step()

    def _add_device(self, host: str, at: int) -> None:
        uuid = f"{host}-{at}"
        size = (16 * G, 40 * G)[at % 2]
        device = Device(at, uuid, NAMES[at % 2], memory_total=size, memory_used=0, group=f"{host}{at // 2}")
        self.devices[uuid] = device
        self.views[uuid] = DeviceView(host=host)

    def _uuid(self, number: int) -> str:
        return sorted(self.devices)[number % len(self.devices)]

    @rule(
        request=requests | shares,
        user=st.sampled_from(USERS),
        later=st.sampled_from((None, None, None, 40.0)),
    )
    def ask(self, request: Request, user: str, later: float | None) -> None:
        start = None if later is None else self.now + later
        self._put(request._replace(not_before=start), user)

    @rule(
        number=st.integers(0, 30),
        user=st.sampled_from(USERS),
        blocked=st.sampled_from((False, False, False, False, True)),
    )
    def ask_by_name(self, number: int, user: str, blocked: bool) -> None:
        uuid = self._uuid(number)
        request = Request(devices=(uuid,)) if number % 2 else Request(exclude=(uuid,))
        self._put(request, user, Cause("It waits for request 0.", "after 0") if blocked else None)

    def _put(self, request: Request, user: str, blocked: Cause | None = None) -> None:
        self.next_id += 1
        entry = Waiting(f"r{self.next_id:06}", request, user, 1, self.now, GROUPS[user], blocked=blocked)
        self.line.add(entry)
        self.step()

    @rule(number=st.integers(0, 100))
    def force(self, number: int) -> None:
        waiting = sorted(entry.id for entry in self.line)
        if waiting:
            entry = self.line[waiting[number % len(waiting)]]
            self.line.replace(entry._replace(forced=True, blocked=None))
            self.forced.add(entry.id)
            self.step()

    @rule(number=st.integers(0, 100))
    def leave(self, number: int) -> None:
        waiting = sorted(entry.id for entry in self.line)
        if waiting:
            self.line.remove(waiting[number % len(waiting)])
            self.step()

    @rule(number=st.integers(0, 100))
    def end(self, number: int) -> None:
        if self.leases:
            del self.leases[sorted(self.leases)[number % len(self.leases)]]
            self.step()

    @rule(number=st.integers(0, 30), what=st.sampled_from(("outside", "lost", "memory", "unknown", "well")))
    def see(self, number: int, what: str) -> None:
        uuid = self._uuid(number)
        device = self.devices[uuid]._replace(processes=(), lost=None, memory_used=0)
        changed = {
            "outside": device._replace(processes=(Process(77, memory=G),), memory_used=G),
            "lost": device._replace(lost="fell off the bus"),
            "memory": device._replace(memory_used=9 * G),
            "unknown": device._replace(memory_used=None),
            "well": device,
        }
        self.devices[uuid] = changed[what]
        self.step()

    @rule(number=st.integers(0, 30), what=st.sampled_from(("drain", "exclude", "clear")))
    def learn(self, number: int, what: str) -> None:
        uuid = self._uuid(number)
        view = DeviceView(host=self.views[uuid].host, last_used=self.now)
        changed = {
            "drain": view._replace(draining=(88,)),
            "exclude": view._replace(excluded="fan"),
            "clear": view,
        }
        self.views[uuid] = changed[what]
        self.step()

    @rule(seconds=st.sampled_from((1.0, 60.0, 500.0, 2000.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.step()

    @rule(user=st.sampled_from(USERS), duration=st.sampled_from((None, 30.0, 1500.0)))
    def overtake(self, user: str, duration: float | None) -> None:
        """A wide request waits beyond its patience while a device falls free, and a narrow one comes."""
        self._put(Request(gpus=self.count), user)
        self.now += 3000.0
        for id in sorted(self.leases)[:1]:
            del self.leases[id]
        self._put(Request(duration=duration), "cyd")

    @rule()
    def finish_everything(self) -> None:
        """When others keep finishing, everything that can ever fit is granted in bounded steps."""
        self._heal()
        for _ in range(4 * len(self.line) + 4):
            if not self._pending():
                break
            self.now += 2000.0
            for id in sorted(self.leases)[:1]:
                del self.leases[id]
            self.step()
        assert not self._pending()

    def _heal(self) -> None:
        for uuid, device in self.devices.items():
            self.devices[uuid] = device._replace(processes=(), lost=None, memory_used=0)
            self.views[uuid] = DeviceView(host=self.views[uuid].host)
        self.step()

    def _pending(self) -> list[str]:
        never = {"blocked", "impossible", "over-limit"}
        return [entry.id for entry in self.line if self.last.reason(entry.id).code not in never]

    def step(self) -> None:
        self.leases_before = dict(self.leases)
        before = [(entry.id, entry) for entry in self.line]
        first = self._plan()
        assert first == self._plan(), "the same input gives the same plan"
        assert before == [(entry.id, entry) for entry in self.line], "a plan does not change the line"
        self.last = first
        granted = {grant.id: self.line[grant.id] for grant in first.grants}
        self._check_grants(first, granted)
        for grant in first.grants:
            waiting = self.line.remove(grant.id)
            owner = Owner(1, waiting.user, "h", "b", groups=waiting.groups)
            self.leases[grant.id] = lease_of(grant, waiting, owner, self.now)
        self._check_reasons(first)

    def _plan(self) -> Plan:
        leases = self.leases.values()
        return plan(self.devices.values(), leases, self.line, self.policy, self.now, views=self.views)

    def _on(self, uuid: str, leases: dict[str, Lease]) -> list[Lease]:
        return [lease for lease in leases.values() if uuid in lease.devices]

    def _state(self, uuid: str, leases: dict[str, Lease]) -> str:
        on = self._on(uuid, leases)
        return device_state(self.devices[uuid], on, self.views[uuid], self.policy).state

    def _check_grants(self, done: Plan, granted: dict[str, Waiting]) -> None:
        for grant in done.grants:
            request = granted[grant.id].request
            assert len(set(grant.devices)) == (1 if request.memory else request.gpus)
            assert {self.views[uuid].host for uuid in grant.devices} == {grant.host}
            for uuid in grant.devices:
                assert self._state(uuid, self.leases_before) not in OUT_OF_REACH
                assert _admitted(request, self.devices[uuid])

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        for uuid, device in getattr(self, "devices", {}).items():
            on = self._on(uuid, self.leases)
            if any(lease.memory is None for lease in on):
                assert len(on) == 1, f"{uuid} is leased whole and has {len(on)} leases"
            assert sum(lease.memory or 0 for lease in on) <= (device.memory_total or 0)

    @invariant()
    def nobody_has_more_than_a_limit_allows(self) -> None:
        """But for what was told to start all the same."""
        if not getattr(self, "policy", POLICIES[0]).limits:
            return
        for user in USERS:
            mine = [one for one in self.leases.values() if one.owner.user == user and one.id not in self.forced]
            held = sum((_parts(one.memory, len(one.devices), _totals(self, one)) for one in mine), Fraction(0))
            assert held <= _most(self, "user", user, "gpus")
            assert sum(one.memory is not None for one in mine) <= _most(self, "user", user, "shares")

    def _check_reasons(self, done: Plan) -> None:
        holds = {hold.id: hold for hold in done.holds}
        for entry in self.line:
            reason = done.reason(entry.id)
            assert reason.sentence.endswith(".")
            assert len(done.explain(entry.id)) == len(self.devices)
            _TRUTHS[reason.code](self, entry, holds)
            if not entry.blocked and reason.code not in ("not-yet", "quota", "over-limit"):
                assert not self._fits(entry.request, holds), "what fits was not granted"

    def _free(self, uuid: str) -> bool:
        return self._state(uuid, self.leases) == "free"

    def _room(self, uuid: str, request: Request) -> float:
        device, on = self.devices[uuid], self._on(uuid, self.leases)
        if self._state(uuid, self.leases) not in ("free", "shared") or device.memory_used is None:
            return -inf
        bounds = [lease.max_leases for lease in on if lease.max_leases is not None]
        bounds += [] if request.max_leases is None else [request.max_leases]
        if any(len(on) > bound for bound in bounds):
            return -inf
        if self.policy.max_leases is not None and len(on) >= self.policy.max_leases:
            return -inf
        total = device.memory_total or 0
        used = max(sum(lease.memory or 0 for lease in on), device.memory_used)
        return total - int(total * self.policy.memory_reserve) - used

    def _fits(self, request: Request, holds: dict[str, Hold]) -> bool:
        held = {uuid for hold in holds.values() for uuid in hold.devices}
        fitting = [
            uuid
            for uuid, device in self.devices.items()
            if uuid not in held and _admitted(request, device) and self._serves(uuid, request)
        ]
        hosts = [self.views[uuid].host for uuid in fitting]
        return any(hosts.count(host) >= request.gpus for host in hosts)

    def _serves(self, uuid: str, request: Request) -> bool:
        if request.memory is None:
            return self._free(uuid)
        return self._room(uuid, request) >= request.memory


def _admitted(request: Request, device: Device) -> bool:
    named = not request.devices or device.uuid in request.devices
    model = not request.models or any(model.lower() in device.name.lower() for model in request.models)
    big = request.min_memory is None or (device.memory_total or 0) >= request.min_memory
    return named and model and big and device.uuid not in request.exclude


def _blocked(machine: Machine, entry: Waiting, holds: dict[str, Hold]) -> None:
    assert entry.blocked


def _not_yet(machine: Machine, entry: Waiting, holds: dict[str, Hold]) -> None:
    assert (entry.request.not_before or 0) > machine.now


def _impossible(machine: Machine, entry: Waiting, holds: dict[str, Hold]) -> None:
    request = entry.request
    admitted = [uuid for uuid, device in machine.devices.items() if _admitted(request, device)]
    if request.memory is not None:
        spare = 1 - machine.policy.memory_reserve
        assert all((machine.devices[uuid].memory_total or 0) * spare < request.memory for uuid in admitted)
        return
    hosts = [machine.views[uuid].host for uuid in admitted]
    assert all(hosts.count(host) < request.gpus for host in hosts)


def _parts(memory: int | None, gpus: int, totals: list[int]) -> Fraction:
    """Whole devices, or the part of the smallest of some devices that a share is."""
    return Fraction(gpus) if memory is None else min(Fraction(1), Fraction(memory, min(totals)))


def _most(machine: Machine, scope: str, name: str, what: str) -> int:
    """What the third policy says, written down apart from the planner."""
    ours = {
        "group": {"lab": {"gpus": 4}},
        "user": {"ada": {"gpus": 3, "shares": 2}, "ben": {"gpus": 1, "shares": 2}, "cyd": {"gpus": 3, "shares": 3}},
        "priority": {"7": {"gpus": 1}},
    }
    return ours[scope][name][what]


def _quota(machine: Machine, entry: Waiting, holds: dict[str, Hold]) -> None:
    request, fields = entry.request, machine.last.reason(entry.id).fields
    scope, name, what = str(fields["scope"]), str(fields["name"]), str(fields["what"])
    mine = {
        "user": [lease for lease in machine.leases.values() if lease.owner.user == name],
        "group": [lease for lease in machine.leases.values() if name in lease.owner.groups],
        "priority": [lease for lease in machine.leases.values() if lease.priority >= 7],
    }[scope]
    totals = [d.memory_total or 0 for d in machine.devices.values() if _admitted(request, d)]
    if what == "shares":
        used, wanted = Fraction(sum(lease.memory is not None for lease in mine)), Fraction(1)
    else:
        used = sum((_parts(lease.memory, len(lease.devices), _totals(machine, lease)) for lease in mine), Fraction(0))
        wanted = _parts(request.memory, request.gpus, totals)
    most = _most(machine, scope, name, what)
    assert fields["most"] == most
    assert abs(float(used) - float(str(fields["used"]))) < 1e-3
    assert used + wanted > most - Fraction(1, 1000)
    assert (machine.last.reason(entry.id).code == "over-limit") == (wanted > most)


def _totals(machine: Machine, lease: Lease) -> list[int]:
    return [machine.devices[uuid].memory_total or 0 for uuid in lease.devices]


def _holding(machine: Machine, entry: Waiting, holds: dict[str, Hold]) -> None:
    assert entry.id in holds


def _held(machine: Machine, entry: Waiting, holds: dict[str, Hold]) -> None:
    assert machine._fits(entry.request, {})
    assert holds


def _unavailable(machine: Machine, entry: Waiting, holds: dict[str, Hold]) -> None:
    assert any(machine._state(uuid, machine.leases) in OUT_OF_REACH for uuid in machine.devices)


def _busy(machine: Machine, entry: Waiting, holds: dict[str, Hold]) -> None:
    assert not machine._fits(entry.request, {})


_TRUTHS = {
    "blocked": _blocked,
    "not-yet": _not_yet,
    "impossible": _impossible,
    "over-limit": _quota,
    "quota": _quota,
    "holding": _holding,
    "held": _held,
    "unavailable": _unavailable,
    "busy": _busy,
}


def _run(examples: int, steps: int) -> None:
    calm = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    chosen = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=calm)
    run_state_machine_as_test(Machine, settings=chosen)


def test_every_step_keeps_the_rules() -> None:
    _run(60, 30)


@pytest.mark.long("properties")
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_steps_keep_the_rules() -> None:
    _run(3500, 50)
