"""What a pool returns has the type of the function: mypy reads this file with the others."""

from __future__ import annotations

from typing import assert_type, get_args, get_type_hints

import gpulease
from gpulease.api.leases import Held, LeasedDevice
from gpulease.pool.executor import Pool, T
from gpulease.pool.feed import Mapped
from gpulease.pool.items import PoolFuture


def length(text: str, times: int = 1) -> int:
    return len(text) * times


def use(pool: gpulease.Pool) -> None:
    """Never called: each line is checked by mypy, and all of them were Any."""
    assert_type(pool.submit(length, "x", times=2), PoolFuture[int])
    assert_type(pool.submit(length, "x").result(), int)
    assert_type(list(pool.map(length, ["x"])), list[int])
    assert_type(next(pool.map(length, ["x"], return_errors=True)), int | BaseException)
    assert_type(list(pool.map_unordered(length, ["x"])), list[int])
    pool.submit(length, 3)  # type: ignore[arg-type]


def test_results_have_the_type_of_the_function() -> None:
    assert get_args(get_type_hints(Pool.submit)["return"]) == (T,)
    assert get_args(Mapped[int]) == (int,)


def test_a_lease_has_its_gpus_as_numbers() -> None:
    """`indices` is text, of which `[0]` is the wrong card from GPU 10 on."""
    lease = Held.__new__(Held)
    lease.devices = tuple(LeasedDevice(label, "", "", "nvidia") for label in ("12", "3", "4:1"))
    assert (lease.indices, lease.gpus) == ("12,3,4:1", [12, 3, 4])
