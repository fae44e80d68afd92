"""Requests about many jobs, done in pieces: each is a turn and a commit of its own, and the answer comes at the end.

Between two pieces it is the others' turn. Jobs are gone through in the order of their ids, up to the last that there
was at the beginning. An error in a later piece is the answer; what was done before stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpulease.broker.core.events import AddProgress, BulkProgress, Listing, Received
from gpulease.broker.core.instructions import Continue
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.errors import GpuleaseError, NotFound, NotPermitted, UsageError
from gpulease.model import jobs as model_jobs
from gpulease.model.fields import is_unicode
from gpulease.model.job_selection import EVERYBODY
from gpulease.model.jobs import Job
from gpulease.model.peer import Peer
from gpulease.model.store import ListedJob, Which
from gpulease.protocol.messages import Select
from gpulease.protocol.wire import listed, to_text

PIECE = 100  # jobs of one piece
ROWS = 2000  # of one piece that needs little of each
CROWDED = 12  # pieces are this many times smaller while other users are connected: they wait for one at a time
WINDOW = 5000  # ids that are looked through for one piece
MAX_RANGES = 500
CHOICES = {"ids", "all", "last", "label", "state", "user", "mine"}

Range = tuple[int, int]


class Chosen(NamedTuple):
    """A selection as the store is asked for it."""

    which: Which  # of its ids each piece takes some
    last: bool
    everyone: bool
    all: bool  # as it was typed

    @property
    def ranges(self) -> Sequence[Range]:
        """In order; none means all."""
        return self.which.ids

    @property
    def roots_own(self) -> bool:
        """Whether root said `all`, who might mean everybody's."""
        return self.all and self.everyone and not self.ranges and self.which._replace(ids=()) == Which(uid=0)


class Piece(NamedTuple):
    jobs: list[Any]  # those that the client may do something about
    progress: BulkProgress  # with what was found in it
    over: bool  # no other follows


# -------------------------------------------------------------------- choosing


def choice(turn: Turn, event: Received[Any], states: tuple[str, ...] = (), look: bool = False) -> Chosen:
    """The jobs that a selection names: ids and ranges, all, last, a label, a state, a user.

    Only root may change others', and has to name them: by ids, a user, or "*" for every user. All may `look`.
    """
    select: Select = event.message.get("select") or Select()
    ranges = _ranges(select)
    label, state, user = select.get("label"), select.get("state"), select.get("user")
    if not all(value is None or is_unicode(value) for value in (label, state, user)):
        raise UsageError("Invalid choice of jobs.", "Give the label, the state and the user as text.")
    everyone = look or event.peer.uid == 0
    if user == EVERYBODY and not everyone:
        raise NotPermitted("Only root may do that to the jobs of every user.", "Choose the jobs of one user.")
    uid = _whose(turn, event.peer, select, user, look or bool(ranges))
    which = Which(tuple(state.split(",")) if state else states, uid, label, ranges)
    return Chosen(which, bool(select.get("last")), everyone, bool(select.get("all")))


def _whose(turn: Turn, peer: Peer, select: Select, user: str | None, others: bool) -> int | None:
    """The user whose jobs are meant; None for all of them."""
    if select.get("mine") or (user is None and not others):
        return peer.uid
    if user is None or user == EVERYBODY:
        return None
    uid = turn.world.uid_of(user)
    if uid is None and user.isascii() and user.isdecimal() and len(user) <= 10:
        return int(user)
    if uid is None:
        step = "Check the name. If the account was removed, give its number, which `gpulease ls --json` has as `uid`."
        raise NotFound(f"There is no user {user[:40]!r}.", step)
    return uid


def _ranges(select: Select) -> list[Range]:
    if not set(select) <= CHOICES or select.get("ids") == []:
        raise UsageError("Invalid choice of jobs.", f"Choose by {', '.join(sorted(CHOICES))}.")
    ranges = select.get("ids") or []
    if not all(len(pair) == 2 and min(pair) >= 0 for pair in ranges):
        raise UsageError("Invalid choice of jobs.", "Write ids and ranges, as 3,5-9.")
    if len(ranges) > MAX_RANGES:
        raise UsageError(f"More than {MAX_RANGES} ids and ranges were given.", "Use ranges, as 5-900, or a label.")
    return sorted((first, last) for first, last in ranges)


def _window(ranges: Sequence[Range], at: int, last: int) -> list[Range]:
    """The next ids to look through, behind `at`."""
    found: list[Range] = []
    room = WINDOW
    for first, end in ranges or [(1, last)]:
        first, end = max(first, at + 1), min(end, last)
        if room > 0 and first <= end:
            found.append((first, min(end, first + room - 1)))
            at = found[-1][1]
            room -= 1 + at - first
    return found


# -------------------------------------------------------------------- pieces


def size(event: Received[Any], most: int) -> int:
    """Of the next piece."""
    return most // CROWDED if event.crowded else most


def show(
    turn: Turn,
    event: Received[Any],
    name: str,
    listing: Listing,
    row: Callable[[Any], Mapping[str, object] | None],
    most: int = PIECE,
) -> None:
    """Answer with a row for each that is left, as many in this turn as are made in a moment."""
    if isinstance(event.progress, Listing):
        listing = event.progress
    most = size(event, most)
    made = (row(one) for one in listing.left[:most])
    done = (*listing.done, *(to_text(one) for one in made if one is not None))
    if left := listing.left[most:]:
        turn.emit(Continue(event._replace(progress=listing._replace(left=left, done=done))))
    else:
        turn.reply(event.peer, {**listing.more, name: listed(list(done))})


def take(turn: Turn, event: Received[Any], chosen: Chosen) -> Piece:
    """The next jobs of a request."""
    store, running, most = turn.state.store, turn.state.jobs.running, size(event, PIECE)

    def read(ranges: Sequence[Range]) -> tuple[list[Job], bool]:
        which = chosen.which._replace(ids=ranges)
        rows, more = (store.jobs(which, 1, newest=True), False) if chosen.last else store.some_jobs(which, most)
        return [running.get(row["id"]) or model_jobs.read(row) for row in rows], more

    return _take(turn, event, chosen, read)


def take_rows(turn: Turn, event: Received[Any], chosen: Chosen) -> Piece:
    """The same, without most of what is known of them."""
    store, most = turn.state.store, size(event, ROWS)

    def read(ranges: Sequence[Range]) -> tuple[list[ListedJob], bool]:
        which = chosen.which._replace(ids=ranges)
        if chosen.last:
            newest = store.jobs(which, 1, newest=True)
            which = which._replace(ids=[(row["id"], row["id"]) for row in newest] or [(0, 0)])
        rows = store.job_rows(which, most)
        return rows, len(rows) == most

    return _take(turn, event, chosen, read)


def _take(
    turn: Turn, event: Received[Any], chosen: Chosen, read: Callable[[Sequence[Range]], tuple[list[Any], bool]]
) -> Piece:
    before = event.progress
    if not isinstance(before, BulkProgress):
        before = BulkProgress(0, turn.state.jobs.number)
    window = chosen.ranges if chosen.last else _window(chosen.ranges, before.at, before.last)
    found, more = read(window) if window or chosen.last else ([], False)
    at = found[-1].id if more else window[-1][1] if window else before.last
    over = chosen.last or not _window(chosen.ranges, at, before.last)
    mine = [job for job in found if chosen.everyone or job.uid == event.peer.uid]
    there = {job.id for job in mine}
    named = [first for first, last in chosen.ranges if first == last and before.at < first and (over or first <= at)]
    first = next((job.id for job in found), None)
    progress = before._replace(
        at=at,
        found=before.found or first,
        mine=before.mine or next(((job.id, job.state) for job in mine), None),
        missing=(*before.missing, *(id for id in named if id not in there)),
    )
    return Piece(mine, progress, over)


def continue_later(
    turn: Turn, event: Received[Any], piece: Piece, done: list[Any], skipped: Iterable[str] = (), size: int = 0
) -> BulkProgress | None:
    """With the next piece, when it is this user's turn again; or None when it was the last: then all that was done."""
    before = piece.progress
    progress = before._replace(done=(*before.done, done), skipped=(*before.skipped, *skipped), size=before.size + size)
    if piece.over:
        return progress
    turn.emit(Continue(event._replace(progress=progress)))
    return None


def gathered(progress: BulkProgress) -> list[Any]:
    return [one for part in progress.done for one in part]


def stopped(state: State, event: Received[Any], trouble: GpuleaseError) -> GpuleaseError:
    """The error for a request about many jobs that goes no further: it says what was done."""
    progress = event.progress
    if isinstance(progress, AddProgress):
        state.jobs.adding.drop(event.peer)
        state.jobs.gather(event.peer, None)
        batch = progress.batch
        queued, left = f"{batch.first}-{progress.next - 1}", batch.last + 1 - progress.next
        more = f"{progress.next - batch.first} jobs are queued, as {queued}, and the last {left} are not."
        step = f"Add the last {left} again once the cause is gone, or undo it with `gpulease rm {queued}`."
    elif isinstance(progress, BulkProgress) and (done := sum(map(len, progress.done))):
        more, step = f"It was done for {done} jobs before that.", "Repeat it for the rest once the cause is gone."
    else:
        return trouble
    return type(trouble)(f"{trouble.what} {more}", step, **trouble.fields)


def is_nothing(turn: Turn, progress: BulkProgress, chosen: Chosen) -> bool:
    """Whether a state, a user or `all` chose no job, which is not an error; an id and a label must exist."""
    which = chosen.which
    if progress.found is not None or chosen.ranges or chosen.last or chosen.roots_own:
        return False
    return which.label is None or bool(which.states and turn.state.store.count_jobs(which._replace(states=())))


def refuse_nothing(turn: Turn, progress: BulkProgress, chosen: Chosen) -> None:
    """When no job was found that the client may do something about."""
    if progress.found is None:
        hint = (
            "For root, `all` means root's own jobs; for others: `--user ada`."
            if chosen.roots_own
            else "See `gpulease ls --all`."
        )
        raise NotFound(f"No such job{_called(chosen.ranges)}.", hint)
    if progress.mine is None:
        job = turn.state.jobs.get(progress.found)
        whose = "another user" if job is None else job.user
        raise NotPermitted(f"Job {progress.found} belongs to {whose}.", "Only its user or root may do that.")


def _called(ranges: Sequence[Range]) -> str:
    named = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:5])
    return f": {named}" if named else ""
