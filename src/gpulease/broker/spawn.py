"""The edge of the queue: starting a job so that it outlives the broker, and ending all that it started.

A job runs below a small shell that notes its pid when it begins and its exit code when it ends, in a file: whoever is
broker then learns both. The shell opens the log and enters the folder, so that this happens as the job's user.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from gpulease import identity
from gpulease.errors import GpuleaseError
from gpulease.execution import check_command

# $1 status file, $2 log, $3 folder, then the command. 125: no folder, 124: no log.
SCRIPT = (
    'f=$1 l=$2 d=$3; shift 3; echo $$ >"$f" || exit 123; '
    'exec >>"$l" 2>&1 || { echo "$$ 124" >"$f"; exit 124; }; '
    'cd -- "$d" || { echo "$$ 125" >"$f"; exit 125; }; '
    '"$@"; c=$?; echo "$$ $c" >"$f"; exit $c'
)
CANNOT = {123: "its status cannot be written", 124: "its log cannot be written", 125: "its folder cannot be entered"}
SHELL = "/bin/sh"


class Fate(NamedTuple):
    """What a status file tells."""

    pid: int | None = None
    code: int | None = None


def start(words: list[str], environ: dict[str, str], uid: int) -> int:
    """The pid of a new session that runs `words`; as `uid`, which only root may choose."""
    if uid == os.geteuid():
        null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        out = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_WRONLY, 0) for descriptor in (1, 2)]
        default = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM]
        return os.posix_spawn(SHELL, words, environ, file_actions=[null, *out], setsid=True, setsigdef=default)
    return _start_as(words, environ, uid)


def _start_as(words: list[str], environ: dict[str, str], uid: int) -> int:
    import pwd
    import subprocess

    entry = pwd.getpwuid(uid)
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    process = subprocess.Popen(
        words,
        env=environ,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        user=uid,
        group=entry.pw_gid,
        extra_groups=groups,
    )
    process.returncode = 0  # reaped by its pid elsewhere; keeps Popen from waiting for it
    return process.pid


def words_for(status: str, log: str, cwd: str, command: tuple[str, ...]) -> list[str]:
    return [SHELL, "-c", SCRIPT, "gpulease-job", status, log, cwd, *command]


def why_not(command: tuple[str, ...], environ: dict[str, str], cwd: str) -> str | None:
    """Why a command cannot be started at all, in a sentence; None when it can."""
    program = command[0]
    path = os.path.join(cwd, program) if "/" in program else program
    try:
        check_command(path, environ.get("PATH"))
    except GpuleaseError as trouble:
        return trouble.what.replace(path, program)
    return None


def fate(status: str) -> Fate:
    try:
        with open(status) as file:
            parts = file.read(64).split()
    except OSError:
        return Fate()
    numbers = [int(part) for part in parts if part.isdigit()]
    return Fate(numbers[0] if numbers else None, numbers[1] if len(numbers) > 1 else None)


def reap(pid: int) -> int | None:
    """The exit code of a child of this process that ended, negative for a signal; None when it is not ours."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def tree(pid: int, token: str) -> list[int]:
    """Everything of a job that is still there: its session, its descendants, and whoever carries its mark."""
    parents: dict[int, int] = {}
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        number = int(name)
        facts = identity.family(number)
        if facts is None or facts.state in "ZX":
            continue
        parents[number] = facts.parent
        if facts.session == pid or number == pid or _carries(number, token):
            found.add(number)
    grown = True
    while grown:
        children = {child for child, parent in parents.items() if parent in found and child not in found}
        found |= children
        grown = bool(children)
    return sorted(found)


def _carries(pid: int, token: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"GPULEASE_TOKEN={token}".encode() in file.read(1 << 17)
    except OSError:
        return False


def find_by_mark(token: str) -> int | None:
    """The shell of a job that was started by a broker that is gone, by its mark."""
    for name in os.listdir("/proc"):
        if name.isdigit() and _carries(int(name), token):
            facts = identity.family(int(name))
            if facts is not None and facts.session == int(name) and facts.state not in "ZX":
                return int(name)
    return None


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
