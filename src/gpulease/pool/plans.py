"""What a pool was asked for, checked, as a plan of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpulease.errors import UsageError
from gpulease.pool.checking import read_request
from gpulease.pool.local import Plan
from gpulease.pool.pickling import Packed, name_of, pack
from gpulease.pool.sharing import pack_shared

ALL_IDLE = "all-idle"
POLITE = 100  # the priority of a pool that takes only what is idle: everybody else is sooner
MOST_WORKERS = 1024


def check_engine(engine: str, address: str | None) -> None:
    if engine not in ("local", "ray"):
        raise UsageError(f"There is no engine {engine!r}.", "Use 'local' or 'ray'.")
    if address is not None and engine != "ray":
        raise UsageError("An address is for Ray.", "Add engine='ray', or leave out address=.")


def make_plan(
    gpus: int | str,
    gpus_per_worker: int,
    request: Mapping[str, Any],
    init: Callable[..., Any] | str | None,
    initargs: tuple[Any, ...],
    shared: Mapping[str, Any] | None,
    retries: int,
) -> Plan:
    each = _whole(gpus_per_worker, "gpus_per_worker")
    if request.get("mem") is not None and each != 1:
        raise UsageError("A share by memory is of one GPU.", "Leave out mem= or gpus_per_worker=.")
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise UsageError(f"retries is {retries!r}.", "Give 0 or more.")
    elastic = gpus == ALL_IDLE
    workers = MOST_WORKERS if elastic else _workers(gpus, each)
    wanted = {name: value for name, value in request.items() if value is not None}
    wanted.setdefault("priority", POLITE if elastic else 5)
    read_request({**wanted, "gpus": each})
    return Plan(workers, {**wanted, "gpus": each}, _init(init, initargs), _shared(shared), (), elastic)


def _workers(gpus: int | str, each: int) -> int:
    if isinstance(gpus, str):
        raise UsageError(f"gpus is {gpus!r}.", f"Give a number, or {ALL_IDLE!r}.")
    total = _whole(gpus, "gpus")
    if total % each:
        raise UsageError(f"{total} GPUs cannot be divided among workers of {each}.", "Ask for a multiple.")
    return total // each


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WORKERS:
        raise UsageError(f"{name} is {value!r}.", f"Give a whole number from 1 to {MOST_WORKERS}.")
    return value


def _init(init: Callable[..., Any] | str | None, initargs: tuple[Any, ...]) -> Packed | None:
    if init is None:
        return None
    if not callable(init) and not isinstance(init, str):
        raise UsageError(f"init is {init!r}.", "Give a function.")
    if not isinstance(initargs, Iterable) or isinstance(initargs, (str, bytes)):
        raise UsageError(f"initargs is {initargs!r}.", "Give a tuple, as (3,) for one argument.")
    packed = pack((init, tuple(initargs)), f"init, {name_of(init)}")
    # A pool starts few workers: their arguments need no way beside the pickle.
    return Packed(_whole_pickle((init, tuple(initargs)))) if packed.buffers else packed


def _whole_pickle(value: object) -> bytes:
    import cloudpickle

    data: bytes = cloudpickle.dumps(value, 5)
    return data


def _shared(shared: Mapping[str, Any] | None) -> Packed | None:
    if shared is None:
        return None
    if not isinstance(shared, Mapping) or not all(isinstance(name, str) for name in shared):
        raise UsageError("shared is not a dictionary with names as keys.", "Write it as shared={'name': value}.")
    return pack_shared(dict(shared)) if shared else None


def named_plan(options: Mapping[str, Any], shared: Mapping[str, Any]) -> Plan:
    """The plan of a named pool, from the options of `gpulease pool start`."""
    init = options["init"]
    return make_plan(options["gpus"], options["gpus_per_worker"], options["request"], init, (), shared, 1)
