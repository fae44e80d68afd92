"""What the broker learns from ended jobs and leases for new ones: how long they run, how good estimates were.

The sketches are the planner's (planner/lengths.py). Kept in the store, a row for each, the changed ones every few
seconds; what was not seen for long is forgotten, and a user can have their own forgotten at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulease.broker.core.shapes import parts_of, shape_of
from gpulease.broker.core.turn import Turn
from gpulease.model.jobs import Job
from gpulease.model.values import Lease, Request
from gpulease.planner.forecast import BY_LATEST, BY_LIKELY, Forecast, judged, missed, updated_forecast
from gpulease.planner.lengths import (
    ALL,
    EMPTY,
    LATEST,
    LIKELY,
    Lengths,
    Sketch,
    faded,
    learned,
    of_declared,
    of_shape,
    of_user,
    seen,
)
from gpulease.planner.packing import known
from gpulease.protocol.messages import ShapeRow, Starts, UsualRow

IN_LINE = 256  # shapes in the line at once, since each costs every plan a little; others count as their user's
OF_USER = 200  # shapes of one user that are remembered
OF_ALL = 4000  # sketches in all
FORGOTTEN = 0.05  # weight below which one is forgotten: after about four months without a run
GIB = 1 << 30
MAX_FORECASTS = 500  # of whom it is remembered which start they were told


def shape(turn: Turn, user: str, command: Sequence[str], cwd: str, request: Request, kind: str = "job") -> str | None:
    """The key of similar requests, unless the queue has too many keys already."""
    found, there = shape_of(user, command, cwd, request, kind), turn.state.requests.line.shapes
    return found if found in there or len(there) < IN_LINE else None


def expected(turn: Turn, user: str, request: Request) -> float | None:
    """Seconds that a request should run which declares a time."""
    if request.duration is None:
        return None
    return Lengths(turn.state.learned.sketches, (), turn.now).declared(user, request.duration)


def learn(turn: Turn, lease: Lease, cut: bool) -> None:
    """A lease ended. `cut`: somebody ended it, so it tells something only if it was long already."""
    state, now = turn.state, turn.now
    if cut and now - lease.since < Lengths(state.learned.sketches, (), now).of_run(lease):
        return
    for name, sketch in learned(state.learned.sketches, lease, now).items():
        _keep(turn, name, sketch)
    _forget_superfluous(turn, lease.owner.user)


def _keep(turn: Turn, name: str, sketch: Sketch | None) -> None:
    turn.state.learned.learn(name, sketch)
    turn.save_soon()


def _forget_superfluous(turn: Turn, user: str) -> None:
    """Keep a bounded number for each user and in total: drop the ones with the least data, the oldest first."""
    sketches = turn.state.learned.sketches
    mine = [name for name in sketches if name.startswith(f"shape {user}\t")]
    for names, most in ((mine, OF_USER), (sketches, OF_ALL)):
        if len(names) > most:
            least = min(
                names, key=lambda name: (name == ALL, faded(sketches[name], turn.now).weight, sketches[name].time)
            )
            _forget(turn, least)


def _forget(turn: Turn, name: str) -> None:
    _keep(turn, name, None)
    turn.state.learned.peaks.drop(name.removeprefix("shape "))


def prune(turn: Turn) -> None:
    for name, sketch in list(turn.state.learned.sketches.items()):
        if faded(sketch, turn.now).weight < FORGOTTEN:
            _forget(turn, name)


# -------------------------------------------------------------------- what was said


def record_forecast(turn: Turn, id: str, forecast: Forecast, basis: int) -> None:
    """A client hears when a request should start: keep the first such estimate, to compare it with the real start."""
    said = turn.planned.said
    now = updated_forecast(said.get(id), forecast, basis, turn.now)
    if now is not None and (id in said or len(said) < MAX_FORECASTS):
        said[id] = now


def started(turn: Turn, id: str) -> None:
    said = turn.planned.said.pop(id, None)
    if said is not None:
        _judge(turn, judged(said.at, said.start, turn.now))


def never_started(turn: Turn, id: str) -> None:
    """It will never start: what was said of it is wrong if the time for that is over, else nothing can be compared."""
    said = turn.planned.said.pop(id, None)
    if said is not None:
        _judge(turn, missed(said.at, said.start, turn.now))


def _judge(turn: Turn, found: dict[str, float]) -> None:
    for name, amount in found.items():
        _keep(turn, name, seen(turn.state.learned.sketches.get(name, EMPTY), amount, turn.now))


def accuracy(turn: Turn) -> Starts:
    """How many starts were compared, older ones for less, and which part of them came in time.

    Requests that should have started by now and still wait count too: `late` says how many.
    """
    late = [missed(said.at, said.start, turn.now) for said in turn.planned.said.values()]
    sketches = {name: faded(turn.state.learned.sketches.get(name, EMPTY), turn.now) for name in (BY_LIKELY, BY_LATEST)}
    compared, by = {}, {}
    for name, one in sketches.items():
        compared[name] = one.weight + sum(name in found for found in late)
        by[name] = sum(many for at, many in one.counts if at < 0) / compared[name] if compared[name] else 0.0
    still = sum(BY_LATEST in found for found in late)
    return {
        "compared": compared[BY_LIKELY], "by_likely": by[BY_LIKELY], "by_latest": by[BY_LATEST], "late": still,
    }  # fmt: skip


# -------------------------------------------------------------------- for its user


def rows(turn: Turn, user: str) -> list[ShapeRow]:
    """What is known of a user's shapes, the latest first."""
    state, lengths = turn.state, Lengths(turn.state.learned.sketches, (), turn.now)
    found: list[ShapeRow] = []
    for name, sketch in state.learned.sketches.items():
        key = name.removeprefix("shape ")
        owner, asked, runs = parts_of(key)
        if name == key or owner != user:
            continue
        length, peak = lengths.alone(name), state.learned.peaks.get(key)
        now = faded(sketch, turn.now)
        found.append({
            "command": runs, "request": asked, "runs": round(now.weight, 1), "seconds_mean": now.total / now.weight,
            "seconds_50": length.after(0.0, 0.5), "seconds_90": length.after(0.0, 0.9), "last": sketch.time,
            "memory": None if peak is None else peak.memory,
        })  # fmt: skip
    return sorted(found, key=lambda row: (-row["last"], row["command"]))


def usual(turn: Turn, job: Job) -> UsualRow | None:
    """How long jobs like this one ran, and how much memory they used."""
    state = turn.state
    key = shape_of(job.user, job.spec.command, job.spec.cwd, job.spec.request)
    name, peak = of_shape(key), known(state.learned.peaks, key, turn.now)
    length = Lengths(state.learned.sketches, (), turn.now).alone(name) if name in state.learned.sketches else None
    if length is None and peak is None:
        return None
    wanted = 0 if peak is None else -(-int(peak.memory * 1.05) // GIB)  # in GiB, with a little to spare
    least = min((device.memory_total or 0 for device in state.devices.by_uuid.values()), default=0)
    room = least - int(least * state.policy.memory_reserve)
    return {
        "seconds_50": None if length is None else length.after(0.0, LIKELY),
        "seconds_90": None if length is None else length.after(0.0, LATEST),
        "memory": None if peak is None else peak.memory,
        "mem": f"{wanted}G" if wanted else None,
        "shares": room // (wanted * GIB) if wanted else 0,
    }


def forget(turn: Turn, user: str) -> int:
    """Everything that was learnt of a user."""
    whole, begin = (of_user(user), of_declared(user)), (of_shape(f"{user}\t"), f"{of_user(user)} ")
    there = [name for name in turn.state.learned.sketches if name in whole or name.startswith(begin)]
    for name in there:
        _forget(turn, name)
    turn.state.learned.write()  # at once: what a user had forgotten does not come back
    return len(there)
