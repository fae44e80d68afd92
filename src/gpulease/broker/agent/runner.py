"""What an agent does for its user's jobs: starts runs, reads how they ended, finds and signals their processes.

Orders are messages of the broker's (broker/orders.py); what comes back are events. All of it happens as the user.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

from gpulease.broker import trees
from gpulease.broker.agent import journal, spawn
from gpulease.broker.core.events import EndRead, Event, Found, Launched, LaunchFailed, TreeSeen
from gpulease.broker.runs import NOT_NOTED, SHORTAGES, UNSTARTABLE, UNWRITTEN, Root, RunNote
from gpulease.model import jobs
from gpulease.system import identity

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
        output = spawn.open_log(log, order["fresh"])
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
        pid = spawn.start(spawn.words_for(order["note"], order["cwd"], order["command"]), environ, output)
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
        journal.prepare(note)
    except FileNotFoundError:  # the first run of this user
        os.makedirs(os.path.dirname(note), 0o700, exist_ok=True)
        journal.prepare(note)


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
        tail = journal.read_own(order["log"], begin, TAIL) if failed else None
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
    return journal.read(order["note"])


def _unstartable(order: Order, environment: dict[str, str]) -> str | None:
    found = spawn.why_not(order["command"], environment, order["cwd"])
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
        journal.clear(order["folder"], order["kept"])
    except OSError:
        return
