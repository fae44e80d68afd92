"""The surroundings in which every program sees the simulated machine.

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

from gpulease.simulation.library import library_path


def simulated_environment(directory: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` changed so that what runs in it sees the machine in `directory`."""
    changed = dict(environ)
    changed.pop("GPULEASE_SIMULATE", None)
    changed["GPULEASE_SIMULATION"] = str(directory)
    if not environ.get("GPULEASE_DIR") or _belongs_to_outer(environ):
        changed["GPULEASE_DIR"] = str(directory / "broker")
        (directory / "broker").mkdir(mode=0o700, exist_ok=True)
    else:
        changed["GPULEASE_DIR"] = os.path.abspath(environ["GPULEASE_DIR"])  # the command may change its directory
    _prepend(changed, "PATH", _write_programs(directory, environ))
    _prepend(changed, "LD_LIBRARY_PATH", library_path(environ, beside=directory).parent)
    return changed


def _belongs_to_outer(environ: Mapping[str, str]) -> bool:
    """Whether GPULEASE_DIR is that of a simulation around this one."""
    outer = environ.get("GPULEASE_SIMULATION")
    return bool(outer) and Path(os.path.abspath(environ["GPULEASE_DIR"])).is_relative_to(os.path.abspath(str(outer)))


def _prepend(environ: dict[str, str], name: str, place: Path) -> None:
    environ[name] = f"{place}:{environ[name]}" if environ.get(name) else str(place)


def _write_programs(directory: Path, environ: Mapping[str, str]) -> Path:
    programs = {"nvidia-smi": "gpulease.simulation.nvidia_smi"}
    if shutil.which("gpulease", path=environ.get("PATH")) is None:
        programs["gpulease"] = "gpulease"
    folder = directory / "bin"
    folder.mkdir(mode=0o755, exist_ok=True)
    for name, module in programs.items():
        shim = folder / name
        shim.write_bytes(os.fsencode(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {module} "$@"\n'))
        shim.chmod(0o755)
    return folder
