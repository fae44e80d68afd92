"""PURE: a request as a stranger sent it, or as the store has it."""

from __future__ import annotations

from typing import Any, TypedDict

from gpulease.errors import UsageError
from gpulease.model.fields import FLAG, RELATIVE, REQUEST, kept
from gpulease.model.values import Request

MAX_GPUS = 1024
WIRE = {*(row.wire for row in REQUEST), RELATIVE}


class RequestRow(TypedDict):
    """A request as programs read it."""

    gpus: int
    memory: int | None
    models: list[str]
    devices: list[str]
    exclude: list[str]
    min_memory: int | None
    max_leases: int | None
    priority: int
    not_before: float | None
    duration: float | None
    pack: bool | None
    beside_outside: bool
    mig: bool
    relative: bool


def read_request(fields: dict[str, Any], least: int = 1) -> Request:
    """Of a message, checked as one from a stranger; a job may ask for no GPU at all."""
    unknown = sorted(set(fields) - WIRE)
    if unknown:
        raise UsageError(f"A request has no field {unknown[0][:40]!r}.")
    values = kept(REQUEST, fields, Request._field_defaults)
    values[RELATIVE] = FLAG.check(fields.get(RELATIVE, False), RELATIVE)
    request = Request(**values)
    _check_amounts(request, least)
    return request


def _check_amounts(request: Request, least: int) -> None:
    if not least <= request.gpus <= MAX_GPUS:
        without = " Only `gpulease add` takes 0: a job without a GPU." if request.gpus == 0 else ""
        raise UsageError(f"The number of GPUs is {request.gpus}.", f"Ask for 1 to {MAX_GPUS}.{without}")
    if not request.gpus and (*request.models, *request.devices, *request.exclude, request.min_memory) != (None,):
        raise UsageError(
            "The request is for no GPU, and says which GPU it needs.",
            "Ask for a GPU, or leave out the model, the devices and the memory.",
        )
    if request.memory is not None and request.memory < 1:
        raise UsageError("The share of memory is not positive.", "Write it with its unit, as 6G.")
    if request.memory is not None and request.gpus != 1:
        raise UsageError(
            "A share by memory is part of one GPU, and the request is for several.",
            "Leave out the memory, or ask for one GPU.",
        )
    if request.pack and (request.memory is not None or request.gpus != 1):
        raise UsageError(
            "A packed job uses one GPU and declares no memory.", "Leave out `pack`, or the memory and the number."
        )
    if request.beside_outside and request.memory is None and not request.pack:
        raise UsageError(
            "A GPU that others use without a lease can only be shared.", "Say how much memory it needs: `--mem 6G`."
        )
    if request.duration is not None and request.duration <= 0:
        raise UsageError("The time is not above 0.", "Write it as 4h.")
    if not -1_000_000 <= request.priority <= 1_000_000:
        raise UsageError(f"The priority is {request.priority}.", "Give a number around 5; smaller is sooner.")
    for value in (request.min_memory, request.max_leases):
        if value is not None and value < 0:
            raise UsageError("A limit of the request is negative.", "Give 0 or more.")


def stored_request(stored: dict[str, Any]) -> Request:
    """As the store has it; what another version wrote and this one does not know is left out."""
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in stored.items()}
    return Request(**{name: value for name, value in values.items() if name in Request._fields})
