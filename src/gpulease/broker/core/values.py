"""PURE: what the broker's state is made of: a check, a run, a batch of jobs, what is known of the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulease.model.jobs import Job, changed, stored
from gpulease.model.lifecycle import START, Effects
from gpulease.model.store import Document

if TYPE_CHECKING:  # an agent loads this file, and plans nothing
    from gpulease.planner.order import Ranking

NOTHING: Mapping[str, Any] = MappingProxyType({})


class About(NamedTuple):
    """The broker itself: what does not change while it runs."""

    host: str
    boot_id: str
    uid: int = 0
    user: str = "root"
    pid: int = 0
    kind: str = "own"
    directory: str = "/nonexistent"  # with its socket
    kept: str = "/nonexistent"  # the folder of what lasts
    version: str = ""
    began: float = 0.0
    boot_time: float = 0.0  # the moment that clock ticks are counted from
    ticks: int = 100  # of the kernel's clock in a second
    simulated: bool = False  # before the first sample: what it was started to look at
    wall_ahead: float = 0.0  # seconds that the wall clock is ahead of the broker's time, at the start
    cores: int = 1


class Idle(NamedTuple):
    """No check is under way."""


class Checking(NamedTuple):
    """Devices are being looked at, since this revision of the state."""

    devices: frozenset[str]
    revision: int
    shown_from: float | None = None  # of the refusal before it, when it is tried again


class Refused(NamedTuple):
    """No check can be taken now."""

    why: str
    shown_from: float  # when those who ask are told so


class PeakMemory(NamedTuple):
    """The most memory that a packed job was seen to use in this run, and since when it has been that."""

    memory: int
    since: float


class Blocker(NamedTuple):
    """A user who held safe-gpu's lock while others waited for it."""

    seen: float  # the last time
    spent: float = 0.0  # seconds of the others' time
    ignored_since: float = 0.0  # since when it is passed by


class Run(NamedTuple):
    """A run of a job, as the table `RUN` of model/lifecycle.py has it (runs.py)."""

    phase: str = START
    due: float = inf  # when the phase must be over
    shell: tuple[int | None, int | None] = (None, None)  # pid and start time, once an agent told of it
    watched: bool = False  # its agent will tell of its shell's end
    orphaned: bool = False  # the agent that was asked about it is gone
    code: int | None = None  # of the shell, as the kernel told
    checks: int = 0  # at its tree, in this phase
    forced: int = 0  # how often the broker itself ended what it could see of it


class Delay(NamedTuple):
    """A user's jobs cannot be started, for lack of something that may come back."""

    until: float
    why: str
    seconds: float  # from the last attempt on


class CustomOrder(NamedTuple):
    """How the administrator's own function orders the queue (order.py)."""

    function: str = ""  # whose this is
    ranking: Ranking = ()  # as it answered last, and as they were then
    asked: tuple[str, ...] = ()  # ids of the question under way
    asked_at: float = -inf
    revision: int = -1  # of the state, when it was asked
    not_before: float = -inf
    failures: int = 0  # one after the other
    trouble: str | None = None  # of the last answer


class NoticeChoice(NamedTuple):
    """What a user gets notices of (notices.py)."""

    file: str  # of the user's own, with the address
    events: tuple[str, ...]


class BatchParts(NamedTuple):
    """Of a batch of jobs that is still coming in."""

    commands: tuple[list[tuple[str, ...]], ...] = ()
    each: tuple[list[dict[str, str]], ...] = ()  # what each of them has of its own, if anything
    size: int = 0  # in characters
    words: int = 0  # and texts, and commands


class PendingBatch(NamedTuple):
    """A batch whose jobs are being put into the queue."""

    token: str | None
    environment: str  # its key
    left: int  # jobs that are not in the queue yet


class Cap(NamedTuple):
    """Of one sweep."""

    most: int  # of its jobs that run at a time
    uid: int
    last: int  # id of its last job, or a later one


class BatchRange(NamedTuple):
    """A batch: the ids of its jobs, and the first that is not in the queue yet."""

    first: int
    last: int
    next: int


APART = 1e-6  # seconds between the arrival of one and the next


class Batch:
    """Jobs that are added together: a pattern, and what each has of its own, made when it is needed.

    A hundred thousand of them are gone through twice, for the disk and for the queue, and never kept as a whole.
    """

    def __init__(
        self,
        pattern: Job,
        effects: Effects,
        commands: list[tuple[str, ...]],
        log: Callable[[int], str],
        each: list[Document],
    ) -> None:
        """`each`: the fields that a command has of its own; empty when all are alike. `effects`: of each one's step."""
        self.effects, self.state, self.uid, self.after = effects, pattern.state, pattern.uid, pattern.spec.after
        self._pattern, self._commands, self._log, self._each = pattern, commands, log, each
        self.first = pattern.id
        self.last = pattern.id + len(commands) - 1

    @property
    def arrival(self) -> float:
        """Of the last one."""
        return self._added(self.last)

    def jobs(self, begin: int, end: int) -> Iterator[Job]:
        for id in range(begin, end):
            yield changed(self._pattern, **self._own(id))

    def documents(self, begin: int, end: int) -> Iterator[tuple[int, Document]]:
        """As the store keeps them, by id."""
        alike = stored(self._pattern)
        for id in range(begin, end):
            yield id, {**alike, **self._own(id)}

    def _own(self, id: int) -> Document:
        words = self._commands[id - self.first]
        own = {"id": id, "command": words, "log": self._log(id), "added": self._added(id)}
        return {**own, **self._each[id - self.first]} if self._each else own

    def _added(self, id: int) -> float:
        return self._pattern.added + (id - self.first) * APART
