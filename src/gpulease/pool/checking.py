"""Whether a pool's workers could ever get what they will ask for: said when the pool is made, not by a worker later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpulease.errors import NotEnoughDevices, UsageError
from gpulease.pool import context

if TYPE_CHECKING:
    from gpulease.model import Device, Request
    from gpulease.pool.local import Plan


def read_request(options: Mapping[str, Any]) -> Request:
    """The lease that each worker will ask for. Raises UsageError for what makes no sense."""
    from gpulease import messages
    from gpulease.leases import request_fields

    if not isinstance(options.get("note"), (str, type(None))):
        raise UsageError(f"note is {options['note']!r}.", "Give a text.")
    try:
        fields = request_fields(**{name: value for name, value in options.items() if name != "note"})
    except TypeError as error:
        raise UsageError(f"An option of the workers' leases makes no sense: {error}.", "See `acquire`.") from None
    return messages.read_request(fields)


def check_devices(plan: Plan) -> None:
    """Raises NotEnoughDevices when the plan can never be had here."""
    each = plan.request.get("gpus", 1)
    above = context.inside()
    if above is not None:
        return _check_nested(plan.workers * each, len(above.uuids))
    devices = _devices()
    if devices:  # else a worker says why there are none
        _check_fits(plan, read_request(plan.request), devices)


def _check_nested(wanted: int, there: int) -> None:
    if wanted > there:
        raise NotEnoughDevices(
            f"A pool in a worker asks for {wanted} GPUs, and the worker has {there}.",
            "A nested pool divides its worker's own GPUs: ask for fewer, or give the outer workers more.",
        )


def _devices() -> list[Device]:
    from gpulease.client import Client
    from gpulease.model import Device

    client = Client()
    try:
        rows = client.ask("status")["devices"]
    finally:
        client.close()
    known = set(Device._fields) - {"processes"}
    return [Device(**{name: value for name, value in row.items() if name in known}) for row in rows]


def _check_fits(plan: Plan, request: Request, devices: Sequence[Device]) -> None:
    from gpulease.planner import refusal
    from gpulease.selection import find

    request = request._replace(
        devices=tuple(find(name, devices).uuid for name in request.devices),
        exclude=tuple(find(name, devices).uuid for name in request.exclude),
    )
    fitting = [device for device in devices if refusal(request, device) is None]
    wanted = 1 if plan.elastic else plan.workers
    if wanted > _most_workers(request, fitting):
        raise _too_few(request, wanted, len(fitting), len(devices), _most_workers(request, fitting))


def _most_workers(request: Request, devices: Sequence[Device]) -> int:
    if request.memory is None:
        return len(devices) // request.gpus
    # Where the driver does not tell the memory, one share is as good a guess as any.
    share = request.memory
    return sum(1 if device.memory_total is None else device.memory_total // share for device in devices)


def _too_few(request: Request, wanted: int, fitting: int, there: int, most: int) -> NotEnoughDevices:
    if request.memory is not None:
        from gpulease.quantities import format_bytes

        asked = f"{wanted} share{'' if wanted == 1 else 's'} of {format_bytes(request.memory)}"
        text = f"The pool asks for {asked}, and {most or 'none'} fit on this machine."
        return NotEnoughDevices(text, f"Ask for at most {most}, or for smaller ones." if most else "Ask for less.")
    gpus = wanted * request.gpus
    asked = f"The pool asks for {gpus} GPU{'' if gpus == 1 else 's'}"
    if fitting == there:
        return NotEnoughDevices(
            f"{asked}, and this machine has {there}.", "Ask for fewer, or share them by memory with mem=."
        )
    return NotEnoughDevices(
        f"{asked}, and of the {there} here {fitting} fit{'s' if fitting == 1 else ''} what it says of them.",
        "Ask for fewer, or check name=, devices=, exclude= and min_memory=.",
    )
