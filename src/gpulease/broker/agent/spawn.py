"""Starting a job so that it outlives the broker and its user's agent.

A job runs below a small shell that notes when it begins and with which code it ended (journal.py): whoever is broker
then learns both.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat

from gpulease.errors import GpuleaseError
from gpulease.system.execution import check_command

# $1 note, $2 folder, then the command. `1<>` writes over what is there.
SCRIPT = (
    'j=$1 d=$2; shift 2; echo "$$" 1<>"$j" || exit 122; '
    'cd -- "$d" || { echo "$$ no-folder" 1<>"$j"; exit 125; }; '
    'command -v -- "$1" >/dev/null || { echo "$$ no-command" 1<>"$j"; exit 127; }; '
    'umask "${GPULEASE_UMASK:-022}" 2>/dev/null; unset GPULEASE_UMASK; '  # the submitter's, not the broker's
    # A shell that cannot fork ends at once, dash with 2 and bash with 254; where bash is killed, $? is 0 here.
    'trap \'case $? in 2|254) echo "$$ no-fork" 1<>"$j";; esac\' EXIT; '
    '"$@"; c=$?; trap - EXIT; echo "$$ $c" 1<>"$j"; exit $c'
)
SHELL = "/bin/sh"
# What a shell would do itself, and a job means as a program, if there is one: `exit` would end the shell unnoticed.
BUILTINS = frozenset(
    """. : [ alias bg break builtin cd chdir command continue declare echo eval exec exit export false fc fg getopts
    hash help history jobs kill let local printf pwd read readonly return set shift source test times trap true type
    typeset ulimit umask unalias unset wait""".split()  # noqa: SIM905  # a list of them takes forty lines
)
ENV = "/usr/bin/env"
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_CLOEXEC
NULL = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
DEFAULT = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})  # whatever its starter ignores


def start(words: list[str], environ: dict[str, str], log: int) -> int:
    """The pid of a new session that runs `words`, with its output to the open file `log`."""
    output = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
    return os.posix_spawn(
        SHELL, words, environ, file_actions=[NULL, *output], setsid=True, setsigdef=DEFAULT, setsigmask=()
    )


def open_log(path: str, fresh: bool = False) -> int:
    """Without waiting for whoever reads a pipe; `fresh`: with nothing in it, as of an older queue."""
    descriptor = os.open(path, APPEND | os.O_NONBLOCK | (os.O_TRUNC if fresh else 0), 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return descriptor


def words_for(note: str, cwd: str, command: list[str]) -> list[str]:
    through = [ENV] if command[0] in BUILTINS and os.path.exists(ENV) else []
    return [SHELL, "-c", SCRIPT, "gpulease-job", note, cwd, *through, *command]


def why_not(command: list[str], environ: dict[str, str], cwd: str) -> str | None:
    """Why a command cannot be started at all, in a sentence; None when it can."""
    try:
        check_command(command[0], environ.get("PATH"), cwd)
    except GpuleaseError as trouble:
        return trouble.what
    return None
