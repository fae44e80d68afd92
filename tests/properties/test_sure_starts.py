"""What is said to be sure comes true, whenever leases end before their limits; forecasts know caps; shares are fair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpulease.model.values import Device, Lease, Owner, Request, Waiting
from gpulease.planner import Line, Policy, charged, lease_of, plan
from gpulease.planner.fairness import Spent
from gpulease.planner.forecast import KnownEnds

NOW = 1e6
G = 1 << 30
POLICY = Policy()


def machine(count: int) -> list[Device]:
    return [Device(at, f"G{at}", "A100", memory_total=40 * G, memory_used=0) for at in range(count)]


def owner(user: str) -> Owner:
    return Owner(1, user, "h", "b")


def line_of(many: list[Waiting]) -> Line:
    line = Line(POLICY)
    for one in many:
        line.add(one)
    return line


LIMIT = st.sampled_from((None, 100.0, 200.0, 300.0))
RUN = st.tuples(LIMIT, st.floats(0.01, 1.0), st.booleans())  # limit, part of it that it runs, whether it is a share
ASK = st.tuples(st.integers(1, 3), st.sampled_from(("ada", "bob")), st.sampled_from((None, 50.0, 500.0)), st.booleans())


@given(st.lists(RUN, min_size=1, max_size=4), st.lists(ASK, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_who_is_told_a_sure_time_starts_by_then(
    runs: list[tuple[float | None, float, bool]],
    asked: list[tuple[int, str, float | None, bool]],
    random: object,
) -> None:
    """However early each lease ends, and however long the others run that start meanwhile: nobody new comes."""
    devices = machine(len(runs))
    leases, ends, limits = [], {}, {}
    for at, (limit, part, share) in enumerate(runs):
        memory = 20 * G if share else None
        leases.append(Lease(f"l{at}", "job", (f"G{at}",), owner(f"user{at}"), NOW - 10, memory=memory))
        ends[f"l{at}"] = NOW + (1e4 if limit is None else limit * part)
        if limit is not None:
            limits[f"l{at}"] = NOW + limit
    many = [
        Waiting(
            f"w{at}", Request(1 if share else gpus, 15 * G if share else None, duration=span), user, 1, NOW + at / 10
        )
        for at, (gpus, user, span, share) in enumerate(asked)
    ]
    line = line_of(many)
    lengths = {one.id: random.choice((1.0, 150.0, 1e4)) for one in many}  # type: ignore[attr-defined]
    sure: dict[str, float] = {}
    now = NOW + 1
    while True:
        decided = plan(devices, leases, line, POLICY, now, known_ends=lambda: KnownEnds(limits=limits))
        for grant in decided.grants:
            waiting = line.remove(grant.id)
            assert now <= sure.get(grant.id, now), f"{grant.id} was sure to start by {sure[grant.id] - NOW}"
            leases.append(lease_of(grant, waiting, owner(waiting.user), now))
            ends[grant.id] = now + lengths[grant.id]
        for waiting in line:
            reply = decided.forecast(waiting.id)[0].sure
            if now == NOW + 1 and reply is not None:
                sure[waiting.id] = reply.moment
            assert now <= sure.get(waiting.id, now)
        if not leases:
            break
        now = min(ends[lease.id] for lease in leases)
        leases = [lease for lease in leases if ends[lease.id] > now]


def test_the_next_of_a_capped_sweep_starts_when_one_of_it_ends_and_others_are_not_in_its_way() -> None:
    ends = {"l0": NOW + 100, "l1": NOW + 300}
    mine = Lease("l0", "job", ("G0",), owner("ada"), NOW, cap=1)
    other = Lease("l1", "job", ("G1",), owner("bob"), NOW)
    waiting = [Waiting(f"w{at}", Request(duration=50.0), "ada", 1, NOW + at, kind="job", cap=1) for at in range(2)]
    line = line_of([*waiting, Waiting("w9", Request(4), "bob", 1, NOW + 9)])
    decided = plan(
        machine(4), [mine, other], line, POLICY, NOW + 10, caps={1: 1}, known_ends=lambda: KnownEnds(limits=ends)
    )
    first, second = (decided.expected_start(one.id) for one in waiting)
    assert first is not None
    assert second is not None
    assert first.played == NOW + 100
    assert NOW + 100 < second.played <= NOW + 150
    assert decided.reason("w0").sentence.startswith("At most 1 of this sweep run at once, likely in ")


def shares_of(lengths: dict[str, float], seconds: float) -> dict[str, float]:
    """GPU-seconds of users whose jobs, of one length each, never run out, on one GPU."""
    had = dict.fromkeys(lengths, 0.0)
    usage: dict[str, Spent] = {}
    line = line_of([Waiting(f"{user}-0", Request(), user, 1, NOW) for user in lengths])
    now, number = NOW, 0
    while now < NOW + seconds:
        (grant,) = plan(machine(1), [], line, POLICY, now, usage=usage).grants
        waiting = line.remove(grant.id)
        lease = lease_of(grant, waiting, owner(waiting.user), now)
        number += 1
        line.add(Waiting(f"{waiting.user}-{number}", Request(), waiting.user, 1, now))
        now += lengths[waiting.user]
        had[waiting.user] += lengths[waiting.user]
        usage = charged(usage, lease, 1.0, now, POLICY)
    return had


def test_users_of_short_jobs_have_the_same_share_as_users_of_long_ones() -> None:
    had = shares_of({"ada": 1.0, "bob": 2.0, "eva": 30.0}, 600.0)
    assert max(had.values()) - min(had.values()) <= 31, had


def test_a_request_that_another_user_passes_is_told_of_fair_share() -> None:
    used = {"ada": Spent(5000.0, NOW)}
    busy = [Lease("l0", "job", ("G0",), owner("eva"), NOW, duration=600.0)]
    line = line_of([Waiting("w0", Request(), "ada", 1, NOW), Waiting("w1", Request(), "bob", 1, NOW + 1)])
    decided = plan(machine(1), busy, line, POLICY, NOW + 10, usage=used)
    reply = decided.reason("w0").sentence
    assert "Fair share: bob, who had less GPU time lately, goes first." in reply
    assert "Fair share" not in decided.reason("w1").sentence
