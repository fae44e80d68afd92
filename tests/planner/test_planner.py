"""What the planner promises, one promise a test."""

from __future__ import annotations

from typing import Any

import pytest

from gpulease.model.values import Cause, Device, Lease, Owner, Process, Request, Waiting
from gpulease.planner import DeviceView, Limit, Line, Plan, Policy, Spent, charged, device_state, limits_of, plan
from gpulease.planner.policy import MAX_SHARES, UNLIMITED

G = 1 << 30
NOW = 100_000.0
DAY = 86_400.0


def devices(count: int, name: str = "A100", host: str = "", **fields: Any) -> list[Device]:
    base = Device(0, "", name, memory_total=40 * G, memory_used=0)._replace(**fields)
    return [base._replace(index=at, uuid=f"{host}{at}") for at in range(count)]


def waiting(id: str, request: Request | None = None, user: str = "ada", since: float = NOW) -> Waiting:
    return Waiting(id, request or Request(), user, 1000, since)


def lease(id: str, *uuids: str, user: str = "ben", since: float = NOW - 60, **fields: Any) -> Lease:
    return Lease(id, "run", uuids, Owner(1001, user, "h", "b"), since)._replace(**fields)


def decide(
    machine: list[Device],
    entries: list[Waiting],
    leases: tuple[Lease, ...] = (),
    policy: Policy = Policy(),  # noqa: B008
    now: float = NOW,
    views: dict[str, DeviceView] | None = None,
    usage: dict[str, Spent] | None = None,
    closed: dict[str, Cause] | None = None,
) -> Plan:
    line = Line(policy)
    for entry in entries:
        line.add(entry)
    return plan(machine, leases, line, policy, now, views=views, usage=usage, closed=closed or {})


def granted(done: Plan) -> dict[str, tuple[str, ...]]:
    return {grant.id: grant.devices for grant in done.grants}


def test_a_smaller_priority_goes_first() -> None:
    done = decide(devices(1), [waiting("late"), waiting("soon", Request(priority=4), since=NOW + 1)])
    assert list(granted(done)) == ["soon"]


def test_who_had_less_lately_goes_first_and_usage_fades() -> None:
    entries = [waiting("a", user="ada", since=NOW - 5), waiting("b", user="ben")]
    usage = {"ada": Spent(5000.0, NOW), "ben": Spent(4000.0, NOW)}
    assert list(granted(decide(devices(1), entries, usage=usage))) == ["b"]
    faded = {"ada": Spent(5000.0, NOW - 30 * DAY), "ben": Spent(4000.0, NOW)}
    assert list(granted(decide(devices(1), entries, usage=faded))) == ["a"]


def test_devices_that_fall_free_together_go_round_the_users() -> None:
    entries = [waiting(f"a{at}", since=NOW - 9 + at) for at in range(4)]
    entries += [waiting(f"b{at}", user="ben", since=NOW) for at in range(4)]
    assert set(granted(decide(devices(4), entries))) == {"a0", "a1", "b0", "b1"}


def test_a_user_keeps_their_own_order() -> None:
    entries = [waiting(f"r{at}", since=NOW - at) for at in range(5)]
    assert list(granted(decide(devices(2), entries))) == ["r4", "r3"]


def test_a_moved_request_takes_its_new_place() -> None:
    entries = [waiting("first", since=NOW - 9), waiting("moved")._replace(place=NOW - 10)]
    assert list(granted(decide(devices(1), entries))) == ["moved"]


def test_several_devices_come_from_one_host_or_not_at_all() -> None:
    machine = devices(2, host="x") + devices(2, host="y")
    views = {device.uuid: DeviceView(host=device.uuid[0]) for device in machine}
    assert granted(decide(machine, [waiting("r", Request(3))], views=views)) == {}
    assert len(granted(decide(machine, [waiting("r", Request(2))], views=views))["r"]) == 2


def test_several_devices_prefer_neighbours() -> None:
    machine = [d._replace(group=f"g{d.index in (1, 3)}", temperature=30 + d.index) for d in devices(4)]
    assert granted(decide(machine, [waiting("r", Request(2))])) == {"r": ("0", "2")}


def test_one_device_is_the_coolest_and_then_the_least_recently_used() -> None:
    machine = [d._replace(temperature=(60, 40, 40)[d.index]) for d in devices(3)]
    views = {"1": DeviceView(last_used=50.0), "2": DeviceView(last_used=20.0)}
    assert granted(decide(machine, [waiting("r")], views=views)) == {"r": ("2",)}


def test_an_idle_device_is_preferred_and_noise_does_not_decide() -> None:
    machine = [d._replace(utilization=(90, 3, 12)[d.index], temperature=(30, 60, 50)[d.index]) for d in devices(3)]
    assert granted(decide(machine, [waiting("r")])) == {"r": ("2",)}
    used = [d._replace(memory_used=(500 << 20, 10 << 20, 0)[d.index], temperature=60 - d.index) for d in devices(3)]
    assert granted(decide(used, [waiting("r", Request(2))])) == {"r": ("1", "2")}
    assert granted(decide(used, [waiting("r", Request(memory=G))])) == {"r": ("2",)}
    assert granted(decide(machine, [waiting("r", Request(devices=("0", "1")))])) == {"r": ("0",)}


def test_shares_pack_so_that_whole_devices_stay_whole() -> None:
    running = (lease("s", "1", memory=20 * G),)
    done = decide(devices(3), [waiting("r", Request(memory=10 * G)), waiting("w", Request(2))], running)
    assert granted(done) == {"r": ("1",), "w": ("0", "2")}


def test_devices_that_a_request_names_are_named_in_order_of_preference() -> None:
    warm = [*devices(1, temperature=30), *(device._replace(temperature=60) for device in devices(4)[1:])]
    assert granted(decide(warm, [waiting("r", Request(devices=("2", "0", "3")))])) == {"r": ("2",)}
    assert granted(decide(warm, [waiting("r", Request(devices=("2", "0", "3")))], (lease("l", "2"),))) == {"r": ("0",)}
    assert granted(decide(warm, [waiting("r", Request(memory=G, devices=("3", "0")))])) == {"r": ("3",)}
    assert granted(decide(warm, [waiting("r")])) == {"r": ("0",)}


def test_shares_leave_the_reserve_and_what_is_measured_beyond_them() -> None:
    policy = Policy(memory_reserve=0.1)  # 36 G to share
    machine = devices(1, memory_used=30 * G, processes=(Process(7, memory=30 * G),))
    views = {"0": DeviceView(explained=frozenset({7}))}
    running = (lease("s", "0", memory=20 * G),)
    for memory, fits in ((6 * G, True), (7 * G, False)):
        done = decide(machine, [waiting("r", Request(memory=memory))], running, policy, views=views)
        assert bool(done.grants) is fits


def test_a_share_and_a_whole_device_never_meet() -> None:
    assert not decide(devices(1), [waiting("r", Request(memory=G))], (lease("w", "0"),)).grants
    assert not decide(devices(1), [waiting("r")], (lease("s", "0", memory=G),)).grants


def test_a_limit_of_leases_holds_for_those_who_came_before_too() -> None:
    alone = (lease("s", "0", memory=G, max_leases=0),)
    assert not decide(devices(1), [waiting("r", Request(memory=G))], alone).grants
    plain = (lease("s", "0", memory=G),)
    assert not decide(devices(1), [waiting("r", Request(memory=G, max_leases=0))], plain).grants
    assert decide(devices(1), [waiting("r", Request(memory=G, max_leases=1))], plain).grants


def test_whoever_waits_for_fewer_neighbours_is_told_so_and_not_of_memory() -> None:
    done = decide(devices(1), [waiting("r", Request(memory=G, max_leases=0))], (lease("s", "0", memory=G),))
    assert done.reason("r").sentence.startswith("It wants 1G of one device; on device 0 no more leases are allowed")


def test_the_first_name_that_fits_is_taken() -> None:
    machine = [*devices(1, "V100", "v"), *devices(1, "A100", "a")]
    asked = waiting("r", Request(models=("a100", "v100")))
    assert granted(decide(machine, [asked])) == {"r": ("a0",)}
    assert granted(decide(machine, [asked], (lease("l", "a0"),))) == {"r": ("v0",)}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request(devices=("2",)), {"r": ("2",)}),
        (Request(exclude=("0", "1")), {"r": ("2",)}),
        (Request(min_memory=41 * G), {}),
        (Request(not_before=NOW + 5), {}),
    ],
)
def test_filters(request_: Request, expected: dict[str, tuple[str, ...]]) -> None:
    assert granted(decide(devices(3), [waiting("r", request_)])) == expected


@pytest.mark.parametrize(
    ("device", "view", "state"),
    [
        ({}, DeviceView(), "free"),
        ({"lost": "xid 79"}, DeviceView(), "lost"),
        ({}, DeviceView(excluded="fan"), "excluded"),
        ({}, DeviceView(draining=(9,)), "draining"),
        ({"processes": (Process(9),)}, DeviceView(), "outside"),
        ({"processes": (Process(9, graphics=True),)}, DeviceView(), "free"),
        ({"memory_used": 2 * G}, DeviceView(), "outside"),
        ({"memory_used": G // 2}, DeviceView(), "free"),
        ({"memory_used": None}, DeviceView(), "outside"),
        ({"processes": None}, DeviceView(), "outside"),
    ],
)
def test_what_is_not_known_to_be_free_is_not_granted(device: dict[str, Any], view: DeviceView, state: str) -> None:
    machine = devices(1, **device)
    assert device_state(machine[0], (), view).state == state
    done = decide(machine, [waiting("r")], views={"0": view})
    assert bool(done.grants) is (state == "free")
    if state != "free":
        assert done.reason("r").code == "unavailable"
        assert done.explain("r")[0].code == state


def test_a_process_of_a_lease_is_explained_and_another_is_not() -> None:
    device = devices(1, processes=(Process(5, memory=G), Process(6, memory=G)), memory_used=2 * G)[0]
    held = [lease("l", "0")]
    assert device_state(device, held, DeviceView(explained=frozenset({5, 6}))).state == "leased"
    assert device_state(device, held, DeviceView(explained=frozenset({5}))).pids == (6,)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        (Limit("user", "*", gpus=1), "The limit of 1 GPUs for user ada is reached: 1 in use."),
        (Limit("group", "lab", gpus=1), "The limit of 1 GPUs for group lab is reached: 1 in use."),
        (
            Limit("priority", "5", gpus=1),
            "The limit of 1 GPUs for priority 5 and later is reached: 1 in use.",
        ),
    ],
)
def test_a_quota_is_named_in_the_reason(limit: Limit, sentence: str) -> None:
    owner = Owner(1000, "ada", "h", "b", groups=("lab",))
    running = (lease("l", "0")._replace(owner=owner),)
    asked = waiting("r")._replace(groups=("lab",))
    done = decide(devices(3), [asked], running, Policy(limits=(limit,)))
    assert not done.grants
    assert done.reason("r").sentence == sentence
    assert done.explain("r")[1].code == "quota"


def test_a_limit_by_name_stands_before_the_one_for_everybody() -> None:
    limits = (Limit("user", "*", gpus=0), Limit("user", "ada", gpus=2))
    entries = [waiting("a", Request(2)), waiting("b", user="ben")]
    assert list(granted(decide(devices(4), entries, policy=Policy(limits=limits)))) == ["a"]


def test_of_each_amount_the_most_specific_counts_and_of_groups_the_most_generous() -> None:
    limits = (
        Limit("user", "*", gpus=1, jobs=10, priorities=(5, 9)),
        Limit("user", "@lab", gpus=4, priorities=(6, 8)),
        Limit("user", "@staff", gpus=2, priorities=(3, 7)),
        Limit("user", "ada", jobs=99),
        Limit("group", "lab", gpus=0),
    )
    ada = limits_of(limits, "ada", ("lab", "staff"))
    assert (ada.gpus, ada.jobs, ada.priorities, ada.shares) == (4, 99, (3, 8), None)
    ben = limits_of(limits, "ben", ())
    assert (ben.gpus, ben.jobs, ben.priorities) == (1, 10, (5, 9))


def test_shares_count_as_parts_of_gpus_so_four_large_ones_do_not_pass_a_limit_of_one() -> None:
    entries = [waiting(f"s{at}", Request(memory=30 * G)) for at in range(4)]
    done = decide(devices(4), entries, policy=Policy(limits=(Limit("user", "*", gpus=1),)))
    assert list(granted(done)) == ["s0"]
    assert done.reason("s1").code == "quota"
    assert "0.75 in use" in done.reason("s1").sentence
    small = [waiting(f"s{at}", Request(memory=10 * G)) for at in range(9)]
    assert len(granted(decide(devices(4), small, policy=Policy(limits=(Limit("user", "*", gpus=1),))))) == 4


@pytest.mark.parametrize("limits", [(), (Limit("user", "*", shares=UNLIMITED),)])
def test_shares_of_one_user_are_bounded_and_the_rest_wait_while_others_go_on(
    limits: tuple[Limit, ...],
) -> None:
    """20,000 jobs that asked for a byte each made every plan, and so everybody's commands, slow."""
    entries = [waiting(f"s{at:05}", Request(memory=1), since=NOW + at) for at in range(MAX_SHARES + 5)]
    other = waiting("other", Request(memory=G), user="ben", since=NOW + 9999)
    done = decide(devices(2), [*entries, other], policy=Policy(limits=limits))
    assert len(done.grants) == MAX_SHARES + 1
    assert "other" in granted(done)
    assert done.reason(entries[-1].id).sentence == "The limit of 2000 shares for user ada is reached: 2000 in use."


def test_what_a_limit_never_allows_is_told_apart_from_what_is_only_reached() -> None:
    policy = Policy(limits=(Limit("user", "*", gpus=2),))
    done = decide(devices(4), [waiting("wide", Request(3)), waiting("a", Request(2)), waiting("b")], policy=policy)
    assert (done.reason("wide").code, done.reason("b").code) == ("over-limit", "quota")
    assert "The limit of 2 GPUs for user ada never allows that." in done.reason("wide").sentence


def test_a_wide_request_is_overtaken_at_first_and_held_for_in_the_end() -> None:
    running = (lease("l", "0", since=NOW - 60),)
    wide, narrow = waiting("wide", Request(2), since=NOW - 60), waiting("narrow")
    assert list(granted(decide(devices(2), [wide, narrow], running))) == ["narrow"]
    patient = wide._replace(since=NOW - DAY)
    done = decide(devices(2), [patient, narrow], running, Policy(hold_ratio_guessed=0.1))
    assert not done.grants
    assert done.holds[0].id == "wide"
    assert done.reason("wide").code == "holding"
    assert done.reason("narrow").code == "held"
    assert done.explain("narrow")[1].code == "held"


def test_nobody_is_held_for_when_the_devices_should_stay_busy_long() -> None:
    running = (lease("l", "0", since=NOW - 10 * DAY),)
    entries = [waiting("wide", Request(2), since=NOW - DAY), waiting("narrow")]
    done = decide(devices(2), entries, running, Policy(hold_ratio_guessed=0.1))
    assert list(granted(done)) == ["narrow"]


def test_beyond_the_longest_wait_devices_are_held_whatever_is_expected() -> None:
    running = (lease("l", "0", since=NOW - 10 * DAY),)
    wide = waiting("wide", Request(2), since=NOW - 15 * DAY)
    short = waiting("short", Request(duration=1.0))
    done = decide(devices(2), [wide, short], running)
    assert not done.grants
    assert done.holds[0].expected is None


def test_a_declared_duration_that_ends_in_time_runs_on_a_held_device() -> None:
    running = (lease("l", "0", since=NOW - 60, duration=1060.0),)
    wide = waiting("wide", Request(2), since=NOW - DAY)
    entries = [wide, waiting("long", Request(duration=1001.0)), waiting("short", Request(duration=1000.0))]
    done = decide(devices(2), entries, running)
    assert list(granted(done)) == ["short"]
    assert done.holds[0].expected == NOW + 1000


def test_who_outlasted_what_they_declared_does_not_enter_devices_that_are_held() -> None:
    """`run --for 1s -- sleep 45` took devices that were held for another, again and again."""
    running = (lease("l", "0", since=NOW - 60, duration=1060.0)._replace(owner=Owner(9, "eve", "h", "b")),)
    wide = waiting("wide", Request(2), since=NOW - DAY, user="ben")
    short = waiting("short", Request(duration=100.0))
    assert list(granted(decide(devices(2), [wide, short], running))) == ["short"]
    line = Line()
    for entry in (wide, short):
        line.add(entry)
    done = plan(devices(2), running, line, Policy(), NOW, records={"ada": Spent(30.0, NOW)})
    assert granted(done) == {}
    assert done.reason("short").sentence.endswith("is not believed: leases of ada outlasted theirs.")
    assert done.explain("short")[1].code == "held"


def test_a_forced_request_passes_thresholds_but_never_a_lease() -> None:
    policy = Policy(limits=(Limit("user", "*", gpus=0),))
    forced = waiting("f")._replace(forced=True)
    assert granted(decide(devices(1), [forced], policy=policy)) == {"f": ("0",)}
    done = decide(devices(1), [forced], (lease("l", "0"),), policy)
    assert done.reason("f").code == "busy"


def test_reasons_of_those_who_cannot_start() -> None:
    entries = [
        waiting("blocked")._replace(blocked=Cause("It waits for job 7.", "after 7")),
        waiting("later", Request(not_before=NOW + 7200)),
        waiting("wide", Request(9)),
        waiting("big", Request(memory=60 * G)),
        waiting("closed")._replace(kind="job"),
    ]
    done = decide(
        devices(2), entries, (lease("l", "0"),), closed={"job": Cause("The queue is paused.", "queue paused")}
    )
    assert not done.grants
    assert done.reason("blocked").sentence == "It waits for job 7."
    assert done.reason("later").sentence == "It asked to start later, in 2 h."
    assert done.reason("wide").sentence.endswith("wants 9 devices, and this machine has 2 that match.")
    assert done.reason("big").code == "impossible"
    assert done.reason("closed").sentence == "The queue is paused."
    shorts = {entry.id: done.reason(entry.id).short for entry in entries}
    assert shorts == {
        "blocked": "after 7",
        "later": "asked for in 2 h",
        "wide": "needs 9, has 2",
        "big": "needs 60G, has 38G",
        "closed": "queue paused",
    }
    assert done.next_wakeup == NOW + 7200


def test_no_share_comes_to_a_device_that_a_neighbour_may_hold() -> None:
    views = {"0": DeviceView(neighbour="gpuget")}
    shared = (lease("s", "0", memory=5 * G),)
    entries = [waiting("part", Request(memory=5 * G)), waiting("whole", Request(1))]
    done = decide(devices(1), entries, shared, views=views)
    assert not done.grants
    assert [verdict.sentence for verdict in done.explain("part")] == ["Held by gpuget."]
    assert [verdict.code for verdict in done.explain("whole")] == ["leased"]


def test_explain_says_who_has_each_device() -> None:
    machine = [*devices(4), *devices(1, "V100", "v")]
    machine[1] = machine[1]._replace(processes=(Process(77),))
    running = (lease("l", "0", until=NOW + 60), lease("s", "2", memory=38 * G))
    asked = waiting("r", Request(memory=5 * G, models=("A100",), exclude=("3",)))
    codes = [verdict.code for verdict in decide(machine, [asked], running).explain("r")]
    assert codes == ["leased", "outside", "memory", "excluded-by-request", "model"]


def test_the_reason_of_a_granted_request_is_an_error() -> None:
    done = decide(devices(1), [waiting("r")])
    with pytest.raises(KeyError):
        done.reason("r")


@pytest.mark.parametrize("request_", [Request(-1), Request(memory=0), Request(2, memory=G)])
def test_a_request_that_makes_no_sense_does_not_enter_the_line(request_: Request) -> None:
    with pytest.raises(ValueError):
        Line().add(waiting("r", request_))


def test_usage_is_charged_with_its_half_life() -> None:
    policy = Policy(half_life=DAY)
    usage = charged({"ben": Spent(1000.0, NOW - DAY)}, lease("l", "0", since=NOW - 600), 1.0, NOW, policy)
    assert usage["ben"].gpu_seconds == pytest.approx(500 + 600, rel=0.01)


def test_while_a_wide_request_waits_others_keep_off_the_host_that_empties_soonest() -> None:
    machine = devices(4, host="x") + devices(4, host="y")
    views = {device.uuid: DeviceView(host=device.uuid[0]) for device in machine}
    running = (lease("old", "x0", since=NOW - DAY), lease("young", "y0", "y1", since=NOW - 60))
    narrow = waiting("narrow")
    assert granted(decide(machine, [narrow], running, views=views))["narrow"] == ("y2",)
    wide = waiting("wide", Request(4))
    assert granted(decide(machine, [narrow, wide], running, views=views))["narrow"] == ("x1",)
