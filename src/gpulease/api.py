"""What Python programs call: `gpulease.select(...)` and `gpulease.status(...)`."""

from __future__ import annotations

import os
import sys

from gpulease.errors import BrokerUnavailable, GpuleaseError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from gpulease.model import Device
    from gpulease.probes.base import Probe
    from gpulease.selection import Candidate, Rules

    Named = int | str | Iterable[int | str]


def select(
    count: int = 1,
    *,
    name: str | None = None,
    devices: Named | None = None,
    util: int | None = 0,
    mem_util: int | None = 0,
    processes: int | None = 0,
    min_memory: int | str | None = None,
    selector: Callable[[Candidate], object] | None = None,
    order: str = "random",
    only_visible: bool = False,
    silent: bool = False,
    set_environment: bool = True,
) -> str:
    """Pick idle devices by rule, without a lease, and point CUDA_VISIBLE_DEVICES at them.

    Returns their indices, as `"0,3"`. Raises NotEnoughDevices, or with `silent=True` returns `""`.
    A threshold of None is no threshold. Call it before anything initialises CUDA.
    """
    from gpulease.quantities import parse_bytes
    from gpulease.selection import Rules
    from gpulease.visible import variables

    _check_types(name, devices, util, mem_util, processes, min_memory, selector)
    named = None if devices is None else device_names(devices)
    memory = parse_bytes(min_memory) if isinstance(min_memory, str) else min_memory
    rules = Rules(_whole(count), name, named, util, mem_util, processes, memory, selector, order)
    try:
        chosen = select_devices(rules, only_visible=only_visible)
    except UsageError:
        raise
    except GpuleaseError as error:
        if silent:
            _debug("selected nothing: %s", error)
            return ""
        raise
    if set_environment:
        os.environ.update(variables(chosen))
    return ",".join(device.label for device in chosen)


def status(*, only_visible: bool = False) -> dict[str, Any]:
    """What `gpulease status --json` prints. `only_visible` keeps what CUDA_VISIBLE_DEVICES shows, in its order."""
    shown = _broker_status() or _probed_status()
    if only_visible:
        from gpulease.model import Device
        from gpulease.visible import visible_devices

        devices = [Device(row["index"], row["uuid"], row["name"], instance=row["instance"]) for row in shown["devices"]]
        visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), devices)
        rows = {row["uuid"]: row for row in shown["devices"]}
        shown["devices"] = [rows[device.uuid] for device in visible]
    return shown


def _probed_status() -> dict[str, Any]:
    from gpulease.report import document

    return document(_probe().snapshot(), os.uname().nodename)


def _broker_status() -> dict[str, Any] | None:
    """What the broker knows, if one runs, or ran and left its state; it knows leases, a probe does not."""
    from gpulease import client, places

    own = places.own(os.environ)
    if client.find_socket() is None and not os.path.exists(os.path.join(own, "state.db")):
        return None
    try:
        told: dict[str, Any] = client.Client().ask("status")
    except (BrokerUnavailable, ConnectionError):
        return None
    if told["devices"] or told["trouble"] is None:
        return told
    return None  # the broker sees no device: let the probe say why


def select_devices(rules: Rules, only_visible: bool = False) -> tuple[Device, ...]:
    from random import Random

    from gpulease.selection import candidate, check, choose

    check(rules)  # a request that makes no sense is wrong on any machine
    devices = _probe().snapshot().devices
    if only_visible:
        from gpulease import visible

        value = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible.check(value, devices)
        devices = visible.visible_devices(value, devices)
    for device in devices:
        _debug("saw %s", candidate(device))
    chosen = choose(devices, rules, Random(), _leased())
    _debug("selected %s", ", ".join(device.label for device in chosen))
    return chosen


def _leased() -> dict[str, str]:
    """Devices that are somebody's, by UUID, even while nothing runs there."""
    told = _broker_status() or {"devices": []}
    states = {row["uuid"]: row["state"] for row in told["devices"]}
    return {uuid: state for uuid, state in states.items() if state in ("leased", "shared", "draining", "excluded")}


def device_names(devices: Named) -> tuple[str, ...]:
    """`0`, `"0,2"`, `[0, "GPU-..."]` as a tuple of names."""
    if isinstance(devices, (int, str)):
        devices = [devices]
    parts = (part.strip() for device in devices for part in str(device).split(","))
    return tuple(part for part in parts if part)


def _check_types(name: object, devices: object, *rest: object) -> None:
    """Say what is wrong about an argument before anything inside stumbles over it."""
    limits, memory, selector = rest[:3], rest[3], rest[4]
    if name is not None and not isinstance(name, str):
        raise UsageError(f"The name is {name!r}.", "Give a part of the name as text.")
    if isinstance(devices, float) or not (devices is None or isinstance(devices, int) or hasattr(devices, "__iter__")):
        raise UsageError(f"The devices are {devices!r}.", "Give an index, a UUID, or a list of them.")
    for limit in limits:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise UsageError(f"A limit is {limit!r}.", "Give a whole number, or None for no such rule.")
    if not isinstance(memory, (int, str, type(None))):
        raise UsageError(f"The memory is {memory!r}.", "Give bytes, or text as '40G'.")
    if selector is not None and not callable(selector):
        raise UsageError(f"The selector is {selector!r}.", "Give a function of one argument.")


def _debug(message: str, *values: object) -> None:
    """To the logger `gpulease`. Where nobody has loaded logging, nobody listens."""
    if "logging" in sys.modules:
        import logging

        logging.getLogger("gpulease").debug(message, *values)


def _whole(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise UsageError(f"The count is {count!r}.", "Give a whole number of GPUs.")
    return count


_kept: Probe | None = None


def _probe() -> Probe:
    """One probe for the life of the process: initialising a driver can cost seconds a GPU."""
    global _kept
    if _kept is None:
        from gpulease.probes.detect import open_probe

        _kept = open_probe()
    return _kept
