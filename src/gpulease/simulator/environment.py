"""The surroundings in which every program sees the simulated machine, and no broker but its own.

C programs and Python ones find the simulated library by LD_LIBRARY_PATH; scripts find an
`nvidia-smi` on PATH.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from gpulease.model.visible import NAMES
from gpulease.simulator.library import library_path

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
