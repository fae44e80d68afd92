"""Builds `native/nvmlsim.c` into a cache, once for each version of its source.

Two processes may build at once: each builds into its own directory and renames it into place, so
that nobody ever loads half a library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "libnvidia-ml.so.1"
FLAGS = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-pthread", f"-Wl,-soname,{NAME}")
BUILD_SECONDS = 120


def library_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The simulated libnvidia-ml.so.1, built if need be; None where that cannot be done."""
    if environ.get("GPULEASE_SIMULATION_LIBRARY") == "python":
        return None
    source = source_path()
    if not source.is_file():
        return None
    folder = f"nvmlsim-{_fingerprint(source)}"
    places = _cache_places(environ)
    for place in places:
        if _is_ours(place / folder / NAME):
            return place / folder / NAME
    compiler = find_compiler(environ)
    if compiler is None:
        return None
    return next((built for place in places if (built := _build(compiler, source, place / folder))), None)


def source_path() -> Path:
    return Path(__file__).parent.parent / "native" / "nvmlsim.c"


def find_compiler(environ: Mapping[str, str]) -> list[str] | None:
    from shutil import which

    wanted = environ.get("CC", "").split()
    for command in ([wanted] if wanted else []) + [["cc"], ["gcc"], ["clang"]]:
        if found := which(command[0], path=environ.get("PATH")):
            return [found, *command[1:]]
    return None


def _fingerprint(source: Path) -> str:
    data = source.read_bytes() + os.uname().machine.encode()
    return str(_lean_sha256()(data).hexdigest())[:16]


def _lean_sha256() -> Any:
    """hashlib loads OpenSSL, which every start would pay for; `random` of the standard library does this too."""
    from importlib import import_module

    for name in ("_sha2", "_sha256", "hashlib"):
        try:
            return import_module(name).sha256
        except ImportError:
            continue
    raise ImportError("this Python has no sha256")


def _cache_places(environ: Mapping[str, str]) -> list[Path]:
    """The user's cache; and where that cannot be written, a directory of the user's under /tmp."""
    home = environ.get("HOME") or os.path.expanduser("~")
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    temporary = environ.get("TMPDIR") or "/tmp"
    return [Path(cache, "gpulease"), Path(temporary, f"gpulease-{os.getuid()}")]


def _is_ours(path: Path) -> bool:
    """Under /tmp anybody may have put a library there first; only one's own is loaded."""
    try:
        return path.stat().st_uid in (os.getuid(), 0) and path.parent.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False


def _build(compiler: list[str], source: Path, folder: Path) -> Path | None:
    import shutil
    import subprocess
    from tempfile import mkdtemp

    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = Path(mkdtemp(prefix=".building-", dir=folder.parent))
    except OSError:
        return None
    try:
        command = [*compiler, *FLAGS, str(source), "-o", str(scratch / NAME)]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_SECONDS)
        scratch.chmod(0o755)
        _put_in_place(scratch, folder)
    except (OSError, subprocess.SubprocessError):
        shutil.rmtree(scratch, ignore_errors=True)
        return None
    return folder / NAME if _is_ours(folder / NAME) else None


def _put_in_place(scratch: Path, folder: Path) -> None:
    import shutil

    try:
        scratch.rename(folder)
    except OSError:
        if not (folder / NAME).is_file():
            raise
        shutil.rmtree(scratch, ignore_errors=True)  # another process was first, with the same library
