"""What a pool was asked for, checked, as a plan of workers; and whether this machine could ever serve it.

Said when the pool is made, not by a worker later.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulease.errors import NotEnoughDevices, UsageError, in_words
from gpulease.model import visible
from gpulease.pool import context
from gpulease.pool.pickling import Packed, name_of, pack_shared, pack_whole, to_body

if TYPE_CHECKING:
    from gpulease.model.values import Device, Request

ALL_IDLE = "all-idle"
POLITE = 100  # the priority of a pool that takes only what is idle: everybody else is sooner
MAX_WORKERS = 1024


class PoolPlan(NamedTuple):
    """What workers to start."""

    workers: int
    request: Mapping[str, Any]  # of each worker's lease
    init: bytes | None  # the pickle of (function, arguments)
    shared: Packed | None
    elastic: bool = False  # as many as there are idle devices; `workers` is the most
    max_items: int | None = None  # after which a worker is replaced
    quiet: bool = False  # say nothing of workers that wait


def check_engine(engine: str, address: str | None) -> None:
    if engine not in ("local", "ray"):
        raise UsageError(f"There is no engine {engine!r}.", "Use 'local' or 'ray'.")
    if address is not None and engine != "ray":
        raise UsageError("An address is for Ray.", "Add engine='ray', or leave out address=.")


def check_hook(on_start: object) -> None:
    if on_start is not None and not callable(on_start):
        raise UsageError(f"on_start is {on_start!r}.", "Give a function of one argument.")


def make_plan(
    gpus: int | str,
    gpus_per_worker: int,
    request: Mapping[str, Any],
    init: Callable[..., Any] | str | None = None,  # text names one, as `module:function`
    initargs: tuple[Any, ...] = (),
    shared: Mapping[str, Any] | None = None,
    retries: int = 1,
    max_items: int | None = None,
) -> PoolPlan:
    each = _whole(gpus_per_worker, "gpus_per_worker")
    if request.get("mem") is not None and each != 1:
        raise UsageError("A share by memory is of one GPU.", "Leave out mem= or gpus_per_worker=.")
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise UsageError(f"retries is {retries!r}.", "Give 0 or more.")
    if max_items is not None and (isinstance(max_items, bool) or not isinstance(max_items, int) or max_items < 1):
        raise UsageError(f"max_items is {max_items!r}.", "Give 1 or more, or None for no limit.")
    elastic = gpus == ALL_IDLE
    workers = MAX_WORKERS if elastic else _workers(gpus, each)
    visible.wanted(request.get("visible_by"), os.environ, "visible_by")
    wanted = {name: value for name, value in request.items() if value is not None}
    wanted.setdefault("priority", POLITE if elastic else 5)
    read_request({**wanted, "gpus": each})
    return PoolPlan(workers, {**wanted, "gpus": each}, _init(init, initargs), pack_named(shared), elastic, max_items)


def grown(plan: PoolPlan, gpus: int, request: Mapping[str, Any]) -> PoolPlan:
    """The workers that are added to those of `plan`. Raises UsageError for one that cannot grow."""
    if plan.elastic:
        raise UsageError(
            "A pool of all idle GPUs grows by itself.", f"Leave that to it, or make one without {ALL_IDLE!r}."
        )
    if context.current is not None:
        raise UsageError("A pool in a worker cannot grow.", "It divides its worker's own GPUs.")
    wanted = {**plan.request, **{name: value for name, value in request.items() if value is not None}}
    read_request(wanted)
    return plan._replace(workers=_workers(gpus, wanted["gpus"]), request=wanted)


def _workers(gpus: int | str, each: int) -> int:
    total = _whole(gpus, "gpus", f"a whole number from 1 to {MAX_WORKERS}, or {ALL_IDLE!r}")
    if total % each:
        raise UsageError(f"{total} GPUs cannot be divided among workers of {each}.", "Ask for a multiple.")
    return total // each


def _whole(value: object, name: str, wanted: str = f"a whole number from 1 to {MAX_WORKERS}") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_WORKERS:
        raise UsageError(f"{name} is {value!r}.", f"Give {wanted}.")
    return value


def _init(init: Callable[..., Any] | str | None, initargs: tuple[Any, ...]) -> bytes | None:
    if init is None:
        return None
    if not callable(init) and not isinstance(init, str):
        raise UsageError(f"init is {init!r}.", "Give a function.")
    if not isinstance(initargs, Iterable) or isinstance(initargs, (str, bytes)):
        raise UsageError(f"initargs is {initargs!r}.", "Give a tuple, as (3,) for one argument.")
    return pack_whole((init, tuple(initargs)), f"init, {name_of(init)}")


def pack_named(shared: Mapping[str, Any] | None) -> Packed | None:
    if shared is None:
        return None
    if not isinstance(shared, Mapping) or not all(isinstance(name, str) for name in shared):
        raise UsageError("shared is not a dictionary with names as keys.", "Write it as shared={'name': value}.")
    return pack_shared(dict(shared)) if shared else None


# -------------------------------------------------------------------- whether it can be had here


def read_request(options: Mapping[str, Any]) -> Request:
    """The lease that each worker will ask for. Raises UsageError for what makes no sense."""
    from gpulease import PROTOCOL
    from gpulease.model import request
    from gpulease.model.fields import request_fields
    from gpulease.protocol.check import check

    fields = request_fields(options)
    asked = {"request": fields, "kind": "pool", "note": options.get("note")}
    check({"v": PROTOCOL, "do": "acquire", **asked})
    return request.read_request(fields)


def check_devices(plan: PoolPlan) -> None:
    """Raises NotEnoughDevices if this machine can never serve the plan."""
    above, gpus = context.current, plan.workers * plan.request["gpus"]
    if above is not None and gpus > len(above.uuids):
        raise NotEnoughDevices(
            f"A pool in a worker asks for {gpus} GPUs, and the worker has {len(above.uuids)}.",
            "A nested pool divides its worker's own GPUs: ask for fewer, or give the outer workers more.",
        )
    devices = [] if above is not None else _devices()
    if devices:  # else a worker says why there are none
        _check_fits(1 if plan.elastic else plan.workers, read_request(plan.request), devices)


def _devices() -> list[Device]:
    from gpulease.client.connection import Client
    from gpulease.model.values import Device

    known = set(Device._fields) - {"processes"}
    with closing(Client()) as client:
        rows = client.ask("status")["devices"]
    return [Device(**{name: value for name, value in row.items() if name in known}) for row in rows]


def _check_fits(workers: int, request: Request, devices: Sequence[Device]) -> None:
    from gpulease.model.device_selection import resolve
    from gpulease.model.devices import kind_wanted, of_kind
    from gpulease.model.quantities import format_bytes
    from gpulease.planner import refusal

    request = resolve(request, devices)
    fitting = [device for device in devices if refusal(request, device) is None]
    wanted = kind_wanted(request.gpus, bool(request.devices), request.models, request.mig)
    fitting = of_kind(wanted, fitting, lambda device: device.instance is not None)
    most = _most_workers(request, fitting)
    if workers <= most:
        return
    gpus = workers * request.gpus
    asked, there = f"{gpus} GPU{'' if gpus == 1 else 's'}", f"this machine has {_counted(devices)}"
    if request.memory is not None:
        asked = f"{gpus} share{'' if gpus == 1 else 's'} of {format_bytes(request.memory)}"
        there = f"{most or 'none'} fit on this machine"
    elif len(fitting) < len(devices):
        there = f"of the {len(devices)} here {len(fitting)} fit what it says of them"
    raise NotEnoughDevices(
        f"The pool asks for {asked}, and {there}.",
        "Ask for fewer or for less, or check model=, devices=, exclude= and min_memory=; mem= shares a GPU.",
    )


def _counted(devices: Sequence[Device]) -> str:
    parts = sum(device.instance is not None for device in devices)
    return f"{len(devices)} devices, of which {parts} are MIG instances" if parts else str(len(devices))


def _most_workers(request: Request, devices: Sequence[Device]) -> int:
    if request.memory is None:
        return len(devices) // request.gpus
    # Where the driver does not tell the memory, one share is as good a guess as any.
    share = request.memory
    return sum(1 if device.memory_total is None else device.memory_total // share for device in devices)


# -------------------------------------------------------------------- what `gpulease pool start` names in words


def check_function_name(text: str) -> None:
    module, _, name = text.partition(":")
    if not module or not name:
        raise UsageError(f"{text[:80]!r} names no function.", "Write it as module:function.")


def load_files(paths: Iterable[str]) -> dict[str, Any]:
    """Arrays by name. A `.npz` gives its own names; a `.npy` and any other file are named after the file."""
    shared: dict[str, Any] = {}
    for path in paths:
        for name, value in _load(path).items():
            if name in shared:
                raise UsageError(f"Two shared files have an entry {name!r}.", "Rename one of them.")
            shared[name] = value
    return shared


def _load(path: str) -> dict[str, Any]:
    stem, ending = os.path.splitext(os.path.basename(path))
    try:
        if ending not in (".npz", ".npy"):
            return {stem: Path(path).read_bytes()}
        import numpy

        loaded = numpy.load(path, allow_pickle=False)
        return dict(loaded) if ending == ".npz" else {stem: loaded}
    except ImportError:
        raise UsageError(f"To share {path!r}, NumPy is needed.", "Install it: pip install numpy.") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The shared file {path!r} cannot be read: {in_words(error)}.", "Give a .npz, .npy or plain file."
        ) from None


# -------------------------------------------------------------------- shared with named pools


class SharedData:
    """As bytes, and memory that all workers map; it is given back with the last pool that uses it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        packed = pack_named(values)
        self.body, self.memory = (b"", None) if packed is None else to_body(packed)
        if self.memory is not None:
            weakref.finalize(self, os.close, self.memory)
