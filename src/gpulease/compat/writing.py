"""What `gpulease shims DIR` writes: the files of shims/, with the command that runs this gpulease filled in.

A file's name is its shim's: `gpuselect` is bin/gpuselect and the package python/gpuselect.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpulease.errors import StateError, UsageError
from gpulease.installation.changes import Change, File, Target, sealed

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
    changes = list(Target(folder, force).needed(files(_wanted(only))))
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
