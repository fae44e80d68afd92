"""The life of a run, as the table `RUN` of model/lifecycle.py has it: its questions and effects, one function each.

What a user's agent says is a step of a run whose phase has asked for it, and nothing else. A phase that is not answered
in time has a step for that too, so every run ends. The devices of a run are not free before all of its processes are.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from gpulease.broker.core import instructions, jobs, packing
from gpulease.broker.core.events import (
    NO_FORK,
    NOT_NOTED,
    SUSPECT,
    UNSEEN,
    UNSTARTABLE,
    AgentLost,
    EndRead,
    Forced,
    Found,
    Launched,
    LaunchFailed,
    Root,
    RunEnded,
    RunNote,
    TreeSeen,
)
from gpulease.broker.core.leases import schedule_sample
from gpulease.broker.core.limits import log_limit_of
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Delay, Run
from gpulease.model.jobs import Job
from gpulease.model.lifecycle import IGNORED, PHASES, RUN, RUN_ENDS
from gpulease.render.jobs import signal_in

NOTES_KEPT = 5.0  # seconds until what is no longer needed is removed
ATTEMPTS = 2  # to force a run; if then nothing of it is to be seen it is over, whatever its user's agents do
FIRST_CHECK = 0.05  # seconds between the first looks at a tree that is being killed
LONGEST_CHECK = 0.5  # and between later ones
SHORTEST_DELAY, LONGEST_DELAY = 1.0, 30.0  # seconds until a start is tried again that something was lacking for
NOT_STARTED = {
    NOT_NOTED: "its shell ended before it could note that it began",
    NO_FORK: "its shell could not start a process: Resource temporarily unavailable",
}
TROUBLES = {
    "no-folder": "its folder {job.spec.cwd!r} cannot be entered",
    "no-command": "the command {job.spec.command[0]!r} does not exist or may not be run",
}
RunEvent = Launched | LaunchFailed | RunEnded | Found | TreeSeen | EndRead | Forced

# -------------------------------------------------------------------- steps


def advance(turn: Turn, id: int, event: str, said: Any = None) -> bool:
    """One step of a job's run, with all that follows; False if the table has none. `said`: what an agent reported."""
    state = turn.state
    before = state.jobs.runs.get(id, Run())
    found = RUN.get((before.phase, event))
    if found is None:
        if (before.phase, event) not in IGNORED:  # an agent is its user's program
            turn.emit(
                instructions.WriteLog(
                    f"the agent of job {id} reported {event}, which is unexpected in phase {before.phase}"
                )
            )
        return False
    phase, effects = found
    for effect in effects:
        EFFECTS[effect](turn, state.jobs.running[id], said)
    if phase in RUN_ENDS:
        assert id not in state.jobs.runs, f"a run of job {id} is over, and is still there"
    elif phase != before.phase:
        _enter(turn, id, phase)
        _ask(turn, state.jobs.running[id])
    return True


def _enter(turn: Turn, id: int, phase: str) -> None:
    state, deadline = turn.state, PHASES[phase].deadline
    seconds = getattr(state.settings, deadline) if isinstance(deadline, str) else inf if deadline is None else deadline
    run = state.jobs.runs.get(id, Run())._replace(phase=phase, due=turn.now + seconds, checks=0)
    state.jobs.runs.put(id, run)
    _wake(turn, run.due)


def _wake(turn: Turn, time: float) -> None:
    """One alarm for all runs: at the first deadline."""
    if time < turn.state.jobs.runs_due:
        turn.state.jobs.runs_due = time
        turn.emit(instructions.SetAlarm(time, "overdue", "runs"))


def overdue(turn: Turn) -> None:
    """Agents that hang, or whose user keeps them from acting, do not keep a run from ending."""
    state = turn.state
    state.jobs.runs_due = inf
    for id, run in list(state.jobs.runs.items()):
        if run.due <= turn.now:
            advance(turn, id, "deadline")
    _wake(turn, min((run.due for run in state.jobs.runs.values()), default=inf))


def check_trees(turn: Turn) -> None:
    """One alarm and one check for all that are being ended."""
    turn.state.jobs.tree_check_due = False
    for id, run in list(turn.state.jobs.runs.items()):
        if run.checks:
            advance(turn, id, "look")


# -------------------------------------------------------------------- what agents tell


def handle(turn: Turn, event: RunEvent) -> None:
    """A step of the run that it is about, if that is still the one that runs."""
    job, run = turn.state.jobs.running.get(event.id), turn.state.jobs.runs.get(event.id)
    name = None if job is None or run is None or job.run != event.run else RUN_EVENTS[type(event)](run, event)
    if job is not None and name is not None and advance(turn, job.id, name, event) and isinstance(event, Found):
        turn.state.jobs.delays.drop(job.user)  # its agent does what it is told


def _ended(run: Run, event: RunEnded) -> str:
    """An agent that found the shell of a run, and did not start it, learns no code: the note tells."""
    return "shell-gone" if event.code is None else "exited" if event.code >= 0 else "shell-killed"


def _found(run: Run, event: Found) -> str:
    dead = "found-ended" if event.noted.over else "found-dead"
    return "found-nothing" if event.pid is None else "found-alive" if event.alive else dead


def _seen(run: Run, event: TreeSeen) -> str:
    return "tree-seen" if run.watched else "tree-left" if event.left else "tree-gone"


RUN_EVENTS: Mapping[type, Callable[[Run, Any], str | None]] = {
    Launched: lambda run, event: "begun",
    LaunchFailed: lambda run, event: "launch-failed",
    RunEnded: _ended,
    Found: _found,
    TreeSeen: _seen,
    EndRead: lambda run, event: "end-read",
    Forced: lambda run, event: None if event.left or run.forced < ATTEMPTS else "vanished",
}


def agent_lost(turn: Turn, event: AgentLost) -> None:
    """A user who ends their agents again and again waits longer and longer for the next."""
    mine = [job for job in turn.state.jobs.running.values() if job.uid == event.uid]
    for job in mine:
        _change(turn, job, orphaned=True)
    for user in {job.user for job in mine}:
        turn.alarm(_delay(turn, user, "the process that starts its user's jobs ended"), "agent", str(event.uid))


def next_agent(turn: Turn, uid: str) -> None:
    """It is asked about all that the last one watched, launched or was about to, and not about its own launches."""
    for job in [one for one in turn.state.jobs.running.values() if one.uid == int(uid)]:
        if turn.state.jobs.runs[job.id].orphaned:
            _change(turn, job, orphaned=False)
            advance(turn, job.id, "new-agent")


# -------------------------------------------------------------------- what the broker does


def recover(turn: Turn, job: Job) -> None:
    """A job that ran when the last broker ended: it runs on, or ended meanwhile, or never began."""
    lease = turn.state.requests.leases.get(job.planner_id)
    if lease is None or lease.owner.boot_id != turn.state.about.boot_id:
        _lost(turn, job, "the machine was restarted")
    else:
        advance(turn, job.id, "recover" if job.ending is None else "recover-to-end")


def kill(turn: Turn, job: Job, why: str, remove: bool = False) -> None:
    """That it is to end is on disk before anybody hears of it, where anything can be written."""
    jobs.advance(turn, job, "order-end", ending=job.ending or why, removing=job.removing or remove)


def time_limit_reached(turn: Turn, id: str) -> bool:
    job = turn.state.jobs.running.get(int(id))
    if job is None or job.started is None or job.spec.time_limit is None or job.ending is not None:
        return False
    over = job.started + job.spec.time_limit <= turn.now
    if over:
        kill(turn, job, f"its time limit of {job.spec.time_limit:g} s was over")
    return over


def _start(turn: Turn, before: Job, after: Job) -> None:
    if after.spec.time_limit is not None:
        turn.alarm(after.spec.time_limit, "time-limit", str(after.id))
    advance(turn, after.id, "launch")
    schedule_sample(turn)


jobs.EFFECTS |= {
    "launch": _start,
    "end-tree": lambda turn, before, after: advance(turn, after.id, "order-end"),
    "stop-tree": lambda turn, before, after: advance(turn, after.id, "pause-changed"),
    "continue-tree": lambda turn, before, after: advance(turn, after.id, "pause-changed"),
}

# -------------------------------------------------------------------- questions


def _ask(turn: Turn, job: Job, said: object = None) -> None:
    question = PHASES[turn.state.jobs.runs[job.id].phase].question
    if question is not None:
        QUESTIONS[question](turn, job)


def _launch(turn: Turn, job: Job) -> None:
    environment = turn.state.jobs.environment(job)
    given = {"GPULEASE_TOKEN": _token(turn.state, job), **jobs.given(turn.state, job, environment)}
    turn.emit(instructions.Launch(job, _place(turn, job), environment, given))


def _find(turn: Turn, job: Job) -> None:
    turn.emit(instructions.FindRun(job, _place(turn, job), _root(turn.state, job)))


def _stop_or_continue(turn: Turn, job: Job) -> None:
    """The agent that got the last pause or resume may have died before it acted."""
    if job.state == "paused":
        _signal(turn, job, signal.SIGSTOP, every=True)
    elif job.history and job.history[-1].event == "resume":
        _signal(turn, job, signal.SIGCONT)


def _signal(turn: Turn, job: Job, *signals: int, every: bool = False) -> None:
    turn.emit(instructions.SignalTree(job, _place(turn, job), _root(turn.state, job), signals, every))


def _read_end(turn: Turn, job: Job) -> None:
    """Its note and its log are read only where the code alone does not tell."""
    code = turn.state.jobs.runs[job.id].code
    plain = code is not None and code >= 0 and code not in SUSPECT
    if plain and (code == 0 or job.ending is not None):
        advance(turn, job.id, "code-tells")
    else:
        turn.emit(instructions.ReadEnd(job, _place(turn, job), code, turn.state.jobs.environment(job)))


QUESTIONS: dict[str, Callable[[Turn, Job], None]] = {
    "launch": _launch,
    "cancel-launch": lambda turn, job: turn.emit(instructions.CancelLaunch(job)),
    "find": _find,
    "stop-or-continue": _stop_or_continue,
    "term-tree": lambda turn, job: _signal(turn, job, signal.SIGTERM, signal.SIGCONT),
    "kill-tree": lambda turn, job: _signal(turn, job, signal.SIGKILL),
    "read-end": _read_end,
}


def _notes(turn: Turn, uid: int) -> str:
    """The folder of the notes about a user's runs."""
    return f"{turn.world.job_folder(uid)}/runs"


def _place(turn: Turn, job: Job) -> instructions.RunPlace:
    limit = log_limit_of(turn.state, job, turn.world.groups_of(job.uid))
    return instructions.RunPlace(f"{_notes(turn, job.uid)}/{job.run_name}", limit)


def _token(state: State, job: Job) -> str:
    """The mark that its processes carry. No other broker of this host has the same."""
    return f"{state.about.kept}/jobs:{job.run_name};"


def _root(state: State, job: Job) -> Root:
    pid, since = state.jobs.runs[job.id].shell
    return Root(pid or job.pid or 0, since, _token(state, job), job.uid)


# -------------------------------------------------------------------- effects


def _change(turn: Turn, job: Job, **changes: Any) -> None:
    turn.state.jobs.runs.put(job.id, turn.state.jobs.runs[job.id]._replace(**changes))


def _adopt(turn: Turn, job: Job, said: Launched | Found) -> None:
    """That it began is on disk: a note that is gone later does not prove that it did not."""
    after = job._replace(pid=said.pid)
    if isinstance(said, Launched):
        after = after._replace(log_begin=said.log_begin, script_changed=said.script_changed)
    if after.pid != job.pid:
        jobs.write(turn, job, after)
    else:
        turn.state.jobs.change(after, job)
    _change(turn, job, shell=(said.pid, said.start_time), watched=True)
    turn.planned.kept_revision = -1  # the keeper of the claims is to know whose end frees the devices
    if job.spec.time_limit is not None and job.started is not None:
        turn.alarm(job.started + job.spec.time_limit - turn.now, "time-limit", str(job.id))


def _note_end(turn: Turn, job: Job, said: RunEnded) -> None:
    code = turn.state.jobs.runs[job.id].code if said.code is None else said.code
    _change(turn, job, code=code, watched=False)


def _note_found(turn: Turn, job: Job, said: Found) -> None:
    turn.state.jobs.change(job._replace(pid=said.pid), job)
    _change(turn, job, watched=False)


def _schedule_check(turn: Turn, job: Job, said: object) -> None:
    state, checks = turn.state, turn.state.jobs.runs[job.id].checks
    _change(turn, job, checks=checks + 1)
    if not state.jobs.tree_check_due:
        state.jobs.tree_check_due = True
        turn.alarm(min(LONGEST_CHECK, FIRST_CHECK * (1 + checks / 10)), "trees")


def _force(turn: Turn, job: Job, said: object) -> None:
    _change(turn, job, forced=turn.state.jobs.runs[job.id].forced + 1)
    turn.emit(instructions.ForceEnd(job, _root(turn.state, job)))


def _judge_launch(turn: Turn, job: Job, said: LaunchFailed) -> None:
    if job.ending is not None:
        _not_started(turn, job)
    elif said.temporary:
        _put_back(turn, job, said.why)
    else:
        _finish(turn, job, "cannot-start", f"it could not be started: {said.why}")


def _judge_unfound(turn: Turn, job: Job, said: Found) -> None:
    if said.noted.trouble == UNSEEN and job.ending is None:
        _lost(turn, job, "how it ended cannot be read")
    else:
        _not_started(turn, job)


EFFECTS: dict[str, Callable[[Turn, Job, Any], None]] = {
    "ask": _ask,
    "extend": lambda turn, job, said: _enter(turn, job.id, turn.state.jobs.runs[job.id].phase),
    "adopt": _adopt,
    "note-end": _note_end,
    "note-found": _note_found,
    "unwatch": lambda turn, job, said: _change(turn, job, watched=False),
    "look": lambda turn, job, said: _signal(turn, job),
    "look-later": _schedule_check,
    "replace-agent": lambda turn, job, said: turn.emit(instructions.ReplaceAgent(job.uid)),
    "force": _force,
    "judge": lambda turn, job, said: _judge(turn, job, said.noted, said.out_of_memory, said.unstartable),
    "judge-by-code": lambda turn, job, said: _judge(turn, job, RunNote(job.pid, turn.state.jobs.runs[job.id].code)),
    "judge-launch": _judge_launch,
    "judge-unfound": _judge_unfound,
}

# -------------------------------------------------------------------- what an end means


def _judge(turn: Turn, job: Job, noted: RunNote, out_of_memory: bool = False, unstartable: str | None = None) -> None:
    """What the end of a run means. A negative code is the shell's own signal, 128+n its command's."""
    code, number = _split(noted.code)
    if job.ending is not None:
        return _finish(turn, job, "killed", job.ending, exit_code=code, signal=number)
    if noted.trouble in NOT_STARTED:
        return _put_back(turn, job, NOT_STARTED[noted.trouble])
    if noted.trouble is not None:
        return _finish(turn, job, "cannot-start", _trouble(job, noted.trouble, unstartable))
    if code is None:
        return _lost(turn, job, "its process ended without a record of how")
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


def _split(code: int | None) -> tuple[int | None, int | None]:
    """Exit code as shells have it, and the signal in it."""
    if code is None:
        return None, None
    code = 128 - code if code < 0 else code
    return code, signal_in(code)


def _trouble(job: Job, name: str, unstartable: str | None) -> str:
    exact = unstartable if name == "no-command" else None
    return exact or TROUBLES.get(name, "its shell could not begin").format(job=job)


def _lost(turn: Turn, job: Job, why: str) -> None:
    _finish(turn, job, "retry-after-failure" if job.tries <= job.spec.retry else "lost", why)


def _put_back(turn: Turn, job: Job, why: str) -> None:
    """A resource was missing, which is not the job's fault: it waits again, as do all jobs of its user for a while."""
    _delay(turn, job.user, why)
    _not_started(turn, job)


def _delay(turn: Turn, user: str, why: str) -> float:
    """The seconds until something of a user's is tried again; longer each time, until it went well for a while."""
    before = turn.state.jobs.delays.get(user)
    if before is not None and before.until > turn.now:
        return before.until - turn.now
    again = before is not None and turn.now - before.until <= LONGEST_DELAY
    seconds = min(LONGEST_DELAY, 2 * before.seconds) if before is not None and again else SHORTEST_DELAY
    turn.state.jobs.delays.put(user, Delay(turn.now + seconds, why, seconds))
    return seconds


def _not_started(turn: Turn, job: Job) -> None:
    """Nothing of it was started: it gets its place in the queue back, or is held if it was paused."""
    if job.ending is not None:
        return _finish(turn, job, "killed", job.ending)
    before = job._replace(tries=job.tries - 1)
    return _finish(turn, before, "put-back", "it had not begun", forced=job.forced, place=job.place)


def _finish(turn: Turn, job: Job, event: str, why: str | None = None, **changes: Any) -> None:
    packing.ended(turn, job, event == "exit-zero", bool(changes.get("out_of_memory")))
    if changes.get("out_of_memory") and event == "retry-after-failure" and "request" not in changes:
        changes["request"] = packing.asking_for_more(turn, job)
    ended = {"ended": turn.now, "why": why, "pid": None, "ending": None, "forced": False, "place": None}
    jobs.advance(turn, job, event, **{**ended, **changes})
    if job.spec.time_limit is not None:
        turn.emit(instructions.CancelAlarm("time-limit", str(job.id)))
    if job.uid not in turn.state.jobs.notes_to_remove:
        turn.state.jobs.notes_to_remove.put(job.uid, None)
        turn.alarm(NOTES_KEPT, "tidy", str(job.uid))


def remove_notes(turn: Turn, uid: str) -> None:
    """Remove the notes about a user's runs that are over."""
    turn.state.jobs.notes_to_remove.drop(int(uid))
    kept = tuple(job.run_name for job in turn.state.jobs.running.values() if job.uid == int(uid))
    turn.emit(instructions.RemoveNotes(int(uid), _notes(turn, int(uid)), kept))
