"""What `gpulease shims DIR` writes: the files of shims/, with the command that runs this gpulease filled in.

A file's name is its shim's: `gpuselect` is bin/gpuselect and the package python/gpuselect.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from gpulease.cli.install.changes import Change, File, Target, sealed
from gpulease.errors import StateError, UsageError

SHIMS = Path(__file__).parent / "shims"
PLACE = "COMMAND = []"  # in gpulease_shim.py
SHARED = "gpulease_"  # how the names of modules begin that several shims use
SGE = {"gpu_session.py", "sge", "start_agent.sh", "start_agents.sh"}
NEEDS = {
    "gpu-acquisitor": {"safe_gpu"},
    **{key: {"gpulimit"} for key in ("gpulimitc", "gpulimit_server", "gpulimit-server")},
    **dict.fromkeys(SGE, SGE),
}


def names() -> list[str]:
    """Of the shims that there are."""
    return sorted({_shim_of(path) for path in _paths()} - {""})


def write(folder: str, only: str | None, force: bool) -> list[Change]:
    """Write all shims, or `only` those; nothing if a file is there that was not written here."""
    os.umask(0o022)
    wanted = files(_wanted(only))
    _refuse_what_others_write(folder, wanted)
    changes = list(Target(folder, force).needed(wanted))
    for change in changes:
        if change.action == "edited":
            path = os.path.join(folder, change.file.path)
            step = "Give another folder, or --force, which keeps that file as .bak. Nothing was written."
            raise StateError(f"{path} is not a file that `gpulease shims` wrote, or it was edited.", step)
    for change in changes:
        Target(folder, force).carry_out(change)
    return changes


def files(wanted: set[str]) -> list[File]:
    """As they are to be, with paths relative to the folder that is written."""
    return [
        File(str(path.relative_to(SHIMS)), sealed(_content(path), by="shims"), _mode(path), None)
        for path in _paths()
        if not _shim_of(path) or _shim_of(path) in wanted
    ]


def _refuse_what_others_write(folder: str, wanted: list[File]) -> None:
    """Who can change these files, or the folders that they are in, runs code as everybody who uses them."""
    inside = {str(place) for file in wanted for place in [Path(file.path), *Path(file.path).parents]} - {"."}
    for path in [folder, *(os.path.join(folder, place) for place in sorted(inside))]:
        trouble = _trouble_of(path, may_be_link=path == folder)
        if trouble:
            raise StateError(f"{path} {trouble}.", "Give a folder of your own. Nothing was written.")


def _trouble_of(path: str, may_be_link: bool) -> str | None:
    if not os.path.lexists(path):
        return None
    seen = [os.lstat(path)]
    if stat.S_ISLNK(seen[0].st_mode) and os.path.isdir(path):
        if not may_be_link:
            return "is a link"
        seen.append(os.stat(path))
    if any(one.st_uid not in (0, os.geteuid()) for one in seen):
        return "belongs to another user"
    writable = not stat.S_ISLNK(seen[-1].st_mode) and _others_write(seen[-1])
    return "may be written by other users" if writable else None


def _others_write(seen: os.stat_result) -> bool:
    by_group = seen.st_mode & stat.S_IWGRP and seen.st_gid not in (0, os.getegid())
    return bool(seen.st_mode & stat.S_IWOTH or by_group)


def own_command() -> list[str]:
    """The words that run this gpulease, whatever PYTHONPATH and the working folder are, if it is found without them."""
    alone = [sys.executable, "-E", "-P", "-m", "gpulease"]
    found = subprocess.run([*alone, "--version"], capture_output=True).returncode == 0
    return alone if found else [sys.executable, "-P", "-m", "gpulease"]


def _wanted(only: str | None) -> set[str]:
    wanted = set(names()) if only is None else {name.strip() for name in only.split(",")}
    unknown = sorted(wanted - set(names()))
    if unknown:
        raise UsageError(f"There is no shim {unknown[0]!r}.", f"There are: {', '.join(names())}.")
    return wanted.union(*(NEEDS.get(name, set()) for name in wanted))


def _paths() -> list[Path]:
    return sorted(path for path in SHIMS.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _shim_of(path: Path) -> str:
    """The name of the shim that a file is of; nothing for what several use."""
    folder, name = path.relative_to(SHIMS).parts[:2]
    if folder == "bin":
        return name
    return "" if name.startswith(SHARED) else name.removesuffix(".py")


def _mode(path: Path) -> int:
    return 0o755 if path.parent.name == "bin" else 0o644


def _content(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text.replace(PLACE, f"COMMAND = {json.dumps(own_command())}") if path.stem == "gpulease_shim" else text


SHARED_MODULE = "gpulease_shim"


def become(name: str, file: str) -> None:
    """The module `name` is what stands in `file`, a path below shims/python."""
    if SHARED_MODULE not in sys.modules:
        shared = _load(SHARED_MODULE, SHIMS / "python" / f"{SHARED_MODULE}.py")
        shared.COMMAND = own_command()  # type: ignore[attr-defined]
    _load(name, SHIMS / "python" / file)


def _load(name: str, path: Path) -> ModuleType:
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
