"""The surroundings in which every program sees the simulated machine.

C programs and Python ones find the simulated library by LD_LIBRARY_PATH; scripts find an
`nvidia-smi` on PATH. Where no library can be built, Python programs get the stand-in through a
`sitecustomize` of ours, which runs the one that would have run without it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from gpulease.simulation.library import library_path

SITECUSTOMIZE = '''\
"""Puts gpulease's simulated GPUs under pynvml when it is imported; see docs/reference/simulation.md."""
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE_PLACE = {package_place!r}
MACHINE = os.environ.get("GPULEASE_SIMULATION") and os.path.abspath(os.environ["GPULEASE_SIMULATION"])


class Finder:
    """Lets the usual import find pynvml, and changes it once it is loaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "pynvml" or not MACHINE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), change(module))
        return spec


def change(module):
    sys.path.append(PACKAGE_PLACE)
    try:
        from pathlib import Path

        from gpulease.simulation.standin import StandIn

        module.nvmlLib = StandIn(Path(MACHINE))
    finally:
        sys.path.remove(PACKAGE_PLACE)


sys.meta_path.insert(0, Finder)

others = [place for place in sys.path if os.path.abspath(place) != HERE]
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
if spec is not None and spec.loader is not None:
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
'''


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
    library = library_path(environ, beside=directory)
    if library is not None:
        _prepend(changed, "LD_LIBRARY_PATH", library.parent)
    else:
        _prepend(changed, "PYTHONPATH", _write_sitecustomize(directory))
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


def _write_sitecustomize(directory: Path) -> Path:
    folder = directory / "python"
    folder.mkdir(mode=0o755, exist_ok=True)
    package_place = str(Path(__file__).resolve().parents[2])
    text = SITECUSTOMIZE.replace("{package_place!r}", ascii(package_place))
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    (folder / "sitecustomize.py").chmod(0o644)
    return folder
