"""One turn of the core: the events that are ready, what they change, and what follows from them.

Every function of the core gets the turn: it reads `turn.state`, changes it by the state's own methods, and says what
is to be done with `turn.emit`. It never acts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from gpulease.broker.core.events import Received
from gpulease.broker.core.instructions import EARLY, Check, Instruction, Send, SetAlarm, TakeSample, UpdateNeighbours
from gpulease.broker.core.state import State
from gpulease.errors import GpuleaseError, TooMuch
from gpulease.model.jobs import Job
from gpulease.model.peer import Peer
from gpulease.model.store import Document
from gpulease.model.values import HostMemory, Waiting
from gpulease.planner import Grant, Plan, Policy
from gpulease.planner.forecast import EarlierForecast
from gpulease.planner.reasons import Reason
from gpulease.protocol.messages import Reply
from gpulease.protocol.wire import Written

MAX_AWAITING = 2000  # messages of one user that wait for a sample
AWAITING_BYTES = 16 << 20  # of them
SAVE_LEARNED = 10.0  # seconds between saves of who has used how much, and of what was learnt
FRESH_FOR = 1.0  # seconds that a sample serves to refuse somebody, or to show the status


class AccountUnknown(Exception):
    """The directory of users is to be asked first: then the message is handled again."""

    def __init__(self, question: tuple[str, Any]) -> None:
        super().__init__(question)
        self.question = question


def as_error(trouble: Exception) -> GpuleaseError:
    """As a client is answered. A mistake of ours must cost one request, not everybody's broker."""
    if isinstance(trouble, GpuleaseError):
        return trouble
    return GpuleaseError(f"The broker failed: {type(trouble).__name__}.")


class World(Protocol):
    """The host: small facts, and looks at devices. Asking changes nothing."""

    def identify(self, pid: int, named: int | None) -> tuple[int | None, int | None, int | None]:
        """The process that `pid` calls `named`, or itself: what the broker calls it, its start time and its user.

        The first is None when the broker cannot see it, and the last when it is gone.
        """

    def above(self, pid: int) -> list[int]:
        """The process itself and those above it, up to some height."""

    def requesting_process(self, pid: int) -> int:
        """The shell or script that runs the command `pid`, as far as that is known without reading command lines."""

    def is_gone(self, pid: int, start_time: int | None) -> bool:
        """Whether that process has ended, for certain."""

    def groups_of(self, uid: int) -> tuple[str, ...]:
        """As far as they are known."""

    def uid_of(self, name: str) -> int | None:
        """NotLookedUp while nobody knows."""

    def has_group(self, name: str) -> bool:
        """NotLookedUp while nobody knows."""

    def job_folder(self, uid: int) -> str:
        """Where logs of a user's jobs lie, and the notes about them: the user's own."""

    def host_memory(self) -> HostMemory: ...

    def at_once(self, instruction: Check | TakeSample) -> None:
        """Carry out what changes nothing that is kept: it need not wait for a commit, and somebody waits for it."""


class ShownRows(NamedTuple):
    """The rows of a topic as subscribers see them."""

    rows: dict[str, Document]
    text: Written  # of all of them
    at: float
    stamp: tuple[int, float]  # revision and time of the sample


class Planned:
    """The last plan, and for which revision it was made; kept from turn to turn."""

    __slots__ = (
        "decided",
        "kept",
        "kept_revision",
        "plan",
        "revision",
        "said",
        "shown",
        "told_stamp",
        "updates",
        "wake",
    )

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.revision = -1
        self.decided = -1  # the revision at which everything that can be granted has been
        self.wake = float("inf")  # when the plan could change by the clock alone
        self.kept: UpdateNeighbours | None = None  # what the neighbours were told last, and at which revision
        self.kept_revision = -1
        self.said: dict[str, EarlierForecast] = {}  # by request: what somebody was told of its start
        self.shown: dict[tuple[str, str | None], ShownRows] = {}  # by topic and viewer
        self.told_stamp: tuple[int, float] | None = None  # revision and sample when subscribers were last visited
        self.updates: dict[object, tuple[Document, object]] = {}  # what several subscribers are told alike, and of what


class Turn:
    __slots__ = (
        "_deferred",
        "changed_jobs",
        "freed",
        "granted",
        "in_memory",
        "instructions",
        "now",
        "planned",
        "possible",
        "readers",
        "state",
        "status",
        "tells",
        "world",
    )

    def __init__(self, state: State, world: World, now: float, planned: Planned) -> None:
        self.state, self.world, self.now, self.planned = state, world, now, planned
        self.instructions: list[Instruction] = []
        self.status: dict[str | None, Document] = {}  # the document that was shown in this turn, by viewer
        self.tells = False  # this is a turn to tell subscribers, though there are many
        self.changed_jobs: dict[int, tuple[str, Job | None]] = {}  # the state before, and the job if it is still there
        self.possible: dict[tuple[Waiting, Policy], Reason | None] = {}  # why what was asked can never be granted
        self.readers: set[int] = set()  # users for whom the history is read after this turn
        self.in_memory = False  # nothing can be written now: what is done about running jobs is written later
        self.freed = 0  # jobs that waited for others
        self.granted: dict[int, Grant] = {}  # to jobs that are being started
        self._deferred: list[Callable[[Turn], None]] = []

    def emit(self, instruction: Instruction) -> None:
        if isinstance(instruction, EARLY):
            self.world.at_once(instruction)
        else:
            self.instructions.append(instruction)

    def emit_first(self, instruction: Instruction) -> None:
        """To be carried out before all that follows from this turn."""
        self.instructions.insert(0, instruction)

    def send(self, peer: Peer, message: Reply) -> None:
        self.instructions.append(Send(peer, message))

    def reply(self, peer: Peer, reply: Mapping[str, object]) -> None:
        """`reply` is one of the types of protocol/messages.py."""
        self.instructions.append(Send(peer, {"ok": reply}))

    def save_soon(self) -> None:
        """What was learnt of users and requests; a crash may cost the last seconds of it."""
        if not self.state.learned.usage_due:
            self.state.learned.usage_due = True
            self.alarm(SAVE_LEARNED, "usage")

    def alarm(self, seconds: float, what: str, id: str = "") -> None:
        self.instructions.append(SetAlarm(self.now + seconds, what, id))

    def defer(self, action: Callable[[Turn], None]) -> None:
        """Do it when this event has been handled. A chain of jobs is walked so, and not recursed into."""
        self._deferred.append(action)

    def run_deferred(self) -> None:
        while self._deferred:
            self._deferred.pop(0)(self)

    def job_changed(self, id: int, before: str, after: Job | None) -> None:
        """For its subscribers. A job that ended and was removed in the same turn is reported as ended."""
        if id in self.changed_jobs:
            before, last = self.changed_jobs[id]
            after = last if after is None else after
        self.changed_jobs[id] = (before, after)

    def add_changes(self, other: Turn) -> None:
        """Report what another turn changed together with what this one changes."""
        for id, (before, after) in other.changed_jobs.items():
            self.job_changed(id, before, after)

    # ---------------------------------------------------------------- the sample

    def take_sample(self) -> None:
        if not self.state.devices.sampling:
            self.state.devices.sampling = True
            self.state.devices.asked_at = self.now
            self.emit(TakeSample())

    def stale(self) -> bool:
        """Whether the last sample is too old to judge by."""
        return self.state.devices.sample is None or self.now - self.state.devices.sampled_at > FRESH_FOR

    def after_sample(self, event: Received[Any]) -> None:
        """Handle the message again when there is a sample, or none can be had."""
        mine = [one for one in self.state.devices.awaiting if one.peer.uid == event.peer.uid]
        if len(mine) >= MAX_AWAITING or sum(one.size for one in mine) + event.size > AWAITING_BYTES:
            most = f"{MAX_AWAITING} requests, or {AWAITING_BYTES >> 20} MiB of them,"
            raise TooMuch(f"More than {most} of yours would wait for a check of the devices.")
        self.state.devices.awaiting = (*self.state.devices.awaiting, event)
        self.take_sample()
