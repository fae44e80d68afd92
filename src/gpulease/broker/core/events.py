"""What can happen to the broker, as values. The edge makes them, the core handles them, nothing else enters.

Not here: what follows (instructions.py), and what a client's message may say (protocol/messages.py).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from gpulease.broker.core.values import Batch
from gpulease.errors import GpuleaseError
from gpulease.model.peer import Peer
from gpulease.model.store import Document
from gpulease.model.values import Process, Sample
from gpulease.protocol.messages import ShortLease

UNWRITTEN = 122  # the shell could not even note that it began
UNSTARTABLE = (126, 127)  # what a shell says of a command that cannot be executed, or is not there
NOT_NOTED = "no-note"  # its shell ended before it noted anything, so its command never began
NO_FORK = "no-fork"  # its shell could not start its command, for lack of processes
TROUBLES = (NO_FORK, "no-folder", "no-command")  # that a shell notes
UNSEEN = "unseen"  # neither a process nor a place where a note could be
SUSPECT = (UNWRITTEN, 125, *UNSTARTABLE)  # codes that may be the shell's and not the command's
# What passes by itself, or when somebody makes room: what met it is tried again, and nothing is concluded from it.
SHORTAGES = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EIO,
        errno.ESTALE, errno.ETIMEDOUT,
    }
)  # fmt: skip


class RunNote(NamedTuple):
    """What is noted about one run."""

    pid: int | None = None  # of its shell
    code: int | None = None  # of its command, once that ended
    trouble: str | None = None  # why its command never began

    @property
    def over(self) -> bool:
        return self.code is not None or self.trouble is not None


class Root(NamedTuple):
    """Where a run's tree begins: its shell, by pid and start time, and its mark, which is its user's to bear."""

    pid: int
    since: int | None
    token: str
    uid: int

    @property
    def mark(self) -> bytes:
        return f"\0GPULEASE_TOKEN={self.token}\0".encode()


ProcessKey = tuple[int, int | None]  # a process: pid and start time
EMPTY: Mapping[Any, Any] = MappingProxyType({})
Asked = TypeVar("Asked")


class Occupancy(NamedTuple):
    """What a check saw of one device."""

    memory_used: int | None
    processes: tuple[Process, ...] | None
    lost: str | None  # why
    utilization: int | None = None


class AddProgress(NamedTuple):
    """How far a batch of jobs that are added has come."""

    batch: Batch
    token: str | None
    next: int  # the id of the first that is not in the queue yet
    left_out: list[str]  # variables that they do not get


class BulkProgress(NamedTuple):
    """How far a request about many jobs has come."""

    at: int  # the last id that was looked at
    last: int  # the last id that there was when it began
    found: int | None = None  # the id of the first job that was found, anybody's
    mine: tuple[int, str] | None = None  # the first that the client may do something about
    done: tuple[list[Any], ...] = ()  # what its answer will have, in pieces
    skipped: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()  # ids that were named one by one and are nobody's
    size: int = 0  # of `done`, in characters
    checked: bool = False  # it was gone through once, to see whether it can be done


class Listing(NamedTuple):
    """How far an answer with many rows has come."""

    left: Sequence[Any]  # what is still to be shown
    more: Document  # what the answer has beside its rows
    done: tuple[str, ...] = ()  # rows as JSON


class ReleaseProgress(NamedTuple):
    """How far a request to release, or to renew, has come."""

    above: frozenset[int] = frozenset()  # the client's process and those above it
    script: int | None = None  # that asks, by its process
    scripts: Mapping[int, int] = EMPTY  # by owners of leases: the process of the script that each is of
    left: tuple[str, ...] | None = None  # leases that are still to be ended, once it is known which
    released: tuple[ShortLease, ...] = ()


class Received(NamedTuple, Generic[Asked]):
    """A whole message of a client. Each verb says of which type it is, once it is checked (protocol/messages.py)."""

    peer: Peer
    message: Asked
    size: int = 0  # bytes on the wire
    progress: BulkProgress | AddProgress | ReleaseProgress | Listing | None = (
        None  # of a long request that is taken up again
    )
    crowded: bool = False  # other users are connected too: long requests are done in smaller pieces


class ClientGone(NamedTuple):
    """The connection of a client ended."""

    peer: Peer


class Behind(NamedTuple):
    """A subscriber has not read what it was sent, and was not sent the last: `CaughtUp` follows when it has."""

    peer: Peer


class CaughtUp(NamedTuple):
    """A subscriber that was too slow has read everything that was sent to it."""

    peer: Peer


class ProcessEnded(NamedTuple):
    key: ProcessKey
    already: bool = False  # it was gone when it was to be watched


class Sampled(NamedTuple):
    sample: Sample


class SampleFailed(NamedTuple):
    """The driver did not answer, or with an error; a check that was under way failed with it."""

    trouble: GpuleaseError


class Checked(NamedTuple):
    """The check before a grant: what was seen on each device that the neighbours let us have."""

    revision: int  # at which it was asked for
    seen: Mapping[str, Occupancy]
    held: Mapping[str, str] = EMPTY  # the other devices, and which neighbour holds each


class CheckRefused(NamedTuple):
    """The check could not begin: a user of a neighbour is choosing, or the driver cannot be asked now."""

    revision: int
    why: str
    temporary: bool = False  # somebody is choosing: usually over within milliseconds
    user: str = ""  # who that is; without a name where nobody can tell
    pid: int | None = None


class NeighboursChanged(NamedTuple):
    """What is known of other tools that hand out the same GPUs; all of it, each time."""

    held: Mapping[str, str] = EMPTY  # devices that they hold, and who it is
    placeholders: Mapping[ProcessKey, str] = EMPTY  # processes of ours that only show a device as taken, and the device
    shown: Mapping[str, Document] = EMPTY  # by neighbour, for people: `trouble` is what is wrong


class LockUsed(NamedTuple):
    """A process that is not a broker holds safe-gpu's lock."""

    pid: int
    who: str  # in words


class LockOffered(NamedTuple):
    """Safe-gpu's lock, for which a check was refused, is ours for a moment."""


class AlarmRang(NamedTuple):
    """An alarm that was asked for."""

    what: str
    id: str = ""


class ClockStepped(NamedTuple):
    """The wall clock was set, or has drifted."""

    wall_ahead: float  # seconds, of the broker's time


class HomeMoved(NamedTuple):
    """The folder with the socket was removed, and is there again, perhaps elsewhere."""

    directory: str


class ConfigRead(NamedTuple):
    """The config file was read again."""

    texts: Mapping[str, str]  # of the last one that was right
    trouble: str | None = None  # what is wrong with it now


class Launched(NamedTuple):
    """The shell of a job's run was started."""

    id: int
    run: int
    pid: int
    start_time: int | None
    log_begin: int
    script_changed: int | None = None  # when its script was changed, if that was after the job was added; milliseconds


class LaunchFailed(NamedTuple):
    id: int
    run: int
    why: str
    temporary: bool = False  # for lack of something that others may give back


class RunEnded(NamedTuple):
    """The shell of a run ended."""

    id: int
    run: int
    code: int | None  # None when nobody can tell but the journal; negative for a signal


class AgentLost(NamedTuple):
    """A user's agent is gone, with all that was under way."""

    uid: int


class Found(NamedTuple):
    """What is left of a job's run that a former broker started."""

    id: int
    run: int
    noted: RunNote
    pid: int | None  # of its shell, alive or not; None when it never began
    start_time: int | None
    alive: bool


class EndRead(NamedTuple):
    """What a run's journal and log tell about its end."""

    id: int
    run: int
    noted: RunNote
    out_of_memory: bool
    unstartable: str | None  # why its command cannot be started at all


class TreeSeen(NamedTuple):
    """How many processes of a job were left after its tree was signalled or looked at."""

    id: int
    run: int
    left: int


class Forced(NamedTuple):
    """How many processes of a job the broker itself could see, before it ended them."""

    id: int
    run: int
    left: int


class OrderAnswered(NamedTuple):
    """How the administrator's own function orders the queue, or why it gave no order."""

    function: str
    answer: Any
    trouble: str | None = None


# fmt: off
Event = (
    Received[Any] | ClientGone | Behind | CaughtUp | ProcessEnded | Sampled | SampleFailed | Checked | CheckRefused
    | NeighboursChanged | LockUsed | LockOffered | AlarmRang | HomeMoved | ConfigRead | ClockStepped | Launched
    | LaunchFailed | RunEnded | AgentLost | Found | EndRead | TreeSeen | Forced | OrderAnswered
)
# fmt: on
