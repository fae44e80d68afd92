"""`gpulease doctor`: what is here, what is wrong, what to do. Each finding is ok, a warning or an error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpulease import __version__
from gpulease.cli.parsing import ArgumentParser, Namespace, add_hosts, add_json, clean, print_json
from gpulease.errors import GpuleaseError, NoLibrary
from gpulease.render.terminal import Terminal

EXAMPLES = """\
The exit code is 69 if it finds an error, otherwise 0.

examples:
  gpulease doctor
  gpulease doctor --json
  gpulease doctor --hosts          check that each host answers, and its version
  gpulease doctor --engine slurm   check Slurm with a short test job
"""
ROOM = 1 << 20  # bytes on disk that a broker needs to begin with
CHOOSING = 1.0  # seconds that a user of safe-gpu may need
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


class Finding(NamedTuple):
    level: str
    subject: str
    text: str
    next_step: str = ""


STEPS = {  # for what is wrong with a parameter
    "limits": "They apply as soon as it exists. Correct the name if it is misspelt.",
    "policy.order": "See the broker's log, and correct the function. The broker tries it again.",
}


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_json(parser)
    add_hosts(parser)


def run(arguments: Namespace) -> int:
    if arguments.hosts is not None:
        from gpulease.cli import all_hosts

        findings = all_hosts.findings(arguments)
    else:
        findings = list(_findings())
    return show(arguments, findings)


def show(arguments: Namespace, findings: list[Finding]) -> int:
    if arguments.json:
        print_json({"findings": [finding._asdict() for finding in findings]}, 2)
    else:
        print("\n".join(_lines(findings, Terminal())))
    return 69 if any(finding.level == "error" for finding in findings) else 0


def _findings() -> Iterator[Finding]:
    yield from software()
    yield _simulation()
    yield _library()
    yield from _devices()
    yield from _broker()
    yield from _neighbours()
    yield from _neighbour_troubles()
    yield from _permissions()
    yield from _visible()
    yield from _estimates()


def software() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    yield Finding("ok", "gpulease", __version__)
    yield Finding("ok", "python", f"{sys.version.split()[0]} at {sys.executable}")
    try:
        yield Finding("ok", "nvidia-ml-py", version("nvidia-ml-py"))
    except PackageNotFoundError:
        yield Finding("error", "nvidia-ml-py", "is not installed", "Install gpulease again with pip.")
    try:
        clash = version("pynvml")
    except PackageNotFoundError:
        return
    yield Finding(
        "warning", "pynvml", f"{clash} is installed too and may hide nvidia-ml-py", "Run `pip uninstall pynvml`."
    )


def _simulation() -> Finding:
    environ = os.environ
    from gpulease.simulator.activate import directory_from_environment
    from gpulease.simulator.library import built_library, find_compilers, library_path

    try:
        directory = directory_from_environment(environ)
        if directory is not None:
            library_path(environ, beside=directory)
    except GpuleaseError as error:
        return Finding("error", "simulation", error.what, error.next_step)
    if directory is not None:
        return Finding("warning", "simulation", "on: the GPUs below are SIMULATED", f"State is in {directory}.")
    if built_library(environ) is None and not find_compilers(environ):
        return Finding("ok", "simulation", "off; there is no C compiler to build its library", NoLibrary.next_step)
    return Finding("ok", "simulation", "off")


def _library() -> Finding:
    """Found or not, without loading it: a broken driver can hang a process that loads it."""
    from ctypes.util import find_library

    if os.environ.get("GPULEASE_SIMULATION") or os.environ.get("GPULEASE_SIMULATE"):
        return Finding("ok", "library", "none needed for simulated GPUs")
    found = find_library("nvidia-ml")
    if found:
        return Finding("ok", "library", found)
    if os.path.isdir("/sys/module/amdgpu"):
        return Finding("ok", "library", "none needed for AMD GPUs")
    return Finding(
        "warning", "library", "libnvidia-ml.so.1 is not installed", "Install the NVIDIA driver, if there is a GPU."
    )


def _devices() -> Iterator[Finding]:
    from gpulease.api.status import status

    try:
        seen = status()
    except GpuleaseError as error:
        yield Finding("error", "devices", error.what, error.next_step)
        return
    if seen["trouble"]:
        age = "" if seen["sample_age"] is None else f" The values of the devices are {seen['sample_age']:.0f} s old."
        yield Finding("error", "driver", seen["trouble"], f"Check `dmesg`.{age}")
    else:
        yield Finding("ok", "driver", f"{seen['driver'] or 'version unknown'}, answers")
    for device in seen["devices"]:
        yield _device(device, "SIMULATED " if seen["simulated"] else "")


def _device(device: dict[str, Any], mark: str) -> Finding:
    subject = f"device {device['label']}"
    if device["lost"]:
        return Finding(
            "error", subject, f"{mark}{device['name']}: {device['lost']}", "Check `dmesg`; a reboot may be needed."
        )
    if str(device["uuid"]).startswith("unknown-"):
        text = f"{mark}{device['name']}: the driver does not report its UUID"
        return Finding("warning", subject, text, "Programs get its index instead.")
    intruders = _intruders(device)
    if intruders:
        text = f"{mark}{device['name']}: {device['state']}, and {intruders} without a lease"
        return Finding(
            "warning", subject, text, "Ask them to use gpulease. The lease's program may run out of GPU memory."
        )
    unknown = [
        name for name in ("memory_used", "utilization", "temperature", "power", "processes") if device[name] is None
    ]
    if unknown:
        text = f"{mark}{device['name']}: the driver does not report {', '.join(unknown)}"
        return Finding(
            "warning", subject, text, "An unknown value passes no threshold. Use `any` for that rule in `select`."
        )
    return Finding("ok", subject, f"{mark}{device['name']}, {device['state']}")


def _intruders(device: dict[str, Any]) -> str:
    """Who uses a leased device without having leased it."""
    outside = device["outside"] if device["leases"] else ()
    named = [f"{one['user'] or '?'} (pid {one['pid']})" for one in device["processes"] or () if one["pid"] in outside]
    return f"used by {', '.join(named)}" if named else ""


def _broker() -> Iterator[Finding]:
    """Which broker serves this user, and places that cannot be trusted."""
    from gpulease.client import connection, discovery
    from gpulease.system import places

    for place in places.candidates(os.environ):
        trouble = places.spoiled(place)
        if trouble is not None:
            mended = f"As root: `chown root {place.run}; chmod 755 {place.run}`, and start the broker again."
            step = mended if place.kind == "system" else "Have it removed, or set GPULEASE_DIR."
            step = f"Commands ignore it. {step}"
            yield Finding("warning", "broker", f"the {place.kind} place {place.run} is not trusted: {trouble}", step)
    own = places.own(os.environ)
    try:
        found = discovery.find()
    except GpuleaseError as error:
        yield Finding("error", "broker", error.what, error.next_step)
        yield from _why_down()
        return
    if found is None or found[1].kind == "own":
        yield from _state(own.state)
    if found is None:
        trouble = next(filter(None, map(_unwritable, (own.run, own.state))), None)
        if trouble is None:
            yield Finding("ok", "broker", "not running; it starts by itself when it is needed")
        else:
            yield Finding("error", "broker", f"not running, and it cannot start: {trouble}", places.ELSEWHERE)
        return
    found[0].close()
    about = connection.Client(start=False).ask("ping")
    text = f"{about['kind']}, of {about['user']}, pid {about['pid']}, at {about['directory']}"
    if about["version"] == __version__:
        yield Finding("ok", "broker", text)
    else:
        step = "Run `gpulease stop`; the next command starts the new one."
        yield Finding("warning", "broker", f"{text}, has version {about['version']}", step)
    for row in connection.Client(start=False).ask("set")["parameters"]:
        for warning in row.get("warnings", ()):
            yield Finding("warning", row["name"], warning, STEPS[row["name"]])
    if about.get("state_trouble"):
        step = "Until it can be written nothing is granted or queued. If the disk is full, make room."
        yield Finding("error", "state", about["state_trouble"], step)
    yield from _history()
    if about.get("config_trouble"):
        step = "The broker keeps the values it had. Correct the file, and send the broker SIGHUP."
        yield Finding("error", "config", about["config_trouble"], step)
    else:
        yield from _config_to_come(about["kind"], about["user"])


def _config_to_come(kind: str, user: str) -> Iterator[Finding]:
    """What the broker will say of its config file when it reads it again, where this user can tell."""
    from gpulease.broker.__main__ import check
    from gpulease.system.identity import user_name
    from gpulease.system.places import config_path

    path = config_path(kind, os.environ)
    ours = kind == "system" or user == user_name(os.geteuid())
    if path is None or not ours or not os.access(path, os.R_OK):
        return
    try:
        check(kind)
    except GpuleaseError as error:
        step = f"The broker still has the values from before, and refuses this file the next time. {error.next_step}"
        yield Finding("error", "config", error.what, step)


def _history() -> Iterator[Finding]:
    """Whether `usage` can tell all that it should."""
    from gpulease.client import connection

    try:
        lost = connection.Client(start=False).ask("usage", since=time.time() - 60).get("note")
    except GpuleaseError as error:
        yield Finding("warning", "history", error.what, error.next_step)
        return
    if lost:
        step = "`gpulease usage` lacks that time. Remove the file when you do not need it."
        yield Finding("warning", "history", lost, step)


def _why_down() -> Iterator[Finding]:
    """What keeps the system's broker from starting, as far as any user can see it."""
    from gpulease.broker.config import config_of
    from gpulease.system import places
    from gpulease.system.service import LauncherConfig

    system = places.of_kind("system", os.environ)
    if not places.in_charge(system):
        return
    try:
        config_of("system", os.environ).read()
        LauncherConfig.read(os.environ)
    except GpuleaseError as error:
        yield Finding("error", "config", error.what, error.next_step)
    if _is_full(system.state):
        yield Finding("error", "state", f"the disk of {system.state} is full", "Make room; the broker needs a MiB.")
    yield Finding("warning", "broker", "its own words are in its log", "As root: `journalctl -u gpulease`.")


def _is_full(folder: str) -> bool:
    room = os.statvfs(_existing(folder))
    return room.f_bavail * room.f_frsize < ROOM


def _existing(folder: str) -> str:
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def _state(folder: str) -> Iterator[Finding]:
    from gpulease.system.host import network_filesystem

    network = network_filesystem(folder)
    if network is not None:
        step = "Set XDG_STATE_HOME to a folder on a disk of this host to make `add` and `get` faster."
        yield Finding("warning", "state", f"{folder} is on a network file system ({network})", step)


def _unwritable(folder: str) -> str | None:
    """Why a broker cannot keep anything there; None when it can."""
    from gpulease.system.places import distrust

    if os.path.lexists(folder) and (trouble := distrust(folder, {os.geteuid()})):
        return f"{folder} cannot be used, since {trouble}"
    there = _existing(folder)
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written to"
    return f"the disk of {there} is full" if _is_full(there) else None


def _neighbours() -> Iterator[Finding]:
    """A process that holds safe-gpu's lock for long keeps everybody else from a GPU."""
    import time

    from gpulease.broker.neighbours.safe_gpu import SafeGpuLock

    lock, until = SafeGpuLock(), time.monotonic() + CHOOSING
    while not lock.take(make=False):
        holder = lock.holder()
        if time.monotonic() > until:
            step = "gpulease grants nothing until it releases the lock, or has waited long enough. If it hangs, end it."
            yield Finding("warning", "safe-gpu", f"{holder} holds its lock for more than {CHOOSING:g} s", step)
            return
        time.sleep(0.05)
    lock.give()
    if lock.trouble is not None and not _has_broker():
        yield Finding("warning", "safe-gpu", lock.trouble)


def _has_broker() -> bool:
    """One that tells of safe-gpu's lock itself: it may run as another user than this one."""
    from gpulease.api.status import status

    try:
        return status()["broker"] is not None
    except GpuleaseError:
        return True  # told already


def _neighbour_troubles() -> Iterator[Finding]:
    """What the broker cannot do for other tools that hand out the same GPUs."""
    from gpulease.api.status import status

    try:
        seen = status()
    except GpuleaseError:
        return
    neighbours = seen.get("neighbours", {})
    for name, shown in neighbours.items():
        if shown.get("trouble"):
            yield Finding("warning", name, shown["trouble"], "See `gpulease help beside-other-tools`.")
    yield from _other_brokers(seen)
    for device in seen["devices"]:
        if device["state"] in ("leased", "shared") and device["note"]:
            step = "Two programs may compute on it: have one of the two release it."
            yield Finding("warning", f"device {device['label']}", f"leased, and {device['note']}", step)


def _other_brokers(seen: dict[str, Any]) -> Iterator[Finding]:
    """Those that hold something now, and those that wait for somebody to ask."""
    from gpulease.render.status import ONE_QUEUE, other_brokers
    from gpulease.simulator.activate import directory_from_environment
    from gpulease.system.claims import brokers, machine_of
    from gpulease.system.identity import user_name

    here = brokers(machine_of(directory_from_environment(os.environ)))
    ours = (seen["broker"] or {}).get("pid")
    users = sorted({*other_brokers(seen), *(user_name(uid) for uid, pid in here if pid != ours)})
    if users:
        text = f"others share these GPUs, of {', '.join(users)}: no GPU is granted twice, but each has its own queue"
        yield Finding("warning", "brokers", text, ONE_QUEUE)


def _permissions() -> Iterator[Finding]:
    from glob import glob

    nodes = [path for pattern in ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*") for path in glob(pattern)]
    closed = [path for path in sorted(nodes) if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        step = "Join the group that owns them, often `video` or `render`."
        yield Finding("warning", "permissions", f"this user may not use {', '.join(closed)}", step)
    elif nodes:
        yield Finding("ok", "permissions", f"{len(nodes)} device files may be used")
    else:
        yield Finding("ok", "permissions", "no GPU device files to check")


def _visible() -> Iterator[Finding]:
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return
    from gpulease.api.status import status

    try:
        shown = status(only_visible=True)["devices"]
    except GpuleaseError:
        return
    text = f"CUDA_VISIBLE_DEVICES={value[:60]} shows {len(shown)} of the devices"
    if shown or not value:
        yield Finding("ok", "visible", text)
    else:
        yield Finding("warning", "visible", text, "Unset it, or give indices or UUIDs from `gpulease status`.")


def _estimates() -> Iterator[Finding]:
    """Whether the starts that people were told came true."""
    from gpulease.api.lease_verbs import learned
    from gpulease.cli.commands.learned import accuracy

    try:
        yield Finding("ok", "estimates", accuracy(learned(start=False)["starts"]))
    except GpuleaseError:
        return  # told already


def _lines(findings: list[Finding], terminal: Terminal) -> Iterator[str]:
    from textwrap import wrap

    for finding in findings:
        mark = terminal.paint(f"{finding.level:<8}", COLOURS[finding.level])
        texts = [line for text in (finding.text, finding.next_step) for line in wrap(clean(text), terminal.width - 22)]
        for number, text in enumerate(texts):
            yield f"{mark}{finding.subject:<13} {text}" if number == 0 else f"{'':<22}{text}"
