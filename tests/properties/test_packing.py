"""Shares, packed or declared, never exceed a device less its reserve, nor what is free now; and all is bounded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpulease.broker.core.shapes import shape_of
from gpulease.model.values import Device, Lease, Owner, Process, Request, Waiting
from gpulease.planner import DeviceView, Line, Peak, Policy, lease_of, plan
from gpulease.planner.packing import FORGOTTEN, MAX_PEAKS, may_pack, raised, superfluous

G = 1 << 30
TOTAL = 16 * G
NOW = 1000.0
SHAPES = ("a", "b", "c", "unknown")
PEAKS = {"a": Peak(3 * G, NOW), "b": Peak(7 * G, NOW), "c": Peak(int(15.9 * G), NOW)}  # c leaves no reserve

packed = st.builds(
    lambda shape, beside: (Request(pack=True, beside_outside=beside), shape), st.sampled_from(SHAPES), st.booleans()
)
declared = st.builds(
    lambda memory, beside: (Request(memory=memory * G, beside_outside=beside), None),
    st.integers(1, 16),
    st.booleans(),
)
whole = st.just((Request(), None))
asked = st.lists(packed | declared | whole, max_size=12)
foreign = st.lists(st.sampled_from((0, 0, 0, G // 2, 6 * G)), min_size=1, max_size=3)


def _devices(outside: list[int]) -> list[Device]:
    return [
        Device(
            at, str(at), "A100", memory_total=TOTAL, memory_used=used,
            processes=(Process(70 + at, 5, "zoe", "x", used),) if used else (),
        )
        for at, used in enumerate(outside)
    ]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(asked, foreign, st.integers(1, 4), st.sampled_from((0.0, 0.05, 0.2)), st.lists(st.integers(0, 11)))
def test_what_is_shared_holds_it_all(
    wanted: list[tuple[Request, str | None]], outside: list[int], most: int, reserve: float, ends: list[int]
) -> None:
    policy, line = Policy(pack_most=most, memory_reserve=reserve), Line()
    leases: dict[str, Lease] = {}
    for at, (request, shape) in enumerate(wanted):
        line.add(Waiting(f"r{at:02}", request, "ada", 1, NOW + at, kind="job", shape=shape, packed=shape is not None))
    devices = _devices(outside)
    for end in [None, *ends]:
        if end is not None:
            leases.pop(f"r{end:02}", None)
        done = plan(devices, leases.values(), line, policy, NOW, peaks=PEAKS)
        assert done == plan(devices, leases.values(), line, policy, NOW, peaks=PEAKS)
        for grant in done.grants:
            waiting = line.remove(grant.id)
            leases[grant.id] = lease_of(grant, waiting, Owner(1, waiting.user, "h", "b"), NOW)
        for device in devices:
            _check(device, [one for one in leases.values() if device.uuid in one.devices], policy, outside)
        assert all(done.reason(entry.id).sentence and done.explain(entry.id) for entry in line)


def _check(device: Device, on: list[Lease], policy: Policy, outside: list[int]) -> None:
    taken = sum(lease.memory or 0 for lease in on)
    if any(lease.memory is None for lease in on):
        assert len(on) == 1
        assert not outside[device.index], "a whole device is nobody else's"
    else:
        reserve = int(TOTAL * policy.memory_reserve)
        assert not on or taken + outside[device.index] + reserve <= TOTAL
    if any(lease.shape is not None and lease.memory is not None for lease in on):
        assert len(on) <= policy.pack_most


@given(asked, foreign)
def test_nobody_is_beside_outside_use_unless_asked(
    wanted: list[tuple[Request, str | None]], outside: list[int]
) -> None:
    line = Line()
    for at, (request, shape) in enumerate(wanted):
        line.add(Waiting(f"r{at:02}", request, "ada", 1, NOW + at, kind="job", shape=shape, packed=shape is not None))
    devices = _devices(outside)
    views = {"0": DeviceView(excluded="fan")}
    for grant in plan(devices, (), line, Policy(), NOW, peaks=PEAKS, views=views).grants:
        assert "0" not in grant.devices
        for uuid in grant.devices:
            assert not outside[int(uuid)] or line[grant.id].request.beside_outside
            assert bool(grant.outsiders) == bool(outside[int(uuid)])


def test_a_packed_job_takes_an_idle_device_first_and_shares_when_there_is_none() -> None:
    line, devices = Line(), _devices([0, 0])
    for at in range(6):
        line.add(Waiting(f"r{at}", Request(pack=True), "ada", 1, NOW + at, kind="job", shape="b", packed=True))
    grants = plan(devices, (), line, Policy(), NOW, peaks=PEAKS).grants
    assert [grant.devices[0] for grant in grants] == ["0", "1", "0", "1"]  # two of 7 G on each of 16 G


def test_what_is_not_known_yet_has_a_device_alone() -> None:
    line = Line()
    for at in range(2):
        line.add(Waiting(f"r{at}", Request(pack=True), "ada", 1, NOW + at, kind="job", shape="unknown", packed=True))
    done = plan(_devices([0]), (), line, Policy(), NOW, peaks=PEAKS)
    assert [(grant.id, grant.memory) for grant in done.grants] == [("r0", None)]
    assert "alone" in done.reason("r1").sentence


def test_a_shape_is_the_user_the_script_and_its_options_without_their_values() -> None:
    def shape(command: str, user: str = "ada", cwd: str = "/home", request: Request = Request()) -> str:  # noqa: B008
        return shape_of(user, command.split(), cwd, request)

    same = shape("python train.py --lr 0.1")
    assert same == shape("python -u train.py --lr=0.2") == shape("python -W ignore /home/train.py --lr -3")
    others = (
        shape("python train.py"), shape("python train.py --lr 0.1 --large"),
        shape("python eval.py"), shape("python3 train.py"), shape("python train.py", "ben"),
        shape("python train.py", cwd="/tmp"), shape("python train.py", request=Request(models=("A100",))), shape("sh"),
    )  # fmt: skip
    assert same not in others
    assert not may_pack(Request(gpus=2, pack=True), True)
    assert not may_pack(Request(pack=False), True)
    assert may_pack(Request(), True)
    assert not may_pack(Request(), False)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.floats(0, 3 * FORGOTTEN))))
def test_the_largest_use_of_late_is_remembered(seen: list[tuple[int, int, float]]) -> None:
    peaks: dict[str, Peak] = {}
    for at, memory, time in sorted(seen, key=lambda one: one[2]):
        peaks[str(at)] = raised(peaks, str(at), memory, time)
        assert peaks[str(at)].memory >= memory
        for old in superfluous(peaks, time):
            assert time - peaks[old].time > FORGOTTEN
            del peaks[old]
    many = {str(at): Peak(1, float(at)) for at in range(MAX_PEAKS + 7)}
    assert superfluous(many, NOW) == [str(at) for at in range(7)]
