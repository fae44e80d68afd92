"""What an agent does for its user's jobs: starts runs, reads how they ended, finds and signals their processes.

Orders are messages of the broker's (broker/orders.py); what comes back are events. All of it happens as the user.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import time
from typing import Any

from gpulease.broker import trees
from gpulease.broker.agent import files
from gpulease.broker.core.events import (
    NOT_NOTED,
    SHORTAGES,
    UNSTARTABLE,
    UNWRITTEN,
    EndRead,
    Event,
    Found,
    Launched,
    LaunchFailed,
    Root,
    RunNote,
    TreeSeen,
)
from gpulease.errors import GpuleaseError
from gpulease.model import jobs
from gpulease.system import identity
from gpulease.system.execution import check_command

# A job runs below a small shell that outlives broker and agent, and notes when it begins and with which code it ended.
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


def start_shell(words: list[str], environ: dict[str, str], log: int) -> int:
    """The pid of a new session that runs `words`, with its output to the open file `log`."""
    output = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
    return os.posix_spawn(
        SHELL, words, environ, file_actions=[NULL, *output], setsid=True, setsigdef=DEFAULT, setsigmask=()
    )


def open_log(path: str, fresh: bool = False) -> int:
    """Without waiting for the reader of a pipe; `fresh`: with nothing in it, as of an older queue."""
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


Order = dict[str, Any]
TAIL = 1 << 16  # bytes of a failed job's output that are searched for out-of-memory
PASSES = 5  # at most so many looks for processes that were born while their tree was being stopped

# -------------------------------------------------------------------- launching


def launch(order: Order, environment: dict[str, str], login: dict[str, str]) -> Event:
    """`login`: the variables that say who one is, where the broker is another user's."""
    id, run, log = order["id"], order["run"], order["log"]
    try:
        _prepare(order["note"])
    except OSError as trouble:
        where = os.path.dirname(order["note"])
        return _failed(order, f"{where!r} cannot be written", trouble)._replace(temporary=True)  # no fault of the job's
    try:
        output = open_log(log, order["fresh"])
    except OSError as trouble:
        return _failed(order, f"its log {log!r} cannot be written", trouble)
    try:
        begin = os.fstat(output).st_size
        changed = _script_changed(order)
        if changed is not None:
            _say_changed(output, order, changed)
        # What every job gets stands at the beginning, where the mark is quickly found, and wins.
        given = {**order["given"], **login}
        environ = {**given, **environment, **given}
        pid = start_shell(words_for(order["note"], order["cwd"], order["command"]), environ, output)
    except (OSError, ValueError) as trouble:
        return _failed(order, "its shell cannot be started", trouble)
    finally:
        os.close(output)
    since = None
    with contextlib.suppress(OSError):  # it runs, whatever can be seen of it
        since = identity.start_time(pid)
    return Launched(id, run, pid, since, begin, changed)


def _script_changed(order: Order) -> int | None:
    """When the file that the command runs was changed, if that is not what it was as the job was added."""
    if order["script"] is None or order["script_time"] is None:
        return None
    try:
        seen = os.stat(order["script"]).st_mtime_ns // 1_000_000
    except OSError:
        return None  # the command itself will tell
    return seen if seen != order["script_time"] and seen >= 0 else None


def _say_changed(output: int, order: Order, changed: int) -> None:
    then, now = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) for ms in (order["script_time"], changed)
    )
    text = f"gpulease: {order['script']} was changed after this job was added ({then} -> {now})\n"
    with contextlib.suppress(OSError):
        os.write(output, text.encode("utf-8", "surrogateescape"))


def _prepare(note: str) -> None:
    try:
        files.prepare_note(note)
    except FileNotFoundError:  # the first run of this user
        os.makedirs(os.path.dirname(note), 0o700, exist_ok=True)
        files.prepare_note(note)


def _failed(order: Order, what: str, trouble: OSError | ValueError) -> LaunchFailed:
    number = getattr(trouble, "errno", None)
    why = f"{what}: {os.strerror(number) if number else trouble}"
    return LaunchFailed(order["id"], order["run"], why, number in SHORTAGES)


# -------------------------------------------------------------------- how a run ended


def read_end(order: Order, environment: dict[str, str]) -> Event:
    noted = _outcome(order)
    failed = noted.code not in (None, 0)
    tail = None
    with contextlib.suppress(OSError):  # what it wrote is a hint, and no more
        begin = max(order["log_begin"], _size(order["log"]) - TAIL)
        tail = files.read_own(order["log"], begin, TAIL) if failed else None
    doubtful = noted.code in UNSTARTABLE or noted.trouble == "no-command"
    memory = jobs.ran_out_of_memory(tail or b"")
    return EndRead(order["id"], order["run"], noted, memory, _unstartable(order, environment) if doubtful else None)


def _outcome(order: Order) -> RunNote:
    """A shell's own code says nothing of a command that never began; one that was killed may have noted the end."""
    code, pid, noted = order["code"], order["pid"], _note(order)
    unknown = code is None or (code == UNWRITTEN and noted.pid is None)  # the note is gone: it may be the shell's code
    if noted.trouble is not None or unknown or (code < 0 and noted.over):
        return noted._replace(pid=pid)
    return RunNote(pid, code)


def _note(order: Order) -> RunNote:
    return files.read_note(order["note"])


def _unstartable(order: Order, environment: dict[str, str]) -> str | None:
    found = why_not(order["command"], environment, order["cwd"])
    return None if found is None else found[:1].lower() + found[1:].rstrip(".")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


# -------------------------------------------------------------------- its processes


def inspect_tree(order: Order, census: trees.Census) -> Event:
    return _signal(order, census) if order["do"] == "signal" else _find(order, census)


def _find(order: Order, census: trees.Census) -> Event:
    id, run, root = order["id"], order["run"], Root(*order["root"])
    noted = _note(order)
    shell = _shell(root, noted, census)
    if shell is not None and (not noted.over or noted.trouble == NOT_NOTED):
        return Found(id, run, RunNote(shell), shell, identity.start_time(shell), True)
    noted = _note(order)  # what its shell noted last may have come after it was read before
    return Found(id, run, noted, root.pid or noted.pid, None, False)


def _shell(root: Root, noted: RunNote, census: trees.Census) -> int | None:
    """The living one. A note is its user's word: what the broker knows comes first."""
    known = [pid for pid in (root.pid, noted.pid) if pid]
    return next((pid for pid in known if census.is_shell(pid, root)), None) if known else census.find(root)


def _signal(order: Order, census: trees.Census) -> TreeSeen:
    root, signals = Root(*order["root"]), order["signals"]
    seen = census.tree(root)
    for number in signals:
        trees.send(seen if number in (signal.SIGCONT, signal.SIGSTOP) else _below(root.pid, seen), number)
    for _ in range(PASSES if order["every"] else 0):
        fresh = {pid: since for pid, since in trees.Census().tree(root).items() if pid not in seen}
        if not fresh:
            break
        for number in signals:
            trees.send(fresh, number)
        seen |= fresh
    return TreeSeen(order["id"], order["run"], len(seen))


def _below(shell: int, seen: dict[int, int]) -> dict[int, int]:
    """All but the job's own shell, which notes how its command ended; the shell too once it is alone."""
    return {pid: since for pid, since in seen.items() if pid != shell} or seen


# -------------------------------------------------------------------- what is no longer needed


def remove(order: Order) -> None:
    for path in order["logs"]:
        try:
            os.unlink(path)
        except OSError:
            continue


def remove_notes(order: Order) -> None:
    try:
        files.remove_notes(order["folder"], order["kept"])
    except OSError:
        return
