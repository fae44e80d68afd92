"""Jobs as clients see them: `ls` and `show`, in pieces where there are many."""

from __future__ import annotations

from typing import Any, cast

from gpulease.broker.core import bulk, caps, jobs, learned, packing, requests, status, transfer
from gpulease.broker.core.events import Listing, Received
from gpulease.broker.core.turn import Turn
from gpulease.errors import TooMuch
from gpulease.model import jobs as model_jobs
from gpulease.model.job_selection import job_number
from gpulease.model.jobs import Job
from gpulease.model.peer import Peer
from gpulease.model.store import Which
from gpulease.planner.forecast import NO_FORECAST
from gpulease.protocol.messages import Ids, JobRow, ListRequest, ShowRequest
from gpulease.protocol.wire import listed, to_text
from gpulease.render.hidden import of_job, viewer

SHOWN = 50
SHOWN_ENDED = 10
MAX_SHOWN = 5000  # of one answer, which must fit a message
MAX_LISTED = 1000  # of each kind, where no jobs were named
MAX_BYTES = 4 << 20  # characters of commands in one answer


def row(turn: Turn, job: Job, peer: Peer) -> JobRow:
    fields = {name: value for name, value in model_jobs.document(job).items() if name in jobs.SHOWN}
    if job.state in model_jobs.WAITING:
        fields["devices"] = []  # one that waits again has none, and had those of its last run
    fields["runs"] = job.run - (job.state in model_jobs.RUNNING and job.pid is None)  # its log is not made yet
    fields["changed"] = transfer.changed_at(job)
    fields["at_most"] = caps.limit_of(turn.state, job)
    waits = job.state == "waiting" and job.planner_id in turn.state.requests.line
    reason = requests.reason(turn, job.planner_id) if waits else None
    fields["packed"] = packing.describe(turn, job)
    fields["why_waiting"] = None if reason is None else reason.sentence
    fields["why_short"] = None if reason is None else reason.short
    fields |= NO_FORECAST.moments if reason is None else reason.moments
    return cast(JobRow, of_job(fields, viewer(turn.state.settings, peer)))


def ls(turn: Turn, event: Received[ListRequest]) -> None:
    message = event.message
    if message.get("ids"):
        return _ids(turn, event)
    if message.get("select"):
        return _rows(turn, event, bulk.choice(turn, event, look=True), _most(message), True, **_counts(turn))
    listing = event.progress
    if not isinstance(listing, Listing):
        most = min(_most(message), MAX_LISTED)
        listing = Listing(_shown(turn, most, bool(message.get("all"))), {"most": most, **_counts(turn)})
    return bulk.show(turn, event, "jobs", listing, lambda id: _listed(turn, id, event.peer))


def _listed(turn: Turn, id: int, peer: Peer) -> JobRow | None:
    job = turn.state.jobs.get(id)
    return None if job is None else row(turn, job, peer)


def _most(message: ListRequest) -> int:
    return max(1, min(MAX_SHOWN, message.get("most") or SHOWN))


def _rows(
    turn: Turn, event: Received[Any], chosen: bulk.Chosen, most: int, may_be_none: bool = False, **more: object
) -> None:
    """The first of the jobs that were chosen, with all about them; `may_be_none`, unless ids were named."""
    piece = bulk.take(turn, event, chosen)
    rows = [_row_for(turn, job, event) for job in piece.jobs]
    sent = sum(map(len, piece.progress.done))
    size = sum(sum(map(len, shown["command"])) for shown in rows)
    texts = list(map(to_text, rows[: most - sent]))
    if piece.progress.size + size > MAX_BYTES:
        raise TooMuch(f"The answer would have more than {MAX_BYTES >> 20} MiB.", "Ask for fewer jobs at once.")
    piece = piece._replace(over=piece.over or sent + len(rows) >= most)
    progress = bulk.continue_later(turn, event, piece, texts, size=size)
    if progress is not None:
        if chosen.ranges or chosen.last or not may_be_none:
            bulk.refuse_nothing(turn, progress, chosen)
        turn.reply(event.peer, {"jobs": listed(bulk.gathered(progress)), **more})


def _row_for(turn: Turn, job: Job, event: Received[Any]) -> JobRow:
    shown = row(turn, job, event.peer)
    if event.message["do"] == "show":
        shown["usual"] = learned.usual(turn, job) if tuple(shown["command"]) == job.spec.command else None
    if event.message.get("environment"):
        shown["environment"] = turn.state.jobs.environment(job) if job.uid == event.peer.uid else None
    return shown


def _shown(turn: Turn, most: int, all: bool) -> list[int]:
    """Running ones, the line in its order, the held, the last that ended."""
    state = turn.state
    waiting = [job_number(entry.id) for entry in state.requests.line.front(most) if entry.kind == "job"]
    held = [one.id for one in state.store.job_rows(Which(("held",)), most)]
    ended = state.store.job_rows(Which(model_jobs.ENDS), most if all else min(most, SHOWN_ENDED), newest=True)
    return [*sorted(state.jobs.running)[:most], *waiting, *held, *(one.id for one in ended)]


def _ids(turn: Turn, event: Received[Any]) -> None:
    """One's own, without anything about them: there may be a hundred thousand."""
    mine = event._replace(message={**event.message, "select": {**(event.message.get("select") or {}), "mine": True}})
    piece = bulk.take_rows(turn, mine, bulk.choice(turn, mine))
    progress = bulk.continue_later(turn, event, piece, [row.id for row in piece.jobs])
    if progress is not None:
        turn.reply(event.peer, Ids(ids=bulk.gathered(progress)))


def _counts(turn: Turn) -> dict[str, object]:
    return {
        "counts": {state: n for state, n in turn.state.jobs.counts.items() if n},
        "paused": turn.state.settings.paused,
        "time": turn.now,
        "simulated": status.simulated(turn.state),
        "state_trouble": turn.state.changes.unwritable,
    }


def show(turn: Turn, event: Received[ShowRequest]) -> None:
    _rows(turn, event, bulk.choice(turn, event), MAX_SHOWN)
