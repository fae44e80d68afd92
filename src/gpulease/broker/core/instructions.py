"""What follows from an event, as values. The core makes them, the edge carries them out and decides nothing.

All but `Check` and `TakeSample` leave the core after the commit that they depend on; those two change nothing that is
kept, and so leave at once (`World.at_once`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulease.broker.core.events import EMPTY, ProcessKey, Received, Root
from gpulease.model.jobs import Job
from gpulease.model.peer import Peer
from gpulease.model.spans import Asked, DeviceName
from gpulease.model.values import Device, Lease
from gpulease.protocol.messages import Message, Reply

if TYPE_CHECKING:  # an agent reads orders, and plans nothing
    from gpulease.planner.order import LineEntry


class Send(NamedTuple):
    peer: Peer
    message: Reply
    droppable: bool = False  # to a subscriber: left out while it has not read what came before; `CaughtUp` follows
    more: bool = False  # there is more to tell it: `CaughtUp` follows when it has read this


class Check(NamedTuple):
    """Have the neighbours let us have devices, and look at these; `Checked`, `CheckRefused` or `SampleFailed` follows.

    Until `Unlock` nobody else chooses; what is not kept by then is given back to the neighbours.
    """

    revision: int
    devices: tuple[str, ...]
    ignored_users: frozenset[str] = frozenset()  # users who were choosing for too long: go on without them


class Unlock(NamedTuple):
    """The check's devices are granted or not wanted any more."""


class Holding(NamedTuple):
    """The leases on one device, for brokers of other users and for the keeper of our claim."""

    leases: tuple[tuple[int | None, int | None, float | None], ...]  # pid and start of each owner; its end, since boot
    kind: str = ""  # of the first of them
    user: str = ""
    since: float = 0.0
    note: str | None = None

    @property
    def pid(self) -> int | None:
        return next((pid for pid, _, _ in self.leases if pid is not None), None)


class UpdateNeighbours(NamedTuple):
    """What the neighbours must know, whenever it changes: all of it, each time.

    A device that is not held, leaving or being checked is given back to them; one that is held and is not claimed, as
    when a broker starts, is claimed again. It is carried out before any client hears of a grant.
    """

    held: Mapping[str, Holding] = EMPTY  # devices of leases
    unseen: frozenset[str] = frozenset()  # of these: no process is to be seen there
    wanted: frozenset[str] = frozenset()  # devices that the line would get if no neighbour held them
    settings: Mapping[str, str] = EMPTY  # by neighbour, as it is in effect
    leaving: frozenset[str] = frozenset()  # devices of ended leases, until nobody is to be seen there


class TakeSample(NamedTuple):
    """`Sampled` or `SampleFailed` follows."""


class Watch(NamedTuple):
    """`ProcessEnded` follows when it ends, or at once when it is gone."""

    key: ProcessKey


class Unwatch(NamedTuple):
    key: ProcessKey


class SetAlarm(NamedTuple):
    """`AlarmRang` follows at that time."""

    time: float
    what: str
    id: str = ""


class CancelAlarm(NamedTuple):
    """What the alarm was for is gone."""

    what: str
    id: str


class RunPlace(NamedTuple):
    """Where a run is noted and how long its log may be."""

    note: str
    log_limit: int | None  # bytes


class Launch(NamedTuple):
    """Start a job's run; `Launched` or `LaunchFailed` follows, and `RunEnded` when its shell ends."""

    job: Job
    place: RunPlace
    environment: dict[str, str]  # the submitter's
    given: dict[str, str]  # what every job gets


class CancelLaunch(NamedTuple):
    """The job is to end: if its launch has not been sent to its agent yet, `LaunchFailed` follows instead."""

    job: Job


class ReadEnd(NamedTuple):
    """Read how a run ended; `EndRead` follows."""

    job: Job
    place: RunPlace
    code: int | None
    environment: dict[str, str]


class FindRun(NamedTuple):
    """Find what is left of a run of a former broker or agent; `Found` follows, and `RunEnded` if it is alive."""

    job: Job
    place: RunPlace
    root: Root


class SignalTree(NamedTuple):
    """Signals to all processes of a run, to none when there are no signals; `TreeSeen` follows."""

    job: Job
    place: RunPlace
    root: Root
    signals: tuple[int, ...] = ()  # to the shell only once it is alone, since it notes how its command ended
    every: bool = False  # look again until no new process is found, as when stopping


class ForceEnd(NamedTuple):
    """A run outlives its end by far, so its agent does not end it: end it here, and have another agent look.

    `Forced` follows.
    """

    job: Job
    root: Root


class ReplaceAgent(NamedTuple):
    """A user's agent does not answer: `AgentLost` follows, if there is one."""

    uid: int


class RemoveLogs(NamedTuple):
    """Remove logs that the queue itself made for a user's jobs."""

    uid: int
    logs: tuple[str, ...]


class RemoveNotes(NamedTuple):
    """Remove the notes of a user's runs but these."""

    uid: int
    folder: str
    kept: tuple[str, ...]


class CallHook(NamedTuple):
    """Call a command or a URL that the administrator has set."""

    name: str  # the parameter that has it
    command: str
    subject: str  # what it is told of, in a few words
    about: Message


class Notify(NamedTuple):
    """Have a user's agent tell that user."""

    uid: int
    file: str  # of the user's own, with the address
    notice: Message
    every: float  # seconds from a message to the next, at least


class LookUpAccount(NamedTuple):
    """Ask the directory of users, and then have this message handled again."""

    event: Received[Any]
    question: tuple[str, Any]


class Continue(NamedTuple):
    """Hand the event back when it is its user's turn again: a long request is done in pieces, each in a turn."""

    event: Received[Any]


class AskForOrder(NamedTuple):
    """Have the administrator's own function order these; `OrderAnswered` follows. Without any, only say which it is."""

    function: str
    now: float
    waiting: tuple[LineEntry, ...]


class LeaseStarted(NamedTuple):
    """For the history: a lease began. One that a former broker granted has no `waited`, and was held `since` then."""

    time: float
    lease: Lease
    places: tuple[DeviceName, ...]
    label: str | None  # of a job
    waited: float | None = None
    since: float = 0.0


class LeaseEnded(NamedTuple):
    """For the history: a lease ended."""

    time: float
    id: str


class JobEnded(NamedTuple):
    """For the history: a job ended."""

    time: float
    user: str
    groups: tuple[str, ...]
    label: str | None
    devices: tuple[str, ...]
    how: str  # a field of `spans.Count`


class DevicesSampled(NamedTuple):
    """For the history: the devices as sampled, and who uses which of them without a lease."""

    time: float
    devices: tuple[Device, ...]
    outside: Mapping[str, list[str]]


class AnswerHistory(NamedTuple):
    """Read the history and tell this client: what each device did, what users had, or sums of that."""

    peer: Peer
    verb: str  # history, usage or totals
    now: float
    question: Asked | None = None  # but for totals
    user: str | None = None  # of whom alone; None for all of them


class FreezeState(NamedTuple):
    """Leave the state's file as it is, and tell this client where it is, until `UnfreezeState`."""

    peer: Peer


class UnfreezeState(NamedTuple):
    pass


class WriteLog(NamedTuple):
    text: str


class Stop(NamedTuple):
    """End the broker; leases, jobs and the queue stay as they are on disk."""


# fmt: off
Instruction = (
    Send | Check | Unlock | UpdateNeighbours | TakeSample | Watch | Unwatch | SetAlarm | CancelAlarm | Launch
    | CancelLaunch | ReadEnd | FindRun | SignalTree | ForceEnd | ReplaceAgent | RemoveLogs | RemoveNotes | CallHook
    | Notify | Continue | LookUpAccount | AskForOrder | LeaseStarted | LeaseEnded | JobEnded | DevicesSampled
    | AnswerHistory | FreezeState | UnfreezeState | WriteLog | Stop
)
# fmt: on
EARLY = (Check, TakeSample)
