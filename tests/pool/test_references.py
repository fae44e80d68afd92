"""After an item is done the pool keeps nothing of it: no function, no argument, no result, here or in a worker."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import pool_tasks
from support.machine import Machine
from support.waiting import wait_until

import gpulease


class Thing:
    """One that can be watched: it is in a module that workers import, as it is in CPython's own tests."""

    def method(self) -> None:
        pass

    def __call__(self, value: int) -> int:
        return value


def make(value: int) -> Thing:
    return Thing()


def live_things() -> int:
    """In the worker that runs it."""
    gc.collect()
    return sum(isinstance(each, Thing) for each in gc.get_objects())


@pytest.fixture
def pool(in_machine: Machine) -> Iterator[gpulease.Pool]:
    with gpulease.Pool(gpus=1) as pool:
        yield pool


def gone(kept: weakref.ref[Thing]) -> Callable[[], bool]:
    def collected() -> bool:
        gc.collect()
        return kept() is None

    return collected


def test_a_bound_method_and_its_object_are_let_go(pool: gpulease.Pool) -> None:
    thing = Thing()
    kept = weakref.ref(thing)
    pool.submit(thing.method)
    del thing
    wait_until(gone(kept))


def test_a_callable_object_of_a_map_is_let_go(pool: gpulease.Pool) -> None:
    thing = Thing()
    kept = weakref.ref(thing)
    assert list(pool.map(thing, range(3))) == [0, 1, 2]
    del thing
    wait_until(gone(kept))


@pytest.mark.parametrize("ordered", [True, False])
def test_an_iterator_keeps_no_result_that_it_has_given(pool: gpulease.Pool, ordered: bool) -> None:
    results = (pool.map if ordered else pool.map_unordered)(make, range(10))
    for result in results:
        kept = weakref.ref(result)
        del result
        wait_until(gone(kept))


def test_an_argument_of_a_submitted_call_is_let_go(pool: gpulease.Pool) -> None:
    future = pool.submit(pool_tasks.pid)
    payload = bytearray(b"x" * 200_000)  # beside the pickle
    before = sys.getrefcount(payload)
    future = pool.submit(len, payload)
    assert future.result(30) == 200_000
    wait_until(lambda: sys.getrefcount(payload) == before)


def test_a_worker_lets_go_of_function_argument_and_result(pool: gpulease.Pool) -> None:
    thing = Thing()
    pool.submit(thing.method).result(30)  # the function holds one
    assert pool.submit(thing, 3).result(30) == 3  # the function is one
    pool.submit(type, thing).result(30)  # the argument is one
    pool.submit(make, 1).result(30)  # the result is one
    assert list(pool.map(lambda value, held=thing: value, range(3))) == [0, 1, 2]  # by value
    wait_until(lambda: pool.submit(live_things).result(30) == 0)


def of_main(source: str, **known: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function as a program has it that is run: workers cannot import it. And the variables of that program."""
    known["__name__"] = "__main__"
    exec(source, known)
    return known["function"], known


def test_a_function_by_value_is_as_it_is_at_the_call(pool: gpulease.Pool) -> None:
    function, known = of_main("def function(value): return value * factor, type(factor).__name__", factor=1)
    assert pool.submit(function, 3).result(30) == (3, "int")
    assert pool._function(function) is pool._function(function)  # it is not pickled again
    known["factor"] = True
    assert pool.submit(function, 3).result(30) == (3, "bool")
    known["factor"] = [1]
    assert pool.submit(function, 3).result(30) == ([1, 1, 1], "list")
    known["factor"].append(2)
    assert pool.submit(function, 1).result(30) == ([1, 2], "list")
    function.__code__ = (lambda value: -value).__code__
    assert pool.submit(function, 3).result(30) == -3


def test_what_a_function_by_value_writes_is_gone_with_its_items(pool: gpulease.Pool) -> None:
    function, _ = of_main("def function():\n global count\n count += 1\n return count", count=0)
    for _ in range(3):
        assert pool.submit(function).result(30) == 1
        wait_until(lambda: not list(pool._by_payload))
