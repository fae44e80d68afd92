"""One turn of the core: the events that are ready, what they change, and what follows from them.

Every function of the core gets the turn: it reads `turn.state`, changes it by the state's own methods, and says what
is to be done with `turn.emit`. It never acts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpulease.broker.core.events import Received
from gpulease.broker.core.instructions import EARLY, Alarm, Check, Instruction, Keep, Send, TakeSample
from gpulease.broker.core.state import State
from gpulease.errors import TooMuch
from gpulease.model.job import Job
from gpulease.model.peer import Peer
from gpulease.model.spans import Asked
from gpulease.model.store import Document
from gpulease.model.values import HostMemory, Waiting
from gpulease.planner import Grant, Plan, Policy
from gpulease.planner.forecast import Said
from gpulease.planner.reasons import Reason
from gpulease.protocol.messages import Reply

MOST_AWAITING = 2000  # messages of one user that wait for a sample
AWAITING_BYTES = 16 << 20  # of them
SAVE_LEARNT = 10.0  # seconds between saves of who has used how much, and of what was learnt
FRESH = 1.0  # seconds that a sample serves to refuse somebody, or to show the status


class NotLookedUp(Exception):
    """The directory of users is to be asked first: then the message is handled again."""

    def __init__(self, question: tuple[str, Any]) -> None:
        super().__init__(question)
        self.question = question


class World(Protocol):
    """The host: small facts, and looks at devices. Asking changes nothing."""

    def identify(self, pid: int) -> tuple[int | None, int | None]:
        """Start time and user of a process."""

    def outer_pid(self, inside: int, pid: int) -> int | None:
        """What the broker calls the process that `inside` calls `pid`; None when it cannot be told."""

    def above(self, pid: int) -> list[int]:
        """The process itself and those above it, up to some height."""

    def asking_process(self, pid: int) -> int:
        """The shell or script that runs the command `pid`, as far as that is told without reading command lines."""

    def is_gone(self, pid: int, start_time: int | None) -> bool:
        """Whether that process has ended, for certain."""

    def groups_of(self, uid: int) -> tuple[str, ...]:
        """As far as they are known."""

    def uid_of(self, name: str) -> int | None:
        """NotLookedUp while nobody knows."""

    def has_account(self, uid: int) -> bool: ...

    def has_group(self, name: str) -> bool:
        """NotLookedUp while nobody knows."""

    def job_folder(self, uid: int) -> str:
        """Where logs of a user's jobs lie, and the notes about them: the user's own."""

    def host_memory(self) -> HostMemory: ...

    def history(self, question: Asked, now: float) -> Mapping[str, object]:
        """What each device did, and who had it."""

    def usage(self, question: Asked, now: float, user: str | None) -> Mapping[str, object]:
        """What one user had, or all of them."""

    def totals(self, user: str | None) -> Mapping[str, object]:
        """Sums of it that only grow."""

    def at_once(self, instruction: Check | TakeSample) -> None:
        """Carry out what changes nothing that is kept: it need not wait for a commit, and somebody waits for it."""


class Planned:
    """The last plan, and for which revision it was made; kept from turn to turn."""

    __slots__ = ("decided", "kept", "kept_revision", "plan", "revision", "said", "wake")

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.revision = -1
        self.decided = -1  # the revision at which everything that can be granted has been
        self.wake = float("inf")  # when the plan could change by the clock alone
        self.kept: Keep | None = None  # what the neighbours were told last, and at which revision
        self.kept_revision = -1
        self.said: dict[str, Said] = {}  # by request: what somebody was told of its start


class Turn:
    __slots__ = (
        "_deferred",
        "changed_jobs",
        "freed",
        "granted",
        "instructions",
        "messages",
        "now",
        "planned",
        "possible",
        "rows",
        "state",
        "status",
        "told",
        "world",
    )

    def __init__(self, state: State, world: World, now: float, planned: Planned) -> None:
        self.state, self.world, self.now, self.planned = state, world, now, planned
        self.instructions: list[Instruction] = []
        self.status: dict[str | None, Reply] = {}  # the document that was shown in this turn, by viewer
        self.rows: dict[tuple[str, str | None], dict[str, Document]] = {}  # shown in this turn, by topic and viewer
        self.told: dict[tuple[str, object], Document] = {}  # what several subscribers are told alike
        self.messages: dict[int, Any] = {}  # the messages with that, by its identity
        self.changed_jobs: dict[int, tuple[str, Job | None]] = {}  # the state before, and the job if it is still there
        self.possible: dict[tuple[Waiting, Policy], Reason | None] = {}  # why what was asked can never be granted
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
        if not self.state.usage_due:
            self.state.set("usage_due", True)
            self.alarm(SAVE_LEARNT, "usage")

    def alarm(self, seconds: float, what: str, id: str = "") -> None:
        self.instructions.append(Alarm(self.now + seconds, what, id))

    def defer(self, action: Callable[[Turn], None]) -> None:
        """Do it when this event has been handled. A chain of jobs is walked so, and not recursed into."""
        self._deferred.append(action)

    def run_deferred(self) -> None:
        while self._deferred:
            self._deferred.pop(0)(self)

    def job_changed(self, id: int, before: str, after: Job | None) -> None:
        """For whoever wants to hear of it. One that ended and was removed in the same turn is told of as ended."""
        if id in self.changed_jobs:
            before, last = self.changed_jobs[id]
            after = last if after is None else after
        self.changed_jobs[id] = (before, after)

    def add_changes(self, other: Turn) -> None:
        """What another turn changed is told together with what this one does."""
        for id, (before, after) in other.changed_jobs.items():
            self.job_changed(id, before, after)

    # ---------------------------------------------------------------- the sample

    def take_sample(self) -> None:
        if not self.state.sampling:
            self.state.set("sampling", True)
            self.state.set("asked_at", self.now)
            self.emit(TakeSample())

    def stale(self) -> bool:
        """Whether the last sample is too old to judge by."""
        return self.state.sample is None or self.now - self.state.sampled_at > FRESH

    def after_sample(self, event: Received) -> None:
        """Handle the message again when there is a sample, or none can be had."""
        mine = [one for one in self.state.awaiting if one.peer.uid == event.peer.uid]
        if len(mine) >= MOST_AWAITING or sum(one.size for one in mine) + event.size > AWAITING_BYTES:
            most = f"{MOST_AWAITING} requests, or {AWAITING_BYTES >> 20} MiB of them,"
            raise TooMuch(f"More than {most} of yours would wait for a look at the devices.")
        self.state.set("awaiting", (*self.state.awaiting, event))
        self.take_sample()
