"""The indexed line agrees with a plain list, and stays small."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from gpulease.broker.core.shapes import shape_of
from gpulease.model.values import Cause, Request, Waiting
from gpulease.planner import Line, Policy
from gpulease.planner.queue import Entry, Key, Queue

BLOCKED = Cause("It comes after job 1.", "after 1")


def test_a_queue_finds_what_a_plain_search_finds() -> None:
    chance = random.Random(3)
    queue, plain = Queue(), []
    for at in range(2000):
        entry = Entry(str(at), chance.randrange(50), chance.choice((-1.0, 5.0)), chance.uniform(0, 9))
        key = (chance.random(), 0.0, entry.id)
        queue.add(key, entry)
        plain.append((key, entry))
        if at % 3 == 0:
            queue.remove(plain.pop(chance.randrange(len(plain)))[0])
        if at % 50 == 0:
            _same(queue, plain, chance)
    assert list(queue) == sorted(plain)


def _same(queue: Queue, plain: list[tuple[Key, Entry]], chance: random.Random) -> None:
    until, size, ready, duration = chance.random(), chance.randrange(20), 0.0, chance.uniform(0, 3)
    fitting = [
        (key, entry)
        for key, entry in sorted(plain)
        if key[0] <= until and entry.size <= size and entry.ready <= ready and entry.duration <= duration
    ]
    assert queue.first(until, size, ready, duration, ()) == (fitting[0] if fitting else None)
    later = [key[0] for key, _ in sorted(plain) if key[0] > until]
    assert queue.after(until) == (later[0] if later else None)
    assert queue.before((until, 0.0, "")) == sum(key[0] < until for key, _ in plain)
    assert all(queue.before(key) == at for at, (key, _) in enumerate(sorted(plain)))


def test_removing_what_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        Queue().remove((1.0, 0.0, "a"))
    line = Line()
    with pytest.raises(KeyError):
        line.remove("nobody")


def test_places_are_those_of_a_plain_list() -> None:
    chance = random.Random(5)
    line, plain = Line(), []
    for at in range(600):
        forced, blocked = at % 50 == 0, BLOCKED if at % 7 == 0 else None
        request = Request(priority=chance.randrange(3), gpus=1 + at % 2)
        place = None if at % 5 else chance.random() * 600
        one = Waiting(
            f"J{at}", request, f"user{at % 3}", at % 3, float(at), place=place, blocked=blocked, forced=forced
        )
        line.add(one)
        plain.append(one)
    able = [one for one in plain if one.blocked is None]
    able.sort(key=lambda one: (not one.forced, one.forced or one.request.priority, _place(one)))
    assert [line.ahead(one.id) for one in able] == list(range(len(able)))
    assert {line.ahead(one.id) for one in plain if one.blocked is not None} == {len(able)}


def _place(one: Waiting) -> tuple[float, str]:
    return (one.since if one.place is None or one.forced else one.place, one.id)


def test_a_line_that_everybody_left_keeps_nothing() -> None:
    line = Line()
    for at in range(300):
        line.add(Waiting(str(at), Request(1 + at % 3, priority=at % 5), f"u{at % 7}", 1, float(at)))
    line.replace(line["7"]._replace(blocked=BLOCKED))
    line.replace(line["8"]._replace(forced=True))
    for at in range(300):
        line.remove(str(at))
    assert len(line) == line.wide == 0
    assert not line.tiers
    assert not line.forced
    assert not line.starts


def test_another_patience_indexes_the_line_anew_and_leaves_it_as_it_was() -> None:
    line = Line()
    line.add(Waiting("r", Request(), "ada", 1, 0.0))
    assert line.under(Policy()) is line
    other = line.under(Policy(patience_undeclared=5.0))
    assert other is not line
    assert list(other) == list(line)


def test_a_request_costs_less_than_a_kilobyte() -> None:
    tracemalloc.start()
    line = Line()
    for at in range(20_000):
        line.add(Waiting(f"{at:06}", Request(memory=at + 1, duration=float(at)), f"u{at % 9}", 1, float(at)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 20_000 < 1024


def test_a_job_of_a_sweep_costs_about_half_a_kilobyte() -> None:
    """What is alike is one object: its shape, and its key in each queue."""
    tracemalloc.start()
    line, request = Line(), Request()
    for at in range(20_000):
        shape = shape_of("ada", ("python", "train.py", "--seed", str(at)), "/home/ada", request)
        line.add(Waiting(f"J{at}", request, "ada", 1, 0.5 + at, kind="job", shape=shape))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 20_000 < 550


def test_a_line_that_is_filled_at_once_is_the_same_as_one_that_was_added_to() -> None:
    chance = random.Random(7)
    requests = [Request(priority=p, gpus=g, duration=d) for p in (4, 5) for g in (1, 2) for d in (None, 60.0, 1e5)]
    requests.append(Request(not_before=99.0))
    many = [
        Waiting(
            f"J{at}", chance.choice(requests), f"user{at % 3}", at % 3, chance.random() * 900, kind="job",
            place=chance.choice((None, None, 5.5)), forced=at % 40 == 0, blocked=None if at % 9 else BLOCKED,
        )
        for at in range(1500)
    ]  # fmt: skip
    filled, added = Line(), Line()
    for line in (filled, added):
        line.add(Waiting("L1", requests[0], "user1", 1, 450.0))
    filled.fill(many)
    for one in many:
        added.add(one)
    assert [one.id for one in filled.front(2000)] == [one.id for one in added.front(2000)]
    assert (filled.wide, len(filled)) == (added.wide, len(added))
    for priority, tier in added.tiers.items():
        assert (filled.tiers[priority].counts, filled.tiers[priority].least) == (tier.counts, tier.least)
        assert list(filled.tiers[priority].oldest) == list(tier.oldest)
        for party, families in tier.parties.items():
            for family, queues in families.items():
                assert list(filled.tiers[priority].parties[party][family].deadline) == list(queues.deadline)
    for one in many:
        filled.remove(one.id)
    assert len(filled) == 1
