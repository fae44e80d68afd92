"""How long everything should run: sketches are small and near the truth, and a shape is drawn to what is wider."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpulease.model.values import Lease, Owner
from gpulease.planner.lengths import (
    ALL,
    EMPTY,
    HALF_LIFE,
    PRIOR,
    Alike,
    Lengths,
    Sketch,
    faded,
    learned,
    quantile,
    seen,
)

NOW = 1e9
AMOUNTS = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=200)
LIKE = Alike("ada\t1 GPU\tpython train.py", "gpus 1")


def sketch_of(amounts: list[float]) -> Sketch:
    found = EMPTY
    for amount in amounts:
        found = seen(found, amount, NOW)
    return found


def lease(run: float, user: str = "ada", shape: str | None = LIKE.shape, declared: float | None = None) -> Lease:
    owner = Owner(1, user, "h", "b")
    return Lease("l", "job", ("0",), owner, NOW - run, duration=declared, shape=shape)


def history(*leases: Lease) -> dict[str, Sketch]:
    found: dict[str, Sketch] = {}
    for one in leases:
        found |= learned(found, one, NOW)
    return found


@given(AMOUNTS, st.floats(0.01, 0.99))
def test_a_quantile_is_near_the_true_one(amounts: list[float], part: float) -> None:
    reply = quantile(dict(sketch_of(amounts).counts), part)
    ordered = sorted(amounts)
    rank = part * len(ordered)
    near = (ordered[max(0, int(rank) - 1)], ordered[min(len(ordered) - 1, int(rank) + 1)])
    assert near[0] / 1.42 <= reply <= near[1] * 1.42, "a bucket is a half power of two"


@given(AMOUNTS, st.floats(0, 10))
def test_the_mean_is_exact_and_what_is_old_counts_for_less(amounts: list[float], lives: float) -> None:
    found = sketch_of(amounts)
    assert abs(found.total / found.weight - sum(amounts) / len(amounts)) <= 1e-6 * max(amounts)
    later = faded(found, NOW + lives * HALF_LIFE)
    assert later.weight <= found.weight
    assert abs(later.weight - found.weight * 0.5**lives) < 1e-6 * found.weight
    assert len(seen(later, 1.0, NOW + lives * HALF_LIFE).counts) <= len(found.counts) + 1


@given(st.lists(st.floats(0.1, 1e9), max_size=2000))
def test_a_sketch_stays_small(amounts: list[float]) -> None:
    assert len(sketch_of(amounts).counts) <= 70


def test_what_nothing_is_known_of_counts_as_usual_and_is_told_to_nobody() -> None:
    lengths = Lengths({}, (), NOW)
    assert lengths.mean("ada", LIKE) == PRIOR
    assert lengths.of_alike("ada", LIKE) is None


def test_a_shape_is_believed_with_its_runs_and_another_of_the_same_user_is_near_the_users() -> None:
    lengths = Lengths(history(*[lease(60.0)] * 30), (), NOW)
    assert 60 <= lengths.mean("ada", LIKE) < 120
    other = lengths.mean("ada", Alike("ada\t1 GPU\tpython eval.py", "gpus 1"))
    assert lengths.mean("ada", LIKE) < other < lengths.mean("ben", Alike(None, "")) < PRIOR


def test_one_that_still_runs_counts_once_it_is_longer_than_was_expected() -> None:
    sketches = history(*[lease(60.0)] * 30)
    usual = Lengths(sketches, (), NOW).mean("ada", LIKE)
    assert Lengths(sketches, [lease(30.0)], NOW).mean("ada", LIKE) == usual
    assert Lengths(sketches, [lease(86400.0)], NOW).mean("ada", LIKE) > 10 * usual


@given(st.floats(0.05, 20), st.integers(20, 60))
def test_a_declaration_counts_for_what_this_users_were_worth(ratio: float, runs: int) -> None:
    sketches = history(*[lease(1000.0 * ratio, declared=1000.0)] * runs)
    lengths = Lengths(sketches, (), NOW)
    assert abs(lengths.declared("ada", 500.0) - 500 * ratio) <= 500 * 3 * max(1.0, ratio) / (runs + 3) + 1
    assert lengths.declared("ben", 500.0) == Lengths({}, (), NOW).declared("ben", 500.0), "others are not touched"


def test_what_ran_longer_than_all_before_goes_on_in_proportion() -> None:
    length = Lengths(history(*[lease(60.0)] * 30), (), NOW).of_alike("ada", LIKE)
    assert length is not None
    assert length.after(10_000.0, 0.5) == 10_000.0
    assert length.after(0.0, 0.5) < 90 < length.after(10_000.0, 0.9)


def test_reservations_tell_nothing_of_run_times() -> None:
    assert learned({}, lease(60.0)._replace(kind="reservation"), NOW) == {}
    assert ALL in learned({}, lease(60.0), NOW)
