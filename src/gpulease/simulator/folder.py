"""The folder of a machine that is there for one command, and the environment in which programs see that machine.

Its owner holds a lock on the file `owner` in it for as long as it lives. When a kill -9 takes the owner
away, the kernel lets go of the lock, and the next one that makes such a folder removes what is left.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpulease.errors import SimulationError
from gpulease.model.visible import NAMES
from gpulease.simulator.library import library_path, temporary_place
from gpulease.simulator.state import start_time

PREFIX = "gpulease-simulated-"
LONGEST_SOCKET = 100  # sun_path holds 108 bytes


@contextmanager
def temporary_folder(wanted: str | None = None) -> Iterator[Path]:
    """In `wanted`, else where temporary files are."""
    place = _place(wanted)
    _remove_leftovers(place)
    folder, lock = _make(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def broker_folder(machine: Path) -> Iterator[Path]:
    """The folder of the machine's broker: in that of the machine, or in /tmp where its socket's path is too long."""
    folder = machine / "broker"
    if len(os.fsencode(folder / "socket")) <= LONGEST_SOCKET:
        folder.mkdir(mode=0o700, exist_ok=True)
        yield folder
        return
    with temporary_folder("/tmp") as short:
        yield short


def _place(wanted: str | None) -> Path:
    from tempfile import gettempdir

    try:
        return temporary_place(wanted or gettempdir())
    except OSError as error:
        raise _impossible(error) from None


def _make(place: Path) -> tuple[Path, int]:
    from tempfile import mkdtemp

    try:
        folder = Path(mkdtemp(prefix=PREFIX, dir=place))
    except OSError as error:
        raise _impossible(error) from None
    try:
        return folder, _sign(folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _impossible(error) from None


def _sign(folder: Path) -> int:
    """Lock first and then show: an `owner` that nobody holds belongs to one that is gone."""
    hidden = folder / ".owner"
    lock = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, f"{os.getpid()} {start_time(os.getpid())}\n".encode())
        hidden.rename(folder / "owner")
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove_leftovers(place: Path) -> None:
    try:
        names = [name for name in os.listdir(place) if name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        if _is_left_over(place / name):
            shutil.rmtree(place / name, ignore_errors=True)


def _is_left_over(folder: Path) -> bool:
    try:
        if os.lstat(folder).st_uid != os.geteuid():
            return False
        lock = os.open(folder / "owner", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _impossible(error: OSError) -> SimulationError:
    return SimulationError(
        f"No folder for a simulated machine can be made: {error.strerror or error}.",
        "Set TMPDIR to a folder that can be written to, and check `ulimit -f` and the space that is left.",
    )


# What leads to the machine outside: its broker, the settings of that, and a lease that it granted.
OUTSIDE = ("GPULEASE_CONFIG", "GPULEASE_LEASE", "GPULEASE_DEVICES", "GPULEASE_JOB")


def apart(environ: Mapping[str, str], broker: Path) -> dict[str, str]:
    """`environ` changed so that what runs in it reaches the broker in `broker`, and none outside."""
    of_a_lease = NAMES if environ.get("GPULEASE_LEASE") else ()
    kept = {name: value for name, value in environ.items() if name not in (*OUTSIDE, *of_a_lease)}
    return {**kept, "GPULEASE_DIR": str(broker)}


def simulated_environment(directory: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` changed so that what runs in it sees the machine in `directory`."""
    changed = dict(environ)
    changed.pop("GPULEASE_SIMULATE", None)
    changed["GPULEASE_SIMULATION"] = str(directory)
    _prepend(changed, "PATH", _write_programs(directory, environ))
    _prepend(changed, "LD_LIBRARY_PATH", library_path(environ, beside=directory).parent)
    return changed


def _prepend(environ: dict[str, str], name: str, place: Path) -> None:
    environ[name] = f"{place}:{environ[name]}" if environ.get(name) else str(place)


def _write_programs(directory: Path, environ: Mapping[str, str]) -> Path:
    programs = {"nvidia-smi": "gpulease.simulator.nvidia_smi"}
    if shutil.which("gpulease", path=environ.get("PATH")) is None:
        programs["gpulease"] = "gpulease"
    folder = directory / "bin"
    folder.mkdir(mode=0o755, exist_ok=True)
    for name, module in programs.items():
        shim = folder / name
        shim.write_bytes(os.fsencode(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {module} "$@"\n'))
        shim.chmod(0o755)
    return folder
