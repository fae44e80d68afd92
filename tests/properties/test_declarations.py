"""A record of declared times: it is made worse by excess only, is bounded, and becomes good again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpulease.model.values import Lease, Owner
from gpulease.planner import Policy, Spent
from gpulease.planner.fairness import MOST, doubted, excess, recorded

NOW = 1_000_000.0
ran = st.floats(0, 1e6)
declared = st.one_of(st.none(), st.floats(0.1, 1e6))


def lease(seconds: float, duration: float | None, kind: str = "run") -> Lease:
    return Lease("L", kind, ("0",), Owner(1, "ada", "h", "b"), NOW - seconds, duration=duration)


@given(st.lists(st.tuples(ran, declared), max_size=20))
def test_a_record_is_bounded_and_an_hour_of_kept_declarations_makes_it_good(
    lives: list[tuple[float, float | None]],
) -> None:
    records: dict[str, Spent] = {"ben": Spent(5.0, NOW)}
    for seconds, duration in lives:
        before = records.get("ada", Spent(0.0, NOW)).gpu_seconds
        records = recorded(records, lease(seconds, duration), NOW, Policy())
        after = records.get("ada", Spent(0.0, NOW)).gpu_seconds
        assert 0 <= after <= MOST
        late = excess(lease(seconds, duration), NOW)
        assert after >= before if late else after <= before
    records = recorded(records, lease(MOST, MOST), NOW, Policy())
    assert doubted(records, [], NOW, Policy()) == {"ben"}


@given(ran, st.floats(0.1, 1e6))
def test_being_a_little_late_is_no_excess_and_being_late_is(seconds: float, duration: float) -> None:
    late = doubted({}, [lease(seconds, duration)], NOW, Policy()) == {"ada"}
    assert not late or seconds > duration * 1.1
    assert late or seconds <= duration * 1.1 + 12


def test_a_reservation_that_was_renewed_is_not_late() -> None:
    assert excess(lease(1000, 1.0, "reservation"), NOW) == 0
    assert recorded({}, lease(1000, 1.0, "reservation"), NOW, Policy()) == {}


def test_records_fade() -> None:
    policy = Policy()
    assert doubted({"ada": Spent(MOST, NOW)}, [], NOW + 11 * policy.half_life, policy)
    assert not doubted({"ada": Spent(MOST, NOW)}, [], NOW + 12 * policy.half_life, policy)
