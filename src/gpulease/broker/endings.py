"""How jobs end: what an exit code means, the one commit that ends a run and its lease, and who hears of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulease import job as jobs
from gpulease.broker import journal, spawn
from gpulease.broker.hooks import Hooks
from gpulease.broker.journal import Fate
from gpulease.errors import StateError
from gpulease.job import Job
from gpulease.stores.base import Change, Event

if TYPE_CHECKING:
    from gpulease.broker.queue import Key, Queue

TAIL = 1 << 16  # bytes of a failed job's output that are searched for out-of-memory
TIDY = 5.0  # seconds until what is no longer needed is removed
AGAIN = 5.0  # seconds before an end that could not be written is tried again
TROUBLES = {
    "no-log": "its log {job.log!r} cannot be written",
    "no-folder": "its folder {job.cwd!r} cannot be entered",
    "no-command": "the command {job.command[0]!r} does not exist or may not be run",
}
SUSPECT = (spawn.UNWRITTEN, 125, *spawn.UNSTARTABLE)  # codes that may be the shell's and not the command's


class Ending(NamedTuple):
    """An end that is known but not on disk yet."""

    job: Job
    event: str
    why: str | None
    again: bool
    changes: dict[str, Any]


class Endings:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._core = queue.core
        self.hooks: Hooks = Hooks(queue.core)
        self._late: dict[int, Ending] = {}
        self._broken: list[tuple[Job, str]] = []
        self._tidy_due = False

    # ---------------------------------------------------------------- a process ended

    def process_ended(self, key: Key) -> bool:
        """The shell of a job, or a hook; False when it was neither."""
        if self.hooks.process_ended(key):
            return True
        id = self._queue.by_key.pop(key, None)
        if id is None:
            return False
        job = self._queue.running[id]
        self._queue.killing.shell_gone(job, self._fate(job, spawn.reap(key[0])))
        return True

    def _fate(self, job: Job, code: int | None) -> Fate:
        """The journal is asked only where the code alone does not tell."""
        if code is not None and code >= 0 and code not in SUSPECT:
            return Fate(job.pid, code)
        told = journal.read(self._queue.journal(job.uid), job.uid).get(job.run_name, Fate(job.pid))
        if told.over or code is None:
            return told
        if code == spawn.UNWRITTEN and told.pid is None:
            return Fate(job.pid, trouble="no-journal")
        return Fate(job.pid, code)

    def judge(self, job: Job, told: Fate) -> None:
        """What the end of a run means. A negative code is the shell's own signal, 128+n its command's."""
        code = told.code
        if told.trouble is not None:
            return self.finish(job, "cannot-start", self._trouble(job, told.trouble))
        if code is None:
            return self.lost(job, "its process vanished without a trace")
        if code == 0:
            return self.finish(job, "exit-zero", exit_code=0)
        if code in spawn.UNSTARTABLE and (trouble := self._unstartable(job)):
            return self.finish(job, "cannot-start", trouble)
        code, number = _split(code)
        memory = jobs.ran_out_of_memory(journal.tail(job.log, job.uid, job.log_begin, TAIL))
        again = job.tries <= max(job.retry, self._core.settings.max_runs - 1)
        why = "it ran out of GPU memory" if memory else None
        self.finish(job, "exit-nonzero", why, again, exit_code=code, signal=number, out_of_memory=memory)

    def _trouble(self, job: Job, name: str) -> str:
        exact = self._unstartable(job) if name == "no-command" else None
        return exact or TROUBLES.get(name, "what happens to it cannot be noted; the disk may be full").format(job=job)

    def _unstartable(self, job: Job) -> str | None:
        """Why its command cannot be started. Of another user's files only their own shell can tell."""
        if job.uid != os.geteuid():
            return None
        found = spawn.why_not(job.command, self._queue.environment(job), job.cwd)
        return None if found is None else found[:1].lower() + found[1:].rstrip(".")

    def lost(self, job: Job, why: str) -> None:
        self.finish(job, "lost", why, again=job.tries <= job.retry)

    def not_begun(self, job: Job) -> None:
        """It was on disk as running, and the broker was killed before it started anything."""
        if job.ending is not None:
            return self.finish(job, "killed", job.ending)
        self.finish(job._replace(tries=job.tries - 1), "retry-after-failure", "it had not begun")

    def killed(self, job: Job, why: str, told: Fate) -> None:
        code, number = _split(told.code)
        self.finish(job, "killed", why, exit_code=code, signal=number)

    # ---------------------------------------------------------------- one commit

    def finish(self, job: Job, event: str, why: str | None = None, again: bool = False, **changes: Any) -> None:
        """One commit ends the run and gives back its devices; then everybody who cares hears of it."""
        ending = Ending(job, event, why, again, changes)
        done = self._done(ending)
        try:
            self._commit(job, done)
        except StateError as trouble:
            self._core.edge.log(f"the end of job {job.id} is not written, to be tried again: {trouble.what}")
            self._late[job.id] = ending
            return self._core.alarm(self._core.now() + AGAIN, "late", str(job.id))
        self._queue.running.pop(job.id, None)
        self._queue.killing.forget(job.id)
        self._queue.count(job.state, done.state)
        self._tidy_later()
        if done.state == "waiting":
            broken = self._queue.join(done)
            return self.end_broken([broken] if broken else [])
        self._announce([done])
        if done.removing:
            self.forget([done])
        return None

    def _done(self, ending: Ending) -> Job:
        job, event, why, again, changes = ending
        now = self._core.now()
        if again and event in ("exit-nonzero", "lost"):
            event = "retry-after-failure"
        done, _ = jobs.step(job, event, now, ended=now, why=why, pid=None, ending=None, **changes)
        if done.state == "waiting" and done.out_of_memory:
            done = done._replace(request=jobs.after_out_of_memory(job.request))
        return done

    def finish_late(self, id: str) -> None:
        job, event, why, again, changes = self._late.pop(int(id))
        self.finish(job, event, why, again, **changes)

    def _commit(self, job: Job, done: Job) -> None:
        change = Change("jobs", str(job.id), jobs.stored(done))
        why = done.why or (f"exit code {done.exit_code}" if done.exit_code else "it ended")
        lease = self._core.leases.get(job.planner_id)
        if lease is not None:
            return self._core.granting.give_back([lease], f"job {job.id} is {done.state}: {why}", [change])
        fields = {"id": job.planner_id, "kind": "job", "user": job.user, "pid": job.pid, "why": why}
        self._core.commit([change], [Event(self._core.now(), "ended", {**fields, "devices": list(job.devices)})])

    # ---------------------------------------------------------------- those who never start

    def end_waiting(self, ending: list[tuple[Job, str]]) -> None:
        """Jobs that will never start, each with the reason, however many, in one commit."""
        done = self._end_waiting(ending)
        self._announce(done)

    def _end_waiting(self, ending: list[tuple[Job, str]]) -> list[Job]:
        now = self._core.now()
        done = [jobs.step(job, "kill", now, ended=now, why=why)[0] for job, why in ending]
        if done:
            self._core.commit([Change("jobs", str(job.id), jobs.stored(job)) for job in done], [])
        for (before, _), after in zip(ending, done, strict=True):
            self._queue.count(before.state, after.state)
            if before.state == "waiting":
                self._queue.leave(before)
        return done

    def end_broken(self, broken: list[tuple[Job, str]]) -> None:
        """Jobs that come after one that failed. If that cannot be written now, it is tried again."""
        try:
            self.end_waiting(broken)
        except StateError as trouble:
            self._core.edge.log(f"not written, to be tried again: {trouble.what}")
            self._broken += broken
            self._core.alarm(self._core.now() + AGAIN, "broken")

    def end_broken_late(self) -> None:
        broken, self._broken = self._broken, []
        waiting = [(job, why) for job, why in broken if job.planner_id in self._core.line]
        self.end_broken(waiting)

    @staticmethod
    def because(other: Job) -> str:
        return f"job {other.id}, which it comes after, is {other.state}"

    # ---------------------------------------------------------------- telling

    def _announce(self, ended: list[Job]) -> None:
        """A chain of jobs that come after each other may be long, so it is walked and not recursed into."""
        while ended:
            broken: dict[int, tuple[Job, str]] = {}
            for job in ended:
                self._queue.watching.ended(job)
                self.hooks.add(job)
                broken.update({other.id: (other, why) for other, why in self._free_dependents(job)})
            try:
                ended = self._end_waiting(list(broken.values()))
            except StateError:
                self._broken += broken.values()
                return self._core.alarm(self._core.now() + AGAIN, "broken")
        return None

    def _free_dependents(self, job: Job) -> list[tuple[Job, str]]:
        """Let go who waited for `job` only; gives back who waited in vain."""
        vain = []
        for id in sorted(self._queue.dependents.pop(job.id, ())):
            other = self._queue.get(id)
            if other is None or other.state != "waiting":
                continue
            if job.state != "complete" and not other.after_any:
                vain.append((other, self.because(job)))
                continue
            self._queue.leave(other)
            broken = self._queue.join(other)
            vain += [broken] if broken else []
        return vain

    # ---------------------------------------------------------------- removing

    def forget(self, gone: list[Job]) -> None:
        """Remove ended jobs and what the queue itself wrote for them."""
        self._core.commit([Change("jobs", str(job.id), None) for job in gone], [])
        for job in gone:
            self._queue.count(job.state, None)
            if job.log == self._queue.default_log(job.uid, job.id):
                _remove(job.log)
        self._core.store.forget_environments()

    def _tidy_later(self) -> None:
        if not self._tidy_due:
            self._tidy_due = True
            self._core.alarm(self._core.now() + TIDY, "tidy")

    def tidy(self) -> None:
        """Empty the journals of users of whom nothing runs."""
        self._tidy_due = False
        busy = {job.uid for job in self._queue.running.values()}
        try:
            users = [int(name) for name in os.listdir(self._queue.directory) if name.isdecimal()]
        except OSError:
            return
        for uid in users:
            if uid not in busy:
                journal.clear(self._queue.journal(uid), uid)
        if self._queue.running:
            self._tidy_later()

    def close(self) -> None:
        """The broker ends as it should: nobody is left untold."""
        self.hooks.run()
        self.tidy()


def _split(code: int | None) -> tuple[int | None, int | None]:
    """Exit code as shells have it, and the signal in it."""
    if code is None:
        return None, None
    code = 128 - code if code < 0 else code
    return code, code - 128 if 128 < code < 193 else None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
