"""The files that are a simulated machine: read, made, changed.

    DIRECTORY/machine                   key=value lines, only ever replaced by rename
    DIRECTORY/processes/PID.START_TIME  what one live process uses: gpu.N.memory=BYTES

`native/nvmlsim.c` reads the same files; `gpulease help simulation` describes them. Which keys
and values are allowed is in `keys`, which devices a process may use in `labels`, what a new machine
looks like in `profiles`. Every reader of a simulated machine loads this file, so it imports next to
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpulease.errors import SimulationError

MAXIMUM_GPUS = 64
MAXIMUM_INSTANCES = 7
DEFAULT_PROFILE = "a100"
MAKE_ANOTHER = "Make a new machine with `gpulease simulate -n 4 -- CMD`, or set GPULEASE_SIMULATE=4."


class Use(NamedTuple):
    """What one process uses of one simulated device."""

    pid: int
    start_time: int
    gpu: int
    instance: int | None
    memory: int | None  # bytes; None when the driver would not say
    graphics: bool


def read_machine(directory: Path) -> dict[str, str]:
    """Every key of the machine with its value as written."""
    path = Path(directory, "machine")
    try:
        machine = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SimulationError(
            f"The simulated machine in {directory} cannot be read: {error.strerror}.", MAKE_ANOTHER
        ) from None
    except UnicodeDecodeError:
        machine = {}
    if not 1 <= gpu_count(machine) <= MAXIMUM_GPUS:
        raise SimulationError(f"The file {path} of the simulated machine is damaged.", MAKE_ANOTHER)
    return machine


def parse(text: str) -> dict[str, str]:
    lines = (line.rstrip("\r").partition("=") for line in text.split("\n") if not line.startswith("#"))
    return {key: value for key, equals, value in lines if equals}


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def gpu_count(machine: dict[str, str]) -> int:
    """0 for a machine that is damaged."""
    value = machine.get("gpu_count", "")
    return int(value) if is_number(value) and len(value) < 4 else 0


def instance_count(machine: dict[str, str], gpu: int) -> int:
    value = machine.get(f"gpu.{gpu}.mig", "none")
    return min(int(value), MAXIMUM_INSTANCES) if is_number(value) else 0


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None for a process that is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]) if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def live_uses(directory: Path) -> list[Use]:
    """What live processes use, by pid. A file whose process is gone counts for nothing."""
    try:
        names = os.listdir(Path(directory, "processes"))
    except OSError:
        return []
    uses = [use for name in names for use in _read_process(directory, name)]
    return sorted(use for use in uses if start_time(use.pid) == use.start_time)


def create(directory: Path, count: int, profile: str = DEFAULT_PROFILE, *, shared: bool = False) -> bool:
    """Make a machine, and say whether it is new: one that is already there is left alone.

    With `shared` every user of the host may occupy its devices; otherwise only the creator sees it.
    """
    from gpulease.simulator.keys import new_machine

    machine = new_machine(count, profile)
    try:
        _make_directories(directory, shared)
        with _changing(directory):
            if Path(directory, "machine").exists():
                return False
            _write_machine(directory, machine)
    except OSError as error:
        raise SimulationError(
            f"The simulated machine cannot be made in {directory}: {error.strerror}.",
            "Name a directory that you may write to.",
        ) from None
    return True


def set_values(directory: Path, assignments: Iterable[str]) -> None:
    """Change the machine at once by KEY=VALUE texts: all of them, or with an error none."""
    from gpulease.simulator.keys import checked

    read_machine(directory)
    try:
        with _changing(directory):
            machine = read_machine(directory)
            changes = checked(machine, assignments, live_uses(directory))
            _write_machine(directory, machine | changes)
    except OSError as error:
        raise SimulationError(
            f"The simulated machine in {directory} cannot be changed: {error.strerror}.",
            "Only the user who made it may change it.",
        ) from None


def occupy(directory: Path, labels: str, memory: int | None, pid: int | None = None, graphics: bool = False) -> Path:
    """Let a process (this one unless told) use `memory` bytes of each device, until it dies."""
    from gpulease.simulator.keys import check_room, labels_of

    pid = os.getpid() if pid is None else pid
    started = start_time(pid)
    if started is None:
        raise SimulationError(f"There is no process {pid}.", "Name a process that runs.")
    machine = read_machine(directory)
    devices = labels_of(machine, labels)
    check_room(machine, devices, memory or 0)
    size = "none" if memory is None else memory
    lines = [f"gpu.{label}.memory={size}\n" for label in devices]
    if graphics:
        lines.append("type=graphics\n")
    path = Path(directory, "processes", f"{pid}.{started}")
    try:
        _replace(path, "".join(lines))
        _remove_dead(path.parent)
    except OSError as error:
        raise SimulationError(
            f"A process cannot be added to {path.parent}: {error.strerror}.",
            "Only the user who made the machine may use it, unless it is shared.",
        ) from None
    return path


def _read_process(directory: Path, name: str) -> Iterator[Use]:
    pid, _, started = name.partition(".")
    if not (is_number(pid) and is_number(started)):
        return
    try:
        values = parse(Path(directory, "processes", name).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return
    graphics = values.pop("type", "") == "graphics"
    for key, value in values.items():
        gpu, _, instance = key.removeprefix("gpu.").removesuffix(".memory").partition(":")
        if is_number(gpu) and (not instance or is_number(instance)):
            memory = int(value) if is_number(value) else None
            yield Use(int(pid), int(started), int(gpu), int(instance) if instance else None, memory, graphics)


def _make_directories(directory: Path, shared: bool) -> None:
    processes = Path(directory, "processes")
    if Path(directory, "machine").exists():
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    processes.mkdir(mode=0o700, exist_ok=True)
    if shared:
        directory.chmod(0o755)
        processes.chmod(0o1777)


def _write_machine(directory: Path, machine: dict[str, str]) -> None:
    _replace(Path(directory, "machine"), "".join(f"{key}={value}\n" for key, value in machine.items()))


def _replace(path: Path, text: str) -> None:
    """Write by rename: a reader sees the old file or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _remove_dead(processes: Path) -> None:
    for name in os.listdir(processes):
        pid, _, started = name.partition(".")
        if is_number(pid) and is_number(started) and start_time(int(pid)) != int(started):
            try:
                Path(processes, name).unlink(missing_ok=True)
            except OSError:  # another user's, in a shared machine
                continue


@contextmanager
def _changing(directory: Path) -> Iterator[None]:
    """One writer at a time. The kernel lets go of the lock when its holder dies."""
    import fcntl

    with open(Path(directory, "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
