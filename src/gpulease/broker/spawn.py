"""Starting a job so that it outlives the broker.

A job runs below a small shell that notes in a journal when it begins and with which code it ended: whoever is broker
then learns both. The shell opens the log and enters the folder, so that this happens as the job's user.
"""

from __future__ import annotations

import os
import resource
import signal

from gpulease.errors import GpuleaseError
from gpulease.execution import check_command

# The broker raises its own limit of open files; a job gets the one that the broker was started with.
OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

# $1 journal, $2 name of the run, $3 log, $4 folder, then the command. `true` and not `exec` tries the log, since a
# shell must end at once when a redirection of `exec` fails.
SCRIPT = (
    'j=$1 r="$2 $$" l=$3 d=$4; shift 4; echo "$r" >>"$j" || exit 122; '
    'true >>"$l" || { echo "$r no-log" >>"$j"; exit 125; }; exec >>"$l" 2>&1; '
    'cd -- "$d" || { echo "$r no-folder" >>"$j"; exit 125; }; '
    'command -v -- "$1" >/dev/null || { echo "$r no-command" >>"$j"; exit 127; }; '
    f"ulimit -S -n {OPEN_FILES} 2>/dev/null; "
    'umask "${GPULEASE_UMASK:-022}" 2>/dev/null; unset GPULEASE_UMASK; '  # the submitter's, not the broker's
    '"$@"; c=$?; echo "$r $c" >>"$j"; exit $c'
)
SHELL = "/bin/sh"
# What a shell would do itself, and a job means as a program, if there is one: `exit` would end the shell unnoticed.
BUILTINS = frozenset(
    """. : [ alias bg break builtin cd chdir command continue declare echo eval exec exit export false fc fg getopts
    hash help history jobs kill let local printf pwd read readonly return set shift source test times trap true type
    typeset ulimit umask unalias unset wait""".split()  # noqa: SIM905  # a list of them takes forty lines
)
ENV = "/usr/bin/env"

NULL = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
OUT = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_WRONLY, 0) for descriptor in (1, 2)]
ACTIONS = [NULL, *OUT]
DEFAULT = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM]


def start(words: list[str], environ: dict[str, str], uid: int) -> int:
    """The pid of a new session that runs `words`; as `uid`, which only root may choose."""
    if uid == os.geteuid():
        return os.posix_spawn(SHELL, words, environ, file_actions=ACTIONS, setsid=True, setsigdef=DEFAULT)
    return _start_as(words, environ, uid)


def _start_as(words: list[str], environ: dict[str, str], uid: int) -> int:
    import pwd
    import subprocess

    entry = pwd.getpwuid(uid)
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
        extra_groups=os.getgrouplist(entry.pw_name, entry.pw_gid),
    )
    process.returncode = 0  # reaped by its pid elsewhere; keeps Popen from waiting for it
    return process.pid


def words_for(journal: str, run: str, log: str, cwd: str, command: tuple[str, ...]) -> list[str]:
    through = (ENV,) if command[0] in BUILTINS and os.path.exists(ENV) else ()
    return [SHELL, "-c", SCRIPT, "gpulease-job", journal, run, log, cwd, *through, *command]


def home(uid: int) -> dict[str, str]:
    """The variables that say who one is, for a job that runs as another user than the broker."""
    if uid == os.geteuid():
        return {}
    import pwd

    entry = pwd.getpwuid(uid)
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}


def why_not(command: tuple[str, ...], environ: dict[str, str], cwd: str) -> str | None:
    """Why a command cannot be started at all, in a sentence; None when it can, as far as this user sees."""
    program = command[0]
    path = os.path.join(cwd, program) if "/" in program else program
    try:
        check_command(path, environ.get("PATH"))
    except GpuleaseError as trouble:
        return trouble.what.replace(path, program)
    return None


def reap(pid: int) -> int | None:
    """The exit code of a child of this process that ended, negative for a signal; None when it is not ours."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None
