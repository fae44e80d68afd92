"""PURE: which devices of a sample are idle by rule, and why the others are not.

The rules are those of gpuselect: thresholds for load, memory load and processes, names, devices, or a
function of the caller's. A value that the driver did not tell never passes a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from gpulease.errors import NotEnoughDevices, NotNow, UnknownDevice, UsageError
from gpulease.model.devices import computing, kind_wanted, of_kind, unexplained_memory
from gpulease.model.values import Device, Request

ORDERS = ("random", "free-memory", "index")
TEMPORARY = ("util=", "mem-util=", "processes=", "leased", "shared", "draining")  # what excludes a device for now


class Candidate(NamedTuple):
    """What a selector function gets to see of a device."""

    device: int
    name: str
    util: int | None
    mem_util: int | None
    processes: int | None
    label: str
    uuid: str
    memory_total: int | None
    memory_used: int | None
    temperature: int | None = None
    power: int | None = None  # milliwatts
    power_limit: int | None = None
    performance_state: int | None = None
    fan_speed: int | None = None
    throttling: tuple[str, ...] | None = None

    @property
    def memory_free(self) -> int | None:
        known = self.memory_total is not None and self.memory_used is not None
        return self.memory_total - self.memory_used if known else None  # type: ignore[operator]

    # The rest as gpuselect calls it.

    @property
    def mem_total(self) -> int | None:
        return self.memory_total

    @property
    def mem_used(self) -> int | None:
        return self.memory_used

    @property
    def mem_free(self) -> int | None:
        return self.memory_free

    @property
    def power_usage(self) -> int | None:
        return self.power

    @property
    def effective_power_limt(self) -> int | None:  # spelled as there
        return self.power_limit

    @property
    def is_throttling(self) -> bool | None:
        return None if self.throttling is None else bool(self.throttling)


INSTANCE = "that MIG instances and whole GPUs are not the same (mig)"


class Rules(NamedTuple):
    """None means: no such rule."""

    gpus: int = 1
    models: tuple[str, ...] = ()  # parts of the name, in any case: one of them
    devices: tuple[str, ...] | None = None
    util: float | None = 0
    mem_util: float | None = 0
    processes: float | None = 0
    min_memory: int | None = None
    selector: Callable[[Candidate], object] | None = None
    order: str = "random"
    mig: bool = False


def choose(
    devices: Sequence[Device], rules: Rules, random: Random, taken: Mapping[str, str] | None = None
) -> tuple[Device, ...]:
    """`rules.gpus` devices, in index order. Raises NotEnoughDevices with what excluded the rest.

    `taken` has devices, by UUID, that are somebody's for another reason than their load: leased, excluded.
    """
    named = _named_labels(devices, rules)
    taken = taken or {}
    excluded = {device.label: taken.get(device.uuid) or _why_not(device, rules, named) for device in devices}
    excluded |= dict.fromkeys(_of_other_kind(devices, rules, named), INSTANCE)
    matched = [device for device in devices if excluded[device.label] is None]
    if len(matched) < rules.gpus:
        raise _not_enough(rules, devices, {label: why for label, why in excluded.items() if why})
    best = _ordered(matched, rules.order, random)[: rules.gpus]
    return tuple(sorted(best, key=lambda device: (device.index, device.instance or 0)))


def _of_other_kind(devices: Sequence[Device], rules: Rules, named: set[str] | None) -> set[str]:
    """Labels of MIG instances where whole GPUs are wanted, or of these where instances are; whatever runs there."""
    if all(device.instance is None for device in devices) and not rules.mig:
        return set()
    matching = [device for device in devices if _filter(device, rules, named) is None]
    wanted = kind_wanted(rules.gpus, named is not None or rules.selector is not None, rules.models, rules.mig)
    chosen = of_kind(wanted, matching, lambda device: device.instance is not None)
    return {device.label for device in matching if device not in chosen}


def check(rules: Rules) -> None:
    if rules.gpus < 1:
        raise UsageError(f"The count is {rules.gpus}.", "Ask for at least 1 GPU.")
    for name in ("util", "mem_util", "processes", "min_memory"):
        value = getattr(rules, name)
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"The limit {name} is {value}.", "Give 0 or more, or leave it out.")
    if rules.order not in ORDERS:
        raise UsageError(f"The order {rules.order!r} is not known.", f"Use one of: {', '.join(ORDERS)}.")


def candidate(device: Device) -> Candidate:
    return Candidate(
        device.index,
        device.name,
        device.utilization,
        device.memory_utilization,
        None if device.processes is None else len(computing(device)),
        device.label,
        device.uuid,
        device.memory_total,
        device.memory_used,
        device.temperature,
        device.power,
        device.power_limit,
        device.performance_state,
        device.fan_speed,
        device.throttling,
    )


def find(name: str, devices: Sequence[Device]) -> Device:
    """The device that a person means by an index, a UUID or the unambiguous beginning of one."""
    for device in devices:
        if name in (device.label, device.uuid):
            return device
    matches = [device for device in devices if len(name) >= 6 and device.uuid.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    there = ", ".join(device.label for device in devices)
    what = "fits several devices" if matches else "is not a device here"
    raise UnknownDevice(f"{name!r} {what}: there are {there}.")


def resolve(request: Request, devices: Sequence[Device]) -> Request:
    """The same request with each device that a person named replaced by its UUID."""
    return request._replace(
        devices=tuple(find(name, devices).uuid for name in request.devices),
        exclude=tuple(find(name, devices).uuid for name in request.exclude),
    )


def _named_labels(devices: Sequence[Device], rules: Rules) -> set[str] | None:
    if rules.devices is None:
        return None
    if not rules.devices:
        raise UsageError("The list of devices is empty.", "Name at least one device, or leave the list out.")
    return {find(name, devices).label for name in rules.devices}


def _why_not(device: Device, rules: Rules, named: set[str] | None) -> str | None:
    """The first rule that excludes the device, in words; None when it passes all."""
    if device.lost is not None:
        return "lost"
    if rules.selector is not None:
        return None if _accepts(rules.selector, device) else "the selector function"
    return _filter(device, rules, named) or _too_busy(device, rules)


def _filter(device: Device, rules: Rules, named: set[str] | None) -> str | None:
    """The rule about what it is that excludes the device, whatever runs there."""
    if named is not None and device.label not in named:
        return "devices"
    if rules.models and not any(model.lower() in device.name.lower() for model in rules.models):
        return _models(rules)
    if rules.min_memory is not None and not _at_least(device.memory_total, rules.min_memory):
        return "min-memory"
    return None


def _models(rules: Rules) -> str:
    return f"model={','.join(rules.models)}"


def _too_busy(device: Device, rules: Rules) -> str | None:
    if not _within(device.utilization, rules.util):
        return _threshold("util", device.utilization, rules.util)
    if not _within(device.memory_utilization, rules.mem_util):
        return _threshold("mem-util", device.memory_utilization, rules.mem_util)
    if not _within(_occupants(device), rules.processes):
        return _threshold("processes", _occupants(device), rules.processes)
    return None


def _occupants(device: Device) -> int | None:
    """Processes in use; memory held by nobody visible counts as one more."""
    if device.processes is None or device.memory_used is None:
        return None
    return len(computing(device)) + bool(unexplained_memory(device))


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value <= limit)


def _at_least(value: int | None, limit: int) -> bool:
    return value is not None and value >= limit


def _threshold(rule: str, value: int | None, limit: float | None) -> str:
    return f"{rule}={limit:g}{' (unknown)' if value is None else ''}"


def _accepts(selector: Callable[[Candidate], object], device: Device) -> bool:
    seen = candidate(device)
    try:
        return bool(selector(seen))
    except TypeError as error:
        # `gpu.util <= 5` cannot be answered where the driver tells no utilization: not accepted.
        if None in seen and "NoneType" in str(error):
            return False
        raise


def _ordered(devices: list[Device], order: str, random: Random) -> list[Device]:
    if order == "index":
        return devices
    shuffled = random.sample(devices, len(devices))
    if order == "free-memory":
        shuffled.sort(key=_free_memory, reverse=True)
    return shuffled


def _free_memory(device: Device) -> int:
    if device.memory_total is None or device.memory_used is None:
        return -1
    return device.memory_total - device.memory_used


def _not_enough(rules: Rules, devices: Sequence[Device], excluded: dict[str, str]) -> NotEnoughDevices:
    matched = len(devices) - len(excluded)
    what = f"{rules.gpus} asked for, {len(devices)} exist, {matched} matched"
    by_rule: dict[str, list[str]] = {}
    for label, why in excluded.items():
        by_rule.setdefault(why, []).append(label)
    reasons = "; ".join(_reason(why, labels) for why, labels in by_rule.items())
    fewer = "Ask for fewer, or relax" if matched else "Relax"
    next_step = f"{fewer} a filter; `gpulease status` shows every device."
    if any(why.endswith("(unknown)") for why in by_rule):
        next_step = "A value that the driver does not report passes no limit; leave that rule out: any, or None."
    if rules.models and len(by_rule.get(_models(rules), ())) == len(devices) > 0:
        next_step = f"The models here are: {', '.join(sorted({device.name for device in devices}))}."
    if rules.gpus > len(devices) == matched > 0:
        next_step = f"Ask for at most {matched}."
    if not devices:
        next_step = "No device is visible: unset CUDA_VISIBLE_DEVICES, or look at all devices."
    sentence = f"Not enough GPUs: {what}{f' ({reasons})' if reasons else ''}."
    busy = sum(why.startswith(TEMPORARY) and not why.endswith("(unknown)") for why in excluded.values())
    kind = NotNow if matched + busy >= rules.gpus else NotEnoughDevices
    return kind(sentence, next_step, asked=rules.gpus, exist=len(devices), matched=matched)


def _reason(why: str, labels: list[str]) -> str:
    if why in ("leased", "shared", "draining", "excluded", "lost"):
        return f"{_some(labels)} {'is' if len(labels) == 1 else 'are'} {why}"
    return f"{why} excluded {_some(labels)}"


def _some(labels: list[str], most: int = 8) -> str:
    more = len(labels) - most
    return ", ".join(labels[:most]) + (f" and {more} more" if more > 0 else "")
