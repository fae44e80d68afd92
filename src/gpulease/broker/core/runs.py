"""How runs of jobs end, and how they are ended: what a code means, and what is done until all of a run is gone.

The devices of a run are not free before all of its processes are.
"""

from __future__ import annotations

import signal
from typing import Any

from gpulease.broker.core import jobs as job_life
from gpulease.broker.core import packing, run_questions
from gpulease.broker.core.events import AgentLost, EndRead, Forced, Found, Launched, LaunchFailed, RunEnded, TreeSeen
from gpulease.broker.core.instructions import Force, Silence, Tidy
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Delay, Dying
from gpulease.broker.runs import NO_FORK, NOT_NOTED, SUSPECT, UNSEEN, UNSTARTABLE, Fate
from gpulease.model import job as jobs
from gpulease.model.job import Job
from gpulease.model.values import Request
from gpulease.planner.board import admits
from gpulease.render.jobs import signal_in

TIDY = 5.0  # seconds until what is no longer needed is removed
FORCE = 30.0  # seconds after the grace, and between attempts, until a run is ended without its user's agent
ATTEMPTS = 2  # after which a run of which nothing is to be seen is over, whatever its user's agents do
READING = 30.0  # seconds until the code alone must tell how a run ended
LOOK_AGAIN = 0.05  # seconds between the first looks at a tree that is being killed
LONGEST_LOOK = 0.5  # and between later ones
SHORTEST_DELAY, LONGEST_DELAY = 1.0, 30.0  # seconds until a start is tried again that something was lacking for
NOT_BEGUN = {
    NOT_NOTED: "its shell ended before it could note that it began",
    NO_FORK: "its shell could not start a process: Resource temporarily unavailable",
}
TROUBLES = {
    "no-log": "its log {job.spec.log!r} cannot be written",
    "no-folder": "its folder {job.spec.cwd!r} cannot be entered",
    "no-command": "the command {job.spec.command[0]!r} does not exist or may not be run",
}

# -------------------------------------------------------------------- a run begins


def launched(turn: Turn, event: Launched, written: bool = True) -> None:
    """That it began is on disk: a note that is gone later is no proof that it did not."""
    job = run_questions.answered(turn, event.id, event.run, "launch")
    if job is not None:
        after = job._replace(pid=event.pid, log_begin=event.log_begin, script_changed=event.script_changed)
        _adopt(turn, after, (event.pid, event.start_time), written)


def launch_failed(turn: Turn, event: LaunchFailed) -> None:
    job = run_questions.answered(turn, event.id, event.run, "launch")
    if job is not None and event.passing:
        _put_back(turn, job, event.why)
    elif job is not None:
        _finish(turn, job, "cannot-start", f"it could not be started: {event.why}")


def _put_back(turn: Turn, job: Job, why: str) -> None:
    """Something was lacking, which is no fault of the job's: it waits again, and all of its user's do for a while."""
    _delay(turn, job.user, why)
    _not_begun(turn, job)


def _delay(turn: Turn, user: str, why: str) -> float:
    """The seconds until something of a user's is tried again; longer each time, until it went well for a while."""
    before = turn.state.delays.get(user)
    if before is not None and before.until > turn.now:
        return before.until - turn.now
    again = before is not None and turn.now - before.until <= LONGEST_DELAY
    seconds = min(LONGEST_DELAY, 2 * before.seconds) if before is not None and again else SHORTEST_DELAY
    turn.state.delays.put(user, Delay(turn.now + seconds, why, seconds))
    return seconds


def _adopt(turn: Turn, job: Job, key: tuple[int, int | None], written: bool = True) -> None:
    state, before = turn.state, turn.state.running[job.id]
    if written and job.pid != before.pid:
        state.write_job(job, before)
    else:
        state.change_job(job, before)
    state.roots.put(job.id, key)
    turn.planned.kept_revision = -1  # the keeper of the claims is to know whose end frees the devices
    if job.spec.time_limit is not None and job.started is not None:
        turn.alarm(job.started + job.spec.time_limit - turn.now, "time-limit", str(job.id))
    if job.id in state.dying or job.ending is not None:
        job_life.advance(turn, job, "order-end")
    if job.id in state.unsent:
        signals, every = state.unsent[job.id]
        state.unsent.drop(job.id)
        run_questions.signal_tree(turn, job, *signals, every=every)


def _running(turn: Turn, id: int, run: int) -> Job | None:
    """The job, if that run of it is still the one that runs."""
    job = turn.state.running.get(id)
    return job if job is not None and job.run == run else None


# -------------------------------------------------------------------- a run of a former broker


def recover(turn: Turn, job: Job) -> None:
    """A job that ran when the last broker ended: it runs on, or ended meanwhile, or never began."""
    lease = turn.state.leases.get(job.planner_id)
    if lease is None or lease.owner.boot_id != turn.state.about.boot_id:
        return _lost(turn, job, "the machine was started anew")
    return _find_again(turn, job)


def agent_lost(turn: Turn, event: AgentLost) -> None:
    """A user who ends their agents again and again waits longer and longer for the next."""
    users = {job.user for job in turn.state.running.values() if job.uid == event.uid}
    for user in users:
        turn.alarm(_delay(turn, user, "the process that starts its user's jobs ended"), "agent", str(event.uid))


def next_agent(turn: Turn, uid: str) -> None:
    """It finds everything that the last one watched, launched or was about to."""
    state = turn.state
    for job in [one for one in state.running.values() if one.uid == int(uid)]:
        dying = state.dying.get(job.id)
        if dying is not None and dying.reading:
            run_questions.read_end(turn, job, dying.code)
        else:
            _find_again(turn, job)


def _find_again(turn: Turn, job: Job) -> None:
    """The last pause or resume is sent once more: the process that was told of it may have died before it acted."""
    paused, resumed = job.state == "paused", bool(job.history) and job.history[-1].event == "resume"
    if job.id not in turn.state.dying and job.ending is None and (paused or resumed):
        turn.state.unsent.put(job.id, ((signal.SIGSTOP if paused else signal.SIGCONT,), paused))
    run_questions.find(turn, job)


def found(turn: Turn, event: Found) -> None:
    job, dying = run_questions.answered(turn, event.id, event.run, "find"), turn.state.dying.get(event.id)
    if job is None:
        return None
    turn.state.delays.drop(job.user)
    if event.pid is None and event.fate.trouble == UNSEEN:
        return (
            _finish(turn, job, "killed", job.ending) if job.ending else _lost(turn, job, "how it ended cannot be read")
        )
    if event.pid is None:
        return _not_begun(turn, job)
    if event.alive:
        return _adopt(turn, job._replace(pid=event.pid), (event.pid, event.start_time))
    job = job._replace(pid=event.pid)
    turn.state.change_job(job, job)
    code = dying.code if dying is not None else None
    if event.fate.over and job.ending is None:
        return _over(turn, job, code)
    return _press_on(turn, job, code, at_once=True)


def _not_begun(turn: Turn, job: Job) -> None:
    """Nothing of it was started: it has its place in the line again, or is held if it was paused."""
    if job.ending is not None:
        return _finish(turn, job, "killed", job.ending)
    before = job._replace(tries=job.tries - 1)
    return _finish(turn, before, "put-back", "it had not begun", forced=job.forced, place=job.place)


# -------------------------------------------------------------------- ending a run


def kill(turn: Turn, job: Job, why: str, remove: bool = False) -> None:
    """That it is to end is on disk before anybody hears of it."""
    job_life.advance(turn, job, "order-end", ending=job.ending or why, removing=job.removing or remove)


def over_time(turn: Turn, id: str) -> None:
    job = turn.state.running.get(int(id))
    why = None if job is None else why_over_time(turn, job)
    if job is not None and why is not None:
        kill(turn, job, why)


def why_over_time(turn: Turn, job: Job) -> str | None:
    limit = job.spec.time_limit
    if job.started is None or limit is None or job.ending is not None:
        return None
    return f"its time limit of {limit:g} s was over" if job.started + limit <= turn.now else None


def grace_over(turn: Turn, id: str) -> None:
    job, dying = turn.state.running.get(int(id)), turn.state.dying.get(int(id))
    if job is not None and dying is not None and not dying.reading:
        turn.state.dying.put(job.id, dying._replace(at_once=True, since=turn.now))
        job_life.press(turn, job)
        run_questions.look_later(turn)


def overdue(turn: Turn) -> None:
    """Agents that hang, or whose user keeps them from acting, do not keep a run from ending."""
    state = turn.state
    state.set("overdue_due", False)
    run_questions.replace_silent(turn)
    for id, dying in list(state.dying.items()):
        job, seconds = state.running[id], turn.now - dying.since
        if dying.reading and seconds >= READING:
            _judge(turn, job, Fate(job.pid, dying.code))
        elif dying.at_once and not dying.reading and seconds >= FORCE:
            state.dying.put(id, dying._replace(since=turn.now, forced=dying.forced + 1))
            turn.emit(Force(job, run_questions.root(state, job)))
    if state.asked or state.dying:
        run_questions.look_later(turn)


def forced(turn: Turn, event: Forced) -> None:
    job, dying = _running(turn, event.id, event.run), turn.state.dying.get(event.id)
    if job is None or dying is None or dying.reading or event.left or dying.forced < ATTEMPTS:
        return
    _over(turn, job, dying.code)


def run_ended(turn: Turn, event: RunEnded) -> None:
    """What a command that ended by itself left running goes on; what a killed shell left is ended.

    An agent that found the shell of a run, and did not start it, learns no code: the note tells.
    """
    state, code = turn.state, event.code
    job, dying = _running(turn, event.id, event.run), state.dying.get(event.id)
    if job is None or (dying is not None and dying.shell_gone):
        return
    if dying is not None:
        _press_on(turn, job, code, dying.at_once)
    elif code is None:
        run_questions.find(turn, job)
    elif code >= 0:
        _over(turn, job, code)
    else:
        _press_on(turn, job, code, at_once=True)


def _press_on(turn: Turn, job: Job, code: int | None, at_once: bool) -> None:
    """Its shell is gone; what else there is of it has to go too."""
    before = turn.state.dying.get(job.id)
    since, forced = (turn.now, 0) if before is None else (before.since, before.forced)
    turn.state.dying.put(job.id, Dying(True, code, at_once, since=since, forced=forced))
    job_life.press(turn, job)
    run_questions.look_later(turn)


def tree_seen(turn: Turn, event: TreeSeen) -> None:
    """Once its shell and all of its tree are gone, the job is."""
    state = turn.state
    job, dying = _running(turn, event.id, event.run), state.dying.get(event.id)
    if job is None or dying is None or dying.reading:
        return
    if dying.shell_gone and not event.left:
        return _over(turn, job, dying.code)
    if dying.shell_gone or dying.at_once:
        state.dying.put(job.id, dying._replace(looks=dying.looks + 1))
        if not state.look_at_trees_due:
            state.set("look_at_trees_due", True)
            turn.alarm(min(LONGEST_LOOK, LOOK_AGAIN * (1 + dying.looks / 10)), "trees")
    return


def look_at_trees(turn: Turn) -> None:
    """One alarm and one look for all that are being ended."""
    state = turn.state
    state.set("look_at_trees_due", False)
    for id, dying in list(state.dying.items()):
        if (dying.shell_gone or dying.at_once) and not dying.reading:
            job_life.press(turn, state.running[id])


# -------------------------------------------------------------------- what an end means


def _over(turn: Turn, job: Job, code: int | None = None) -> None:
    """All of the run is gone. Its journal and its log are read only where the code alone does not tell."""
    plain = code is not None and code >= 0 and code not in SUSPECT
    if plain and (code == 0 or job.ending is not None):
        return _judge(turn, job, Fate(job.pid, code))
    turn.state.dying.put(job.id, Dying(shell_gone=True, code=code, reading=True, since=turn.now))
    return run_questions.read_end(turn, job, code)


def end_read(turn: Turn, event: EndRead) -> None:
    job = run_questions.answered(turn, event.id, event.run, "read")
    if job is not None:
        _judge(turn, job, event.fate, event.out_of_memory, event.unstartable)


def _judge(turn: Turn, job: Job, fate: Fate, out_of_memory: bool = False, unstartable: str | None = None) -> None:
    """What the end of a run means. A negative code is the shell's own signal, 128+n its command's."""
    code, number = _split(fate.code)
    if job.ending is not None:
        return _finish(turn, job, "killed", job.ending, exit_code=code, signal=number)
    if fate.trouble in NOT_BEGUN:
        return _put_back(turn, job, NOT_BEGUN[fate.trouble])
    if fate.trouble is not None:
        return _finish(turn, job, "cannot-start", _trouble(job, fate.trouble, unstartable))
    if code is None:
        return _lost(turn, job, "its process vanished without a trace")
    if code == 0:
        return _finish(turn, job, "exit-zero", exit_code=0)
    if code in UNSTARTABLE and unstartable:
        return _finish(turn, job, "cannot-start", unstartable)
    why = "it ran out of GPU memory" if out_of_memory else None
    end = {"exit_code": code, "signal": number, "out_of_memory": out_of_memory}
    if out_of_memory and packing.shares(turn, job):  # once more, alone, and that costs it no try
        alone = job.spec.request._replace(pack=False)
        return _finish(turn, job, "retry-after-failure", why, **end, tries=job.tries - 1, request=alone)
    again = job.tries <= max(job.spec.retry, turn.state.settings.max_runs - 1)
    return _finish(turn, job, "retry-after-failure" if again else "exit-nonzero", why, **end)


def _trouble(job: Job, name: str, unstartable: str | None) -> str:
    exact = unstartable if name == "no-command" else None
    return exact or TROUBLES.get(name, "its shell could not begin").format(job=job)


def _lost(turn: Turn, job: Job, why: str) -> None:
    _finish(turn, job, "retry-after-failure" if job.tries <= job.spec.retry else "lost", why)


def _finish(turn: Turn, job: Job, event: str, why: str | None = None, **changes: Any) -> None:
    packing.ended(turn, job, event == "exit-zero", bool(changes.get("out_of_memory")))
    if changes.get("out_of_memory") and event == "retry-after-failure" and "request" not in changes:
        changes["request"] = _asking_for_more(turn, job)
    ended = {"ended": turn.now, "why": why, "pid": None, "ending": None, "forced": False, "place": None}
    job_life.advance(turn, job, event, **{**ended, **changes})
    if job.spec.time_limit is not None:
        turn.emit(Silence("time-limit", str(job.id)))
    turn.state.untidy.put(job.uid, None)
    if not turn.state.tidy_due:
        turn.state.set("tidy_due", True)
        turn.alarm(TIDY, "tidy")


def _asking_for_more(turn: Turn, job: Job) -> Request:
    """After it ran out of memory: of a share a whole device, and of whole ones larger ones, where there are such."""
    state, request = turn.state, jobs.after_out_of_memory(job.spec.request)
    least = min((one.memory_total or 0 for one in state.devices.values() if one.label in job.devices), default=0)
    more = request._replace(min_memory=least + 1)
    larger = [one for one in state.devices.values() if one.uuid not in state.excluded and admits(more, one)]
    asks = job.spec.request.memory is None and not request.mig and least and len(larger) >= request.gpus
    return more if asks else request


def _split(code: int | None) -> tuple[int | None, int | None]:
    """Exit code as shells have it, and the signal in it."""
    if code is None:
        return None, None
    code = 128 - code if code < 0 else code
    return code, signal_in(code)


# -------------------------------------------------------------------- beside them


def tidy(turn: Turn) -> None:
    """Remove the notes about runs that are over."""
    turn.state.set("tidy_due", False)
    running: dict[int, list[str]] = {uid: [] for uid in turn.state.untidy}
    for job in turn.state.running.values():
        if job.uid in running:
            running[job.uid].append(job.run_name)
    for uid, names in running.items():
        turn.state.untidy.drop(uid)
        turn.emit(Tidy(uid, run_questions.notes(turn, uid), tuple(names)))


def remember_memory(turn: Turn) -> None:
    """A sample came in: the most memory that each job was seen to use."""
    state = turn.state
    for job in list(state.running.values()):
        lease = state.leases.get(job.planner_id)
        used = 0 if lease is None else sum(_used(turn, job, uuid, lease.memory is None) for uuid in lease.devices)
        if used > (job.peak_memory or 0):
            state.change_job(job._replace(peak_memory=used), job)
        if lease is not None and lease.packed:
            packing.see(turn, job, lease, used)


def _used(turn: Turn, job: Job, uuid: str, whole: bool) -> int:
    """On a whole device all of its user's processes are the job's; on a share those of its session."""
    device = turn.state.devices.get(uuid)
    processes = (device.processes if device is not None else None) or ()
    ours = turn.state.placeholders  # of the same user, where the broker is the user's own
    others = [one for one in processes if (one.pid, one.start_time) not in ours]
    mine = [one for one in others if one.user == job.user and (whole or one.session == job.pid)]
    return sum(process.memory or 0 for process in mine)
