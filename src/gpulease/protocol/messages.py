"""PURE: every message between clients and broker, both ways, as types.

A message is a JSON object. A request has `v` (the protocol's version) and `do`; a reply has `ok`, `error`, `waiting`
or `granted`. A message never says who sends it: the kernel does. check.py holds messages against these types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from gpulease.errors import GpuleaseError
from gpulease.model.fields import A_LIST, FLAG, MANY, SHORT_TEXT, SPAN, WHOLE, are_texts, is_flag, is_seconds, is_whole
from gpulease.model.jobs import AskedRow

KINDS = ("run", "get", "shell", "acquire", "reservation", "pool")
WORDS_AT_ONCE = 100_000  # of the commands of one message

Message = Mapping[str, Any]


class Fits(NamedTuple):
    """Beside a type: what says whether a value is right, in the place of the walk over its type; and what to give."""

    fits: Callable[[Any], bool]
    hint: str


class AtMost(NamedTuple):
    """Beside the type of a list or a dictionary: how long it may be."""

    entries: int


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= SHORT_TEXT


def _are_commands(value: object) -> bool:
    """A list of commands, each a list of words. Their number is looked at first: each costs more than its bytes."""
    if not isinstance(value, list) or len(value) > WORDS_AT_ONCE:
        return False
    if sum(len(words) for words in value if isinstance(words, list)) > WORDS_AT_ONCE:
        return False
    return all(
        isinstance(words, list) and 0 < len(words) <= 10_000 and {str}.issuperset(map(type, words)) for words in value
    )


def _are_own_texts(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= WORDS_AT_ONCE
        and all(
            isinstance(texts, dict) and len(texts) <= 8 and {str}.issuperset(map(type, texts.values()))
            for texts in value
        )
    )


# ---------------------------------------------------------------------- requests

# fmt: off
Text = Annotated[str, Fits(_is_text, f"Give text of at most {SHORT_TEXT} characters.")]
Texts = Annotated[list[str], Fits(are_texts, A_LIST)]
Whole = Annotated[int, Fits(is_whole, WHOLE.hint)]
Seconds = Annotated[float, Fits(is_seconds, SPAN.hint)]
Flag = Annotated[bool, Fits(is_flag, FLAG.hint)]
IN_PARTS = f"Give at most {WORDS_AT_ONCE} words in one message, and the rest in others."
Commands = Annotated[list[list[str]], Fits(_are_commands, IN_PARTS)]
OwnTexts = Annotated[list[dict[str, str]], Fits(_are_own_texts, IN_PARTS)]  # of each command of a batch
# What a request or a job has, and what `edit` changes: the rows of model/fields.py read it.
Fields = Annotated[dict[str, object], AtMost(64)]
Select = TypedDict("Select", {
    "ids": list[list[Whole]], "all": bool, "last": bool, "label": Text, "state": Text, "user": Text, "mine": bool,
}, total=False)
Copied = TypedDict("Copied", {  # a job in a move between hosts
    "id": Whole, "to": NotRequired[Text], "changed": NotRequired[float | None], "token": NotRequired[Text],
})
AcquireRequest = TypedDict("AcquireRequest", {
    "request": Fields, "kind": Text, "within": NotRequired[Text | None], "owner": NotRequired[Whole | None],
    "wait": NotRequired[Seconds | None], "note": NotRequired[Text | None], "id": NotRequired[Text | None],
    "command": NotRequired[Texts | None],
})
LeaseRequest = TypedDict("LeaseRequest", {"id": Text})
ReleaseRequest = TypedDict("ReleaseRequest", {
    "what": NotRequired[Texts | None], "mine": NotRequired[Flag | None], "all": NotRequired[Flag | None],
    "if_held": NotRequired[Flag | None], "gone": NotRequired[Flag | None],
})
RenewRequest = TypedDict("RenewRequest", {"what": NotRequired[Texts | None], "duration": Seconds})
ExplainRequest = TypedDict("ExplainRequest", {
    "id": NotRequired[Text | None], "request": NotRequired[Fields | None], "kind": NotRequired[Text | None],
    "count": NotRequired[Whole | None],
})
SubscribeRequest = TypedDict("SubscribeRequest", {"topics": Texts, "select": NotRequired[Select | None]})
EventsRequest = TypedDict("EventsRequest", {"since": NotRequired[Seconds | None], "most": NotRequired[Whole | None]})
LearnedRequest = TypedDict("LearnedRequest", {"clear": NotRequired[Flag | None]})
SpanRequest = TypedDict("SpanRequest", {
    "since": NotRequired[Seconds | None], "until": NotRequired[Seconds | None], "step": NotRequired[Seconds | None],
})
DevicesRequest = TypedDict("DevicesRequest", {"what": Texts, "note": NotRequired[Text | None]})
AddRequest = TypedDict("AddRequest", {
    "request": Fields, "commands": Commands, "each": NotRequired[OwnTexts | None], "options": Fields,
    "more": NotRequired[Flag | None], "token": NotRequired[Text | None],
})
ListRequest = TypedDict("ListRequest", {
    "all": NotRequired[Flag | None], "most": NotRequired[Whole | None], "select": NotRequired[Select | None],
    "ids": NotRequired[Flag | None],
})
ShowRequest = TypedDict("ShowRequest", {"select": Select, "environment": NotRequired[Flag | None]})
JobsRequest = TypedDict("JobsRequest", {"select": Select})
KillRequest = TypedDict("KillRequest", {"select": Select, "by": NotRequired[Text | None]})
PauseRequest = TypedDict("PauseRequest", {"select": NotRequired[Select | None], "queue": NotRequired[Flag | None]})
MovedRequest = TypedDict("MovedRequest", {"jobs": Annotated[list[Copied], AtMost(MANY)]})
MoveRequest = TypedDict("MoveRequest", {"id": Whole, "index": NotRequired[Whole | None]})
RetryRequest = TypedDict("RetryRequest", {
    "select": Select, "changes": NotRequired[Fields | None], "options": NotRequired[Fields | None],
})
EditRequest = TypedDict("EditRequest", {
    "select": Select, "changes": Fields,
    "cap": NotRequired[int | None],  # the core's own: the sweep of jobs that are in none, whatever a client says
})
CleanRequest = TypedDict("CleanRequest", {"select": NotRequired[Select | None]})
SetRequest = TypedDict("SetRequest", {"name": NotRequired[Text | None], "value": NotRequired[Text | None]})
NotifyRequest = TypedDict("NotifyRequest", {
    "file": NotRequired[Text | None], "events": NotRequired[Texts | None], "clear": NotRequired[Flag | None],
})
BackupRequest = TypedDict("BackupRequest", {"done": NotRequired[Flag | None]})
PlainRequest = TypedDict("PlainRequest", {})

REQUESTS: dict[str, Any] = {
    "acquire": AcquireRequest, "why": LeaseRequest, "taken": LeaseRequest, "cancel": LeaseRequest,
    "release": ReleaseRequest, "renew": RenewRequest, "explain": ExplainRequest, "status": PlainRequest,
    "subscribe": SubscribeRequest, "events": EventsRequest, "learned": LearnedRequest, "history": SpanRequest,
    "usage": SpanRequest, "totals": PlainRequest, "exclude": DevicesRequest, "include": DevicesRequest,
    "add": AddRequest, "ls": ListRequest, "show": ShowRequest, "kill": KillRequest, "rm": JobsRequest,
    "pause": PauseRequest, "resume": PauseRequest, "moved": MovedRequest, "let_go": MovedRequest, "move": MoveRequest,
    "start": JobsRequest, "retry": RetryRequest, "edit": EditRequest, "clean": CleanRequest, "set": SetRequest,
    "notify": NotifyRequest, "ping": PlainRequest, "stop": PlainRequest, "backup": BackupRequest,
}
# fmt: on


def error(trouble: GpuleaseError) -> Reply:
    return {
        "error": {
            "code": trouble.code,
            "what": trouble.what,
            "next_step": trouble.next_step,
            "fields": {name: value for name, value in trouble.fields.items() if isinstance(value, (int, str, float))},
        }
    }


# ---------------------------------------------------------------------- replies: what `granted`, `waiting` or `ok` has

# fmt: off
JobId = int | str  # a number; of Slurm text, as `12` or `12_3` of an array
GrantedDevice = TypedDict("GrantedDevice", {"label": str, "uuid": str, "name": str, "vendor": str})
Granted = TypedDict("Granted", {
    "id": str, "devices": list[GrantedDevice], "memory": int | None, "since": float, "until": float | None,
    "visible": NotRequired[str],  # how the broker would name the devices to a program: uuid or index
})
StillWaiting = TypedDict("StillWaiting", {"id": str, "place": int, "why": str})
ShortLease = TypedDict("ShortLease", {"id": str, "devices": list[str], "user": str, "until": float | None})
LeaseRow = TypedDict("LeaseRow", {
    "id": str, "kind": str, "labels": list[str], "user": str, "pid": int | None, "since": float, "until": float | None,
    "memory": int | None, "note": str | None, "job": NotRequired[str | None], "ending": NotRequired[str | None],
})
DeviceVerdict = TypedDict("DeviceVerdict", {"label": str, "uuid": str, "code": str, "why": str})
Explained = TypedDict("Explained", {
    "id": str, "lease": LeaseRow | None, "why": str | None, "devices": list[DeviceVerdict],
    "place": NotRequired[int], "code": NotRequired[str], "why_short": NotRequired[str],  # of what waits
    "expected_start": NotRequired[float | None], "expected_latest": NotRequired[float | None],
    "expected_missed": NotRequired[float | None], "sure_by": NotRequired[float | None],
    "possible": NotRequired[bool], "starts": NotRequired[list[float | None]], "load": NotRequired[float],  # not queued
    "gpus": NotRequired[int],
})
EventRow = TypedDict("EventRow", {
    "time": float, "what": str, "user": str,  # the others depend on `what`
    "id": NotRequired[str], "kind": NotRequired[str], "devices": NotRequired[list[str]], "pid": NotRequired[int | None],
    "why": NotRequired[str | None], "note": NotRequired[str | None], "waited": NotRequired[float],
    "until": NotRequired[float | None], "since": NotRequired[float], "asked_by": NotRequired[int],
    "releaser": NotRequired[str], "releaser_pid": NotRequired[int],
})
# Of the history and of usage: seconds; of these, with a known utilization; of these, busy and idle ones.
HolderRow = TypedDict("HolderRow", {
    "user": str, "label": str | None, "outside": bool, "held": float, "known": float, "busy": float, "idle": float,
})
HistoryRow = TypedDict("HistoryRow", {
    "time": float, "device": str, "uuid": str, "name": str, "watched": float, "known": float, "busy": float,
    "idle": float, "utilization": float | None, "memory": int | None, "memory_most": int | None, "power": int | None,
    "held": float, "holders": list[HolderRow],
})
HistoryPiece = TypedDict("HistoryPiece", {
    "since": float, "until": float, "step": int, "now": float, "rows": list[HistoryRow],
    "next": float | None,  # ask again from here
})
UseRow = TypedDict("UseRow", {
    "time": float, "device": str, "user": str, "groups": list[str], "label": str | None, "outside": bool,
    "held": float, "known": float, "busy": float, "idle": float,
})
CountRow = TypedDict("CountRow", {
    "time": float, "devices": list[str], "user": str, "groups": list[str], "label": str | None, "granted": int,
    "waited": float, "jobs": dict[str, int],
})
UsagePiece = TypedDict("UsagePiece", {
    "since": float, "until": float, "step": int, "now": float, "rows": list[UseRow], "counts": list[CountRow],
    "everybody": bool, "next": float | None, "note": NotRequired[str | None],
})
# Sums that only grow, in seconds by user; `waits`: how many grants waited at most so many seconds.
Totals = TypedDict("Totals", {
    "held": dict[str, float], "known": dict[str, float], "busy": dict[str, float], "idle": dict[str, float],
    "waits": list[list[int]], "granted": int, "waited": float,
    "everybody": bool,
})
# What `usage` adds up from pieces, for the command line and for Python.
UsageRow = TypedDict("UsageRow", {
    "name": str, "held": float, "known": float, "busy": float, "idle": float, "outside": float,
    "idle_share": float | None, "granted": int, "mean_wait": float | None, "jobs": dict[str, int],
})
UsageDocument = TypedDict("UsageDocument", {
    "since": float, "until": float, "step": int, "by": str, "everybody": bool, "rows": list[UsageRow],
    "total": UsageRow, "note": NotRequired[str | None],  # what is missing, if something is
})
# Of jobs: those that it was done to, and a sentence for each that was left as it is.
Done = TypedDict("Done", {
    "ids": list[JobId], "skipped": list[str],
    "ending": NotRequired[list[JobId]],  # those of `ids` that were told to end and still run
    "left_out": NotRequired[list[str]],  # variables that were not given to jobs that run again
})
Added = TypedDict("Added", {
    "first": JobId, "last": JobId, "left_out": list[str],
    "ids": NotRequired[list[JobId]],  # of an engine whose ids do not just follow each other
})  # variables that the job does not get
JobEnd = TypedDict("JobEnd", {"id": JobId, "state": str, "exit_code": int | None})
# What is known of jobs like it.
UsualRow = TypedDict("UsualRow", {
    "seconds_50": float | None, "seconds_90": float | None, "memory": int | None, "mem": str | None, "shares": int,
})


class JobRow(AskedRow):
    """A job as programs read it: what was asked for, and its life."""

    id: JobId
    uid: int
    user: str
    added: float
    state: str
    tries: int
    runs: int
    changed: NotRequired[float]
    started: float | None
    ended: float | None
    exit_code: int | None
    signal: int | None
    why: str | None
    out_of_memory: bool
    devices: list[str]
    peak_memory: int | None
    packed: str | None
    pid: int | None
    why_waiting: str | None
    why_short: str | None
    expected_start: float | None
    expected_latest: NotRequired[float | None]
    expected_missed: NotRequired[float | None]
    sure_by: NotRequired[float | None]
    ending: str | None  # why it is being ended
    removing: bool  # whether it is forgotten then
    environment: NotRequired[dict[str, str] | None]  # for its submitter, when asked for
    script_changed: NotRequired[int | None]  # when its script had been changed as it began, in milliseconds
    usual: NotRequired[UsualRow | None]


Listing = TypedDict("Listing", {"jobs": list[JobRow], "counts": dict[str, int], "paused": bool, "simulated": bool,
                                "state_trouble": str | None, "time": NotRequired[float],
                                "most": NotRequired[int]})  # of each kind that are listed, whatever was asked for
ParameterRow = TypedDict("ParameterRow", {
    "name": str, "value": str, "number": float | None, "default": bool, "from": str, "meaning": str,
    "gpulimit": str | None,
    "warnings": list[str],
})
ToldOf = TypedDict("ToldOf", {"file": str | None, "events": list[str] | None})  # of notices; None: none is sent
About = TypedDict("About", {
    "pid": int, "kind": str, "user": str, "directory": str, "version": str, "uptime": float,
    "config_trouble": str | None, "state_trouble": str | None, "visible": str,
})
Stopped = TypedDict("Stopped", {"leases": int, "jobs": int, "ending": int, "line": int})
# Of these the fields that a command reads; `gpulease help json` has all of them.
ProcessRow = TypedDict("ProcessRow", {
    "pid": int, "user": str | None, "command": str | None, "memory": int | None, "graphics": bool,
})
ClaimRow = TypedDict("ClaimRow", {
    "user": str, "uid": int | None, "pid": int | None, "broker": str | None, "kind": str | None,
    "since": float | None, "note": str | None, "for": str | None,
})
DeviceRow = TypedDict("DeviceRow", {
    "index": int, "uuid": str, "name": str, "vendor": str, "instance": int | None, "label": str, "state": str,
    "memory_total": int | None, "memory_used": int | None, "utilization": float | None, "temperature": float | None,
    "power": float | None, "lost": str | None, "note": str | None, "leases": list[str], "outside": list[int],
    "processes": list[ProcessRow] | None, "throttling": NotRequired[list[str] | None],
    "holder": NotRequired[ClaimRow | None],
})
LineRow = TypedDict("LineRow", {
    "id": str, "kind": str, "user": str, "gpus": int, "memory": int | None, "priority": int, "since": float,
    "why": str, "note": str | None, "why_short": NotRequired[str | None],
})
NeighbourRow = TypedDict("NeighbourRow", {"trouble": NotRequired[str | None]})
StatusDocument = TypedDict("StatusDocument", {
    "host": str, "simulated": bool, "driver": str | None, "time": float, "sample_age": float | None,
    "trouble": str | None, "broker": About, "devices": list[DeviceRow], "leases": list[LeaseRow],
    "line": list[LineRow], "line_length": int, "neighbours": NotRequired[dict[str, NeighbourRow]],
    "passed_by": NotRequired[list[str]], "host_memory_total": NotRequired[int | None],
    "host_memory_available": NotRequired[int | None],
})

ShapeRow = TypedDict("ShapeRow", {
    "command": str, "request": str, "runs": float, "seconds_mean": float, "seconds_50": float, "seconds_90": float,
    "memory": int | None, "last": float,
})
BackedUp = TypedDict("BackedUp", {
    "file": NotRequired[str],  # which stays as it is until it was copied
    "held": NotRequired[bool],  # whether it did
})
Starts = TypedDict("Starts", {"compared": float, "by_likely": float, "by_latest": float, "late": NotRequired[int]})
Learned = TypedDict("Learned", {"shapes": list[ShapeRow], "starts": Starts, "forgotten": NotRequired[int]})

# To a subscriber, as `snapshot` and then as `changed`: rows by key, None for what is gone; how many jobs are not over.
OrderRow = TypedDict("OrderRow", {"ids": list[str], "length": int})
Changed = TypedDict("Changed", {
    "devices": NotRequired[dict[str, DeviceRow | None]], "leases": NotRequired[dict[str, LeaseRow | None]],
    "line": NotRequired[dict[str, LineRow | None]], "order": NotRequired[dict[str, OrderRow | None]],
    "jobs": NotRequired[dict[str, JobEnd | None]], "open": NotRequired[int],
})
ErrorRow = TypedDict("ErrorRow", {
    "code": str, "what": str, "next_step": str, "fields": dict[str, int | str | float],
})
# A whole message of the broker: one of these.
Reply = TypedDict("Reply", {
    "ok": Any,  # of REPLIES
    "error": ErrorRow, "granted": Granted, "waiting": StillWaiting, "snapshot": Changed, "changed": Changed,
}, total=False)
Shown = TypedDict("Shown", {"jobs": list[JobRow]})
Ids = TypedDict("Ids", {"ids": list[JobId]})  # of `ls`, which was asked for no more
Parameters = TypedDict("Parameters", {"parameters": list[ParameterRow]})
Events = TypedDict("Events", {"events": list[EventRow]})
Released = TypedDict("Released", {"released": list[ShortLease]})
Renewed = TypedDict("Renewed", {"renewed": list[ShortLease]})
Excluded = TypedDict("Excluded", {"excluded": list[str]})
Included = TypedDict("Included", {"included": list[str]})
Taken = TypedDict("Taken", {"taken": bool})
CancelledWait = TypedDict("CancelledWait", {"cancelled": bool})
QueuePaused = TypedDict("QueuePaused", {"paused": bool})
More = TypedDict("More", {"more": bool})  # of `add`: the next part of the batch is awaited

# verb -> what its `ok` is
REPLIES: dict[str, Any] = {
    **dict.fromkeys(("kill", "rm", "move", "start", "retry", "edit", "clean", "moved", "let_go"), Done),
    **dict.fromkeys(("pause", "resume"), Done | QueuePaused),
    "add": Added | More, "ls": Listing | Ids, "show": Shown, "notify": ToldOf, "set": Parameters, "explain": Explained,
    "events": Events, "learned": Learned, "release": Released, "renew": Renewed, "ping": About, "stop": Stopped,
    "status": StatusDocument, "history": HistoryPiece, "backup": BackedUp, "usage": UsagePiece, "totals": Totals,
    "exclude": Excluded, "include": Included, "taken": Taken, "cancel": CancelledWait,
}
# fmt: on
