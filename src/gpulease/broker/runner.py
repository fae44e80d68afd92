"""Runs of jobs in the world: their folders, shells, journals, logs and processes. Carries out, and decides nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from gpulease import identity
from gpulease import job as jobs
from gpulease.broker import journal, spawn, trees
from gpulease.broker.errands import Errands
from gpulease.broker.events import EndRead, Event, Found, Launched, LaunchFailed, TreeSeen
from gpulease.broker.instructions import Find, Launch, ReadEnd, Remove, SignalTree, Tidy
from gpulease.broker.runs import SUSPECT, UNSTARTABLE, UNWRITTEN, Fate
from gpulease.job import Job

TAIL = 1 << 16  # bytes of a failed job's output that are searched for out-of-memory
PASSES = 5  # at most so many looks for processes that were born while their tree was being stopped


class Runner:
    def __init__(self, directory: str, errands: Errands, happened: Callable[[Event], None]) -> None:
        self._directory = os.path.join(directory, "jobs")
        self._errands, self._happened = errands, happened
        self._folders: set[int] = set()  # of users, that are there
        self._trees: dict[int, list[SignalTree | Find]] = {}  # by user: one look at all processes serves them all
        with contextlib.suppress(OSError):  # it is told when a job is launched
            self._prepare_folder(os.geteuid())  # beside the state, on the broker's own disk

    def launch(self, instruction: Launch) -> None:
        """At once where no disk of the user's need be touched: the first run of a job with the usual log."""
        job = instruction.job
        usual = job.run == 1 and job.log == f"{self._directory}/{job.uid}/{job.id}.log"
        if usual and job.uid in self._folders and not self._errands.busy(job.uid):
            self._happened(self._launch(instruction, 0))
        else:
            failed = LaunchFailed(job.id, job.run, "its folder cannot be prepared")
            self._errands.add(job.uid, partial(self._prepare_and_launch, instruction), [failed])

    def read_end(self, instruction: ReadEnd) -> None:
        job = instruction.job
        unread = EndRead(job.id, job.run, Fate(job.pid, instruction.code), False, None)
        self._errands.add(job.uid, partial(self._read_end, instruction), [unread])

    def tree(self, instruction: SignalTree | Find) -> None:
        self._trees.setdefault(instruction.job.uid, []).append(instruction)

    def flush(self) -> None:
        """Begin what was gathered."""
        gathered, self._trees = self._trees, {}
        for uid, instructions in gathered.items():
            jobs_seen = [one.job for one in instructions if isinstance(one, SignalTree)]
            unseen = [TreeSeen(job.id, job.run, 1) for job in jobs_seen]  # looked at again, if it is to end
            self._errands.add(uid, partial(self._look_at_trees, instructions), unseen)

    def remove(self, instruction: Remove) -> None:
        self._errands.add(instruction.uid, partial(_remove, instruction.logs))

    def tidy(self, instruction: Tidy) -> None:
        try:
            users = [int(name) for name in os.listdir(self._directory) if name.isdecimal()]
        except OSError:
            return
        for uid in users:
            if uid not in instruction.busy:
                self._errands.add(uid, partial(_clear, self._journal(uid), uid))

    def _journal(self, uid: int) -> str:
        return os.path.join(self._directory, str(uid), "journal")

    # ---------------------------------------------------------------- launching

    def _prepare_and_launch(self, instruction: Launch) -> Iterator[Event]:
        job = instruction.job
        try:
            self._prepare_folder(job.uid)
        except OSError as trouble:
            yield LaunchFailed(job.id, job.run, str(trouble))
        else:
            yield self._launch(instruction, _size(job.log))

    def _launch(self, instruction: Launch, log_begin: int) -> Event:
        job, given = instruction.job, instruction.given
        try:
            # What every job gets stands at the beginning, where the mark is quickly found, and wins.
            given = {**given, **spawn.home(job.uid)}
            environ = {**given, **instruction.environment, **given}
            words = spawn.words_for(self._journal(job.uid), job.run_name, job.log, job.cwd, job.command)
            pid = spawn.start(words, environ, job.uid)
        except (OSError, ValueError, KeyError, TypeError) as trouble:
            return LaunchFailed(job.id, job.run, str(trouble))
        since = None
        with contextlib.suppress(OSError):  # it runs, whatever can be seen of it
            since = identity.start_time(pid)
        return Launched(job.id, job.run, pid, since, log_begin)

    def _prepare_folder(self, uid: int) -> None:
        """For the journal and the logs of one user, readable by that user only."""
        if uid in self._folders:
            return
        own = os.path.join(self._directory, str(uid))
        os.makedirs(self._directory, exist_ok=True)
        os.chmod(self._directory, 0o755)  # whatever the umask is: its users must get to their own folders
        os.makedirs(own, 0o700, exist_ok=True)
        if uid != os.geteuid():
            os.chown(own, uid, -1)
        self._folders.add(uid)

    # ---------------------------------------------------------------- how a run ended

    def _read_end(self, instruction: ReadEnd) -> Iterator[Event]:
        job = instruction.job
        fate = self._fate(job, instruction.code)
        failed = fate.code not in (None, 0)
        memory = failed and jobs.ran_out_of_memory(journal.tail(job.log, job.uid, job.log_begin, TAIL))
        doubtful = fate.code in UNSTARTABLE or fate.trouble == "no-command"
        yield EndRead(job.id, job.run, fate, memory, _unstartable(instruction) if doubtful else None)

    def _fate(self, job: Job, code: int | None) -> Fate:
        """The journal is asked only where the code alone does not tell."""
        if code is not None and code >= 0 and code not in SUSPECT:
            return Fate(job.pid, code)
        told = journal.read(self._journal(job.uid), job.uid).get(job.run_name, Fate())
        if told.over or code is None:
            return told._replace(pid=job.pid)
        if code == UNWRITTEN and told.pid is None:
            return Fate(job.pid, trouble="no-journal")
        return Fate(job.pid, code)

    # ---------------------------------------------------------------- its processes

    def _look_at_trees(self, instructions: Iterable[SignalTree | Find]) -> Iterator[Event]:
        census = trees.Census()
        notes: dict[str, Fate] | None = None
        for one in instructions:
            if isinstance(one, SignalTree):
                yield _signal(one, census)
            else:
                notes = journal.read(self._journal(one.job.uid), one.job.uid) if notes is None else notes
                yield self._find(one, census, notes.get(one.job.run_name, Fate()))

    def _find(self, instruction: Find, census: trees.Census, fate: Fate) -> Event:
        job, root = instruction.job, instruction.root
        pid = fate.pid or census.find(root)
        if pid is None:
            return Found(job.id, job.run, fate, None, None, False)
        alive = not fate.over and census.is_shell(pid, root)
        if not alive:  # what its shell noted last may have come after the journal was read
            fate = journal.read(self._journal(job.uid), job.uid).get(job.run_name, fate)
        return Found(job.id, job.run, fate, pid, identity.start_time(pid) if alive else None, alive)


def _signal(instruction: SignalTree, census: trees.Census) -> TreeSeen:
    job, root = instruction.job, instruction.root
    seen = census.tree(root)
    for number in instruction.signals:
        trees.send(seen if number in (signal.SIGCONT, signal.SIGSTOP) else _below(job, seen), number)
    for _ in range(PASSES if instruction.every else 0):
        fresh = sorted(set(trees.Census().tree(root)) - set(seen))
        if not fresh:
            break
        for number in instruction.signals:
            trees.send(fresh, number)
        seen += fresh
    return TreeSeen(job.id, job.run, len(seen))


def _below(job: Job, pids: list[int]) -> list[int]:
    """All but the job's own shell, which notes how its command ended; the shell too once it is alone."""
    return [pid for pid in pids if pid != job.pid] or pids


def _unstartable(instruction: ReadEnd) -> str | None:
    """Why its command cannot be started. Of another user's files only their own shell can tell."""
    job = instruction.job
    if job.uid != os.geteuid():
        return None
    found = spawn.why_not(job.command, instruction.environment, job.cwd)
    return None if found is None else found[:1].lower() + found[1:].rstrip(".")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _remove(paths: Iterable[str]) -> list[Event]:
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            continue
    return []


def _clear(path: str, uid: int) -> list[Event]:
    journal.clear(path, uid)
    return []
