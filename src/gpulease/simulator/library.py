"""The library that answers NVML calls: built once, and loaded only from where nobody but this user and root can write.

One process builds at a time, into a directory that it renames into place, so that nobody ever loads
half a library. Only a place that nobody else can change is used.

What is loaded from there runs as this user, so a doubt is a no. A place is checked with everything above
it: who may rename a folder on the way decides what the rest of the path means.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpulease.errors import NoLibrary

OTHERS_MAY_WRITE = 0o022


def is_safe_folder(path: str) -> bool:
    """A real directory of this user's or root's with only such ones above it; no symbolic link on the way."""
    try:
        return all(_is_safe_step(step, is_last=step == path) for step in _steps(path))
    except OSError:
        return False


def keeps_what_is_ours(path: str) -> bool:
    """Whether what this user makes in the folder, such as /tmp, can be renamed or removed by nobody else."""
    try:
        return all(_is_safe_step(step, is_last=False) for step in _steps(path))
    except OSError:
        return False


def is_private_folder(path: str) -> bool:
    """As above; and only this user may even look into it."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return seen.st_uid == os.geteuid() and stat.S_IMODE(seen.st_mode) == 0o700 and is_safe_folder(path)


def is_safe_file(path: str) -> bool:
    """A regular file of this user's or root's in a safe folder."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(seen.st_mode) and _is_ours(seen) and is_safe_folder(os.path.dirname(path))


def make_private_folders(path: str) -> None:
    """The folder and what is missing above it, each for this user alone whatever the umask is."""
    for step in _steps(path):
        if not os.path.lexists(step):
            try:
                os.mkdir(step, 0o700)
            except FileExistsError:  # another process was quicker; who it was is checked afterwards
                continue


def _steps(path: str) -> list[str]:
    """`/`, `/a`, `/a/b` for `/a/b`."""
    steps = [path]
    while (above := os.path.dirname(steps[-1])) != steps[-1]:
        steps.append(above)
    return steps[::-1]


def _is_safe_step(path: str, is_last: bool) -> bool:
    seen = os.lstat(path)
    if not stat.S_ISDIR(seen.st_mode):
        return False
    # In a folder such as /tmp the sticky bit keeps others from renaming what is ours.
    return _is_ours(seen) or (not is_last and _is_trusted(seen) and bool(seen.st_mode & stat.S_ISVTX))


def _is_ours(seen: os.stat_result) -> bool:
    return _is_trusted(seen) and not seen.st_mode & OTHERS_MAY_WRITE


def _is_trusted(seen: os.stat_result) -> bool:
    return seen.st_uid in (os.geteuid(), 0)


# -------------------------------------------------------------------- the library

NAME = "libnvidia-ml.so.1"
CUDA_NAME = "libcuda.so.1"
FLAGS = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-pthread", f"-Wl,-soname,{NAME}")
BUILD_SECONDS = 120
FALLBACK = "gpulease-"  # and the uid
SCRATCH = ".building-"


def library_path(environ: Mapping[str, str] = os.environ, beside: Path | None = None) -> Path:
    """The simulated libnvidia-ml.so.1: one that was built earlier, else a new one.

    Where no cache is safe to use, it is built `beside` the state of the machine, which may be one's own.
    """
    source = source_path()
    if found := built_library(environ, beside):
        return found
    compilers = find_compilers(environ)
    if not compilers:
        raise NoLibrary("GPUs cannot be simulated: there is no C compiler to build the library with.")
    trouble = NoLibrary(
        "GPUs cannot be simulated: there is no folder for the library that only you can change.",
        "Set XDG_CACHE_HOME to such a folder.",
    )
    for folder in _folders(environ, beside):
        try:
            if built := _build(compilers, source, folder):
                return built
        except NoLibrary as error:  # the next folder may do: this one's disk may be full
            trouble = error
    raise trouble


def built_library(environ: Mapping[str, str] = os.environ, beside: Path | None = None) -> Path | None:
    """The library, if it was built earlier."""
    for folder in _folders(environ, beside):
        if _is_usable(folder.parent) and is_safe_file(str(folder / NAME)):
            return folder / NAME
    return None


def _folders(environ: Mapping[str, str], beside: Path | None) -> list[Path]:
    """Where this version of the library may be, the best first."""
    places = [*_cache_places(environ), *([] if beside is None else [_resolved(beside / "library")])]
    name = f"nvmlsim-{_fingerprint(source_path())}"
    return [place / name for place in places if is_listable(place)]


def is_listable(place: Path) -> bool:
    """Whether the place can stand in PATH and LD_LIBRARY_PATH, which have no way to quote these."""
    return not set(":;$") & set(str(place))


def source_path() -> Path:
    return Path(__file__).parent.parent / "native" / "nvmlsim.c"


def find_compilers(environ: Mapping[str, str]) -> list[list[str]]:
    """Those to try, in this order: one may be there without the headers of the C library. CC alone, if it is there."""
    import sys
    from importlib.util import find_spec
    from shutil import which

    path, wanted = environ.get("PATH"), environ.get("CC", "").split()
    if wanted and (found := which(wanted[0], path=path)):
        return [[found, *wanted[1:]]]
    compilers = [[found] for name in ("cc", "gcc", "clang", "tcc") if (found := which(name, path=path))]
    if not wanted and find_spec("ziglang") is not None:  # it brings the headers too
        compilers.append([sys.executable, "-m", "ziglang", "cc"])
    return compilers


def _fingerprint(source: Path) -> str:
    data = source.read_bytes() + source.with_name("cudasim.c").read_bytes() + os.uname().machine.encode()
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
    """The user's cache; and where that cannot be used, a directory of the user's under /tmp."""
    home = environ.get("HOME") or os.path.expanduser("~")
    cache = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # which the XDG specification declares invalid
        cache = os.path.join(home, ".cache")
    temporary = temporary_place(environ.get("TMPDIR") or "/tmp")
    return [_resolved(Path(cache, "gpulease")), temporary / f"{FALLBACK}{os.getuid()}"]


def temporary_place(wanted: str) -> Path:
    """/tmp when the one wanted cannot stand in PATH, or others could exchange what is in it."""
    place = _resolved(Path(wanted))
    return place if is_listable(place) and keeps_what_is_ours(str(place)) else _resolved(Path("/tmp"))


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_usable(place: Path) -> bool:
    """Under /tmp anybody may have made the directory first; there it must be private."""
    is_fallback = place.name.startswith(FALLBACK)
    return is_private_folder(str(place)) if is_fallback else is_safe_folder(str(place))


def _build(compilers: list[list[str]], source: Path, folder: Path) -> Path | None:
    """None where the folder cannot be used."""
    library = folder / NAME
    try:
        make_private_folders(str(folder.parent))
        if not _is_usable(folder.parent):
            return None
        with _building(folder.parent) as alone:
            if alone:
                _remove_leftovers(folder.parent)
            if not is_safe_file(str(library)):  # another process may have been first
                _compile_with_first_that_works(compilers, source, folder)
    except OSError:
        pass
    return library if is_safe_file(str(library)) else None


def _compile_with_first_that_works(compilers: list[list[str]], source: Path, folder: Path) -> None:
    for number, compiler in enumerate(compilers, 1):
        try:
            return _compile(compiler, source, folder)
        except NoLibrary:
            if number == len(compilers):
                raise


def _compile(compiler: list[str], source: Path, folder: Path) -> None:
    import shutil
    import subprocess
    from tempfile import mkdtemp

    scratch = Path(mkdtemp(prefix=SCRATCH, dir=folder.parent))
    try:
        (scratch / "zig").mkdir()
        # Zig keeps 50 MB of its own for the next time, which will hardly come.
        environ = {**os.environ, **dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(scratch / "zig"))}
        words = [*compiler, *FLAGS, str(source), "-o", str(scratch / NAME)]
        subprocess.run(
            words, check=True, env=environ, capture_output=True, text=True, errors="replace", timeout=BUILD_SECONDS
        )
        shutil.rmtree(scratch / "zig")
        (scratch / NAME).chmod(0o755)  # whatever the umask is
        (scratch / CUDA_NAME).symlink_to(NAME)
        shutil.rmtree(folder, ignore_errors=True)  # if it is there, it is damaged
        scratch.rename(folder)
    except subprocess.TimeoutExpired:
        raise NoLibrary(f"GPUs cannot be simulated: {compiler[0]} took more than {BUILD_SECONDS} s.") from None
    except subprocess.CalledProcessError as error:
        raise NoLibrary(
            f"GPUs cannot be simulated: {compiler[0]} failed: {_complaint(error.stderr)}",
            "Install its headers, as `apt-get install libc6-dev` (Debian, Ubuntu), or name another compiler with CC.",
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _complaint(output: str) -> str:
    """The line of a compiler's output that says what is wrong, as far as one can tell."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it does not say why"]
    return next((line for line in lines if "error" in line), lines[0])[:200].rstrip(".") + "."


@contextmanager
def _building(place: Path) -> Iterator[bool]:
    """One builder at a time, where the file system can lock; the kernel lets go when its holder dies."""
    import fcntl

    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _wait_for(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB))
    finally:
        os.close(descriptor)


def _wait_for(lock: Callable[[], None]) -> bool:
    """Not by a lock that waits: its holder may be stopped, and nothing here may hang."""
    deadline = time.monotonic() + BUILD_SECONDS
    while time.monotonic() < deadline:
        try:
            lock()
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # a file system that cannot
            return False
        else:
            return True
    return False


def _remove_leftovers(place: Path) -> None:
    """Of builders that were killed: nobody else builds here now."""
    import shutil

    for name in os.listdir(place):
        if name.startswith(SCRATCH):
            shutil.rmtree(place / name, ignore_errors=True)
