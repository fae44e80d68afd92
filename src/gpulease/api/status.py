"""What Python programs call: `gpulease.select(...)` and `gpulease.status(...)`."""

from __future__ import annotations

import os
import sys

from gpulease.errors import BrokerUnavailable, GpuleaseError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from gpulease.model.device_selection import Candidate, Rules
    from gpulease.model.values import Device
    from gpulease.system.probe import Probe

    Named = int | str | Iterable[int | str]


def select(
    count: int | None = None,
    devices: Named | None = None,
    name: str | None = None,
    util: float | None = 0,
    mem_util: float | None = 0,
    processes: float | None = 0,
    selector: Callable[[Candidate], object] | None = None,
    silent: bool = False,
    *,
    min_memory: int | str | None = None,
    order: str = "random",
    only_visible: bool = False,
    set_environment: bool = True,
    visible_by: str | None = None,
    model: str | Iterable[str] | None = None,
    mig: bool = False,
) -> str:
    """Pick idle devices by rule, without a lease, and point CUDA_VISIBLE_DEVICES at them.

    Returns their indices, as `"0,3"`. Raises NotEnoughDevices, or with `silent=True` returns `""`.
    Without a count it is as many as `devices` names, else one. `name` is gpuselect's word for `model`.
    A threshold of None is no threshold. Call it before anything initialises CUDA.
    """
    given = {**locals(), "gpus": count}  # the arguments, by their names
    from gpulease.model.visible import variables, wanted

    by = wanted(visible_by, os.environ, "visible_by")
    try:
        chosen, usual = select_devices(rules_of(given), only_visible=only_visible)
    except UsageError:
        raise
    except GpuleaseError as error:
        if silent:
            _debug("selected nothing: %s", error)
            return ""
        raise
    if set_environment:
        from gpulease.system import cuda_state

        shown = variables(chosen, by or usual)
        cuda_state.warn_after("gpulease.select", shown)
        os.environ.update(shown)
    return ",".join(device.label for device in chosen)


def status(
    *, only_visible: bool = False, fresh: bool = False, host: str | None = None, hosts: Iterable[str] | None = None
) -> dict[str, Any]:
    """What `gpulease status --json` prints. `only_visible` keeps what CUDA_VISIBLE_DEVICES shows, in its order.

    `fresh` looks at the devices now; a broker tells what it saw within the last second.
    `host` is another host, reached by ssh. `hosts` are several, () being those of the config: what `--hosts` prints.
    """
    if host is not None or hosts is not None:
        return _elsewhere(host, hosts, only_visible or fresh)
    try:
        document = _broker_status()
    except BrokerUnavailable as down:
        from gpulease.render.status_document import with_unknown_leases

        shown = with_unknown_leases(_probed_status(), f"{down.what} Leases are unknown. {down.next_step}")
    else:
        shown = document or _probed_status()
        if document and fresh:
            from gpulease.render.status_document import renewed

            shown = renewed(document, _probed_status())
    if only_visible:
        from gpulease.model.values import Device
        from gpulease.model.visible import visible_devices

        devices = [Device(row["index"], row["uuid"], row["name"], instance=row["instance"]) for row in shown["devices"]]
        visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), devices)
        rows = {row["uuid"]: row for row in shown["devices"]}
        shown["devices"] = [rows[device.uuid] for device in visible]
    return shown


def _elsewhere(host: str | None, named: Iterable[str] | None, more: bool) -> dict[str, Any]:
    if more or (host is not None and named is not None):
        raise UsageError(
            "`host` or `hosts` was given with something that is of one machine.", "Leave one of the two out."
        )
    from gpulease.hosts import hosts

    if host is None:
        return hosts.status(named)
    document: dict[str, Any] = hosts.ask(host, ("status", "--json"))
    return document


def _probed_status() -> dict[str, Any]:
    from gpulease.render.status_document import document
    from gpulease.system.host import read_memory

    sample = _probe().snapshot()
    held = _claimed([device.uuid for device in sample.devices])
    return document(sample, os.uname().nodename, memory=read_memory(), claims=held)


def _claimed(uuids: Iterable[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Devices that a broker has granted to somebody, anybody's: for those whose user has no broker."""
    from gpulease.simulator.activate import directory_from_environment
    from gpulease.system.claims import holders, machine_of, shown, through, whose
    from gpulease.system.identity import user_name

    found = holders(machine_of(directory_from_environment(os.environ)), uuids)
    users = {uuid: whose(holder, user_name) for uuid, (holder, _) in found.items()}
    return {uuid: (through(users[uuid], claim), shown(one, users[uuid], claim)) for uuid, (one, claim) in found.items()}


def _broker_status() -> dict[str, Any] | None:
    """What the broker knows: leases, which a probe does not see. None where no broker has ever granted anything.

    Raises BrokerUnavailable if a broker belongs here and cannot be asked: what it granted is still held.
    """
    from gpulease.client import connection, discovery
    from gpulease.system import places

    if places.engine(os.environ) != places.LOCAL:
        elsewhere: dict[str, Any] = connection.opened().ask("status")
        return elsewhere
    if not discovery.belongs_here():
        return None
    try:
        document: dict[str, Any] = connection.Client().ask("status")
    except ConnectionError:  # it ended just now; its successor knows the same
        try:
            document = connection.Client().ask("status")
        except ConnectionError:
            raise BrokerUnavailable("The broker ended before it answered.", "See `gpulease doctor`.") from None
    if document["devices"] or document["trouble"] is None:
        return document
    return None  # the broker sees no device: let the probe say why


def select_devices(rules: Rules, only_visible: bool = False) -> tuple[tuple[Device, ...], str | None]:
    """The devices, and how the broker, if one runs, would name them to a program."""
    from random import Random

    from gpulease.model.device_selection import candidate, check, choose

    check(rules)  # a request that makes no sense is wrong on any machine
    devices = _probe().snapshot().devices
    if only_visible:
        from gpulease.model import visible

        value = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible.check(value, devices)
        devices = visible.visible_devices(value, devices)
    for device in devices:
        _debug("saw %s", candidate(device))
    document = _broker_status() or _claims_alone(devices)
    chosen = choose(devices, rules, Random(), _leased(document))
    _debug("selected %s", ", ".join(device.label for device in chosen))
    return chosen, document["broker"].get("visible")


def _claims_alone(devices: Iterable[Device]) -> dict[str, Any]:
    rows = [
        {"uuid": uuid, "state": "outside", "holder": one}
        for uuid, (_, one) in _claimed(d.uuid for d in devices).items()
    ]
    return {"devices": rows, "broker": {}}


def _leased(document: dict[str, Any]) -> dict[str, str]:
    """Devices that are somebody's, by UUID, even while nothing runs there."""
    states = {row["uuid"]: "leased" if row.get("holder") else row["state"] for row in document["devices"]}
    return {uuid: state for uuid, state in states.items() if state in ("leased", "shared", "draining", "excluded")}


def rules_of(given: Mapping[str, Any]) -> Rules:
    """The rules that options or arguments say; what is wrong with one is told before anything stumbles over it."""
    from gpulease.model.device_selection import Rules
    from gpulease.model.fields import amount, texts

    rules = Rules(**{name: given[name] for name in Rules._fields if name in given})
    model = _model(given)
    models = () if model is None else tuple(texts(model, "model"))
    devices = None if rules.devices is None else tuple(dict.fromkeys(texts(rules.devices, "The list of devices")))
    if rules.gpus is None:
        rules = rules._replace(gpus=len(devices or ("any",)))
    if isinstance(rules.gpus, bool) or not isinstance(rules.gpus, int):
        raise UsageError(f"The count is {rules.gpus!r}.", "Give a whole number of GPUs.")
    for limit in (rules.util, rules.mem_util, rules.processes):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float))):
            raise UsageError(f"A limit is {limit!r}.", "Give a number, or None for no such rule.")
    if not isinstance(rules.min_memory, (int, str, type(None))):
        raise UsageError(f"The memory is {rules.min_memory!r}.", "Give bytes, or text as '40G'.")
    if rules.selector is not None and not callable(rules.selector):
        raise UsageError(f"The selector is {rules.selector!r}.", "Give a function of one argument.")
    return rules._replace(models=models, devices=devices, min_memory=amount(rules.min_memory, "min_memory"))


def _model(given: Mapping[str, Any]) -> Any:
    """The GPU's model, under this name or gpuselect's."""
    model, name = given.get("model"), given.get("name")
    if model is not None and name is not None:
        raise UsageError("`model` and `name` were both given, and mean the same.", "Leave `name` out.")
    return name if model is None else model


def _debug(message: str, *values: object) -> None:
    """To the logger `gpulease`. Where nobody has loaded logging, nobody listens.

    A program that set this logger's level wants to read it: without any handler, logging itself would print warnings
    only, so it goes to stderr.
    """
    if "logging" not in sys.modules:
        return
    import logging

    logger = logging.getLogger("gpulease")
    if logger.level != logging.NOTSET and logger.isEnabledFor(logging.DEBUG) and not logger.hasHandlers():
        print(f"gpulease: {message % values}", file=sys.stderr)
    logger.debug(message, *values)


_kept: Probe | None = None


def _probe() -> Probe:
    """One probe for the life of the process: initialising a driver can cost seconds a GPU."""
    global _kept
    if _kept is None:
        from gpulease.system.detect import open_probe

        _kept = open_probe()
    return _kept
