"""PURE: every request that a client may send, what each field may be, and how replies look.

A message is a JSON object. A request has `v` (the protocol's version) and `do`; a reply has `ok`, `error`, `waiting`
or `granted`. Who asks is never in a message: the kernel tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

from gpulease import PROTOCOL
from gpulease.errors import GpuleaseError, ProtocolError, UsageError
from gpulease.model.values import Request

KINDS = ("run", "get", "shell", "acquire", "reservation", "pool")
MOST_GPUS = 1024
TEXT = 1000  # characters of a note or a name
LIST = 1024  # entries of a list
WORDS_AT_ONCE = 100_000  # of the commands of one message

Message = dict[str, Any]

# verb -> field -> what it may be. `?` marks one that may be missing or null.
REQUESTS: dict[str, dict[str, str]] = {
    "acquire": {
        "within": "text?",
        "request": "request",
        "kind": "text",
        "owner": "int?",
        "wait": "seconds?",
        "note": "text?",
        "id": "text?",
        "command": "texts?",
    },
    "why": {"id": "text"},
    "taken": {"id": "text"},
    "cancel": {"id": "text"},
    "release": {"what": "texts?", "mine": "bool?", "all": "bool?", "if_held": "bool?", "gone": "bool?"},
    "renew": {"what": "texts?", "duration": "seconds"},
    "explain": {"id": "text?", "request": "request?", "kind": "text?", "count": "int?"},
    "status": {},
    "subscribe": {"topics": "texts", "select": "select?"},
    "events": {"since": "seconds?", "most": "int?"},
    "learned": {"clear": "bool?"},
    "history": {"since": "seconds?", "until": "seconds?", "step": "seconds?"},
    "usage": {"since": "seconds?", "until": "seconds?", "step": "seconds?"},
    "totals": {},
    "exclude": {"what": "texts", "note": "text?"},
    "include": {"what": "texts"},
    "add": {
        "request": "request",
        "commands": "commands",
        "each": "each?",
        "options": "options",
        "more": "bool?",
        "token": "text?",
    },
    "ls": {"all": "bool?", "most": "int?", "select": "select?", "ids": "bool?"},
    "show": {"select": "select", "environment": "bool?"},
    "kill": {"select": "select", "by": "text?"},
    "rm": {"select": "select"},
    "pause": {"select": "select?", "queue": "bool?"},
    "resume": {"select": "select?", "queue": "bool?"},
    "moved": {"jobs": "marked"},
    "let_go": {"jobs": "marked"},
    "move": {"id": "int", "index": "int?"},
    "start": {"select": "select"},
    "retry": {"select": "select", "changes": "options?", "options": "options?"},
    "edit": {"select": "select", "changes": "options"},
    "clean": {"select": "select?"},
    "set": {"name": "text?", "value": "text?"},
    "notify": {"file": "text?", "events": "texts?", "clear": "bool?"},
    "ping": {},
    "stop": {},
    "backup": {"done": "bool?"},
}


def check(message: Message) -> Message:
    """The message, once it is known to be a request with the right fields; else an error that says what is wrong."""
    if message.get("v") != PROTOCOL:
        raise ProtocolError(f"The message has protocol version {message.get('v')!r}, this broker speaks {PROTOCOL}.")
    verb = message.get("do")
    fields = REQUESTS.get(verb) if isinstance(verb, str) else None
    if fields is None:
        raise ProtocolError(f"The broker does not know how to do {str(message.get('do'))[:40]!r}.")
    for name, kind in fields.items():
        _check_field(name, message.get(name), kind)
    return message


def _check_field(name: str, value: object, kind: str, said: str = "") -> None:
    if value is None and kind.endswith("?"):
        return
    if not FITS[kind.rstrip("?")](value):
        step = f"Give {WORDS.get(kind.rstrip('?'), 'another one')}."
        raise UsageError(f"The value of {said or repr(name)} is not right.", step)


WORDS = {
    "text": f"text of at most {TEXT} characters",
    "texts": f"a list of at most {LIST} texts",
    "int": "a whole number that is not too large",
    "seconds": "a number of seconds that is not too large",
    "bool": "true or false",
    "commands": f"at most {WORDS_AT_ONCE} words in one message, and the rest in others",
    "each": f"at most {WORDS_AT_ONCE} in one message, and the rest in others",
}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e10


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= TEXT


def _is_list(value: object) -> bool:
    return isinstance(value, list) and len(value) <= LIST and all(map(_is_text, value))


def _is_commands(value: object) -> bool:
    """A list of commands, each a list of words. Their number is looked at first: each costs more than its bytes."""
    if not isinstance(value, list) or len(value) > WORDS_AT_ONCE:
        return False
    if sum(len(words) for words in value if isinstance(words, list)) > WORDS_AT_ONCE:
        return False
    return all(
        isinstance(words, list) and 0 < len(words) <= 10_000 and {str}.issuperset(map(type, words)) for words in value
    )


def _is_each(value: object) -> bool:
    """A list with the texts of each command that are its own."""
    return (
        isinstance(value, list)
        and len(value) <= WORDS_AT_ONCE
        and all(
            isinstance(texts, dict) and len(texts) <= 8 and {str}.issuperset(map(type, texts.values()))
            for texts in value
        )
    )


def _is_marked(value: object) -> bool:
    """Jobs by their ids, each with texts or numbers about it."""
    return isinstance(value, list) and len(value) <= LIST and all(map(_is_mark, value))


def _is_mark(one: object) -> bool:
    return (
        isinstance(one, dict)
        and len(one) <= 4
        and FITS["int"](one.get("id"))
        and all(_is_text(value) or isinstance(value, (int, float)) for value in one.values())
    )


FITS: dict[str, Callable[[object], bool]] = {
    "text": _is_text,
    "texts": _is_list,
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62,
    "seconds": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "commands": _is_commands,
    "each": _is_each,
    "marked": _is_marked,
    "options": lambda value: isinstance(value, dict) and len(value) <= 64,
    "select": lambda value: isinstance(value, dict) and len(value) <= 8,
    "request": lambda value: isinstance(value, dict) and len(value) <= 32,
}

# field of a Request -> what it may be
REQUEST_FIELDS = {
    "gpus": "int",
    "memory": "int?",
    "models": "texts?",
    "devices": "texts?",
    "exclude": "texts?",
    "min_memory": "int?",
    "max_leases": "int?",
    "priority": "int",
    "not_before": "seconds?",
    "duration": "seconds?",
    "pack": "bool?",
    "beside_outside": "bool",
    "mig": "bool",
    "relative": "bool",
}


SAID = {"memory": "mem", "models": "model", "not_before": "at"}  # as people write them


def read_request(fields: Message, least: int = 1) -> Request:
    """A Request from its fields on the wire, checked as one from a stranger; a job may ask for no GPU at all."""
    unknown = sorted(set(fields) - set(REQUEST_FIELDS))
    if unknown:
        raise UsageError(f"A request has no field {unknown[0][:40]!r}.")
    values: dict[str, Any] = {}
    for name, value in fields.items():
        _check_field(name, value, REQUEST_FIELDS[name], SAID.get(name, name))
        values[name] = tuple(value) if isinstance(value, list) else value
    for name in ("models", "devices", "exclude"):
        values[name] = values.get(name) or ()
    request = Request(**values)
    _check_amounts(request, least)
    return request


def _check_amounts(request: Request, least: int) -> None:
    if not least <= request.gpus <= MOST_GPUS:
        without = " Only `gpulease add` takes 0: a job without a GPU." if request.gpus == 0 else ""
        raise UsageError(f"The number of GPUs is {request.gpus}.", f"Ask for 1 to {MOST_GPUS}.{without}")
    if not request.gpus and (*request.models, *request.devices, *request.exclude, request.min_memory) != (None,):
        raise UsageError("No GPU is asked for, and it is said which.", "Ask for a GPU, or leave out what says which.")
    if request.memory is not None and request.memory < 1:
        raise UsageError("The share of memory is not positive.", "Write it with its unit, as 6G.")
    if request.memory is not None and request.gpus != 1:
        raise UsageError(
            "A share by memory is of one GPU, and several were asked for.", "Leave out the memory, or ask for one GPU."
        )
    if request.pack and (request.memory is not None or request.gpus != 1):
        raise UsageError(
            "A packed job is on one GPU and declares no memory.", "Leave out `pack`, or the memory and the number."
        )
    if request.beside_outside and request.memory is None and not request.pack:
        raise UsageError("Beside outside use only a share can be given.", "Say how much memory it needs: `--mem 6G`.")
    if request.duration is not None and request.duration <= 0:
        raise UsageError("The time is not above 0.", "Write it as 4h.")
    if not -1_000_000 <= request.priority <= 1_000_000:
        raise UsageError(f"The priority is {request.priority}.", "Give a number around 5; smaller is sooner.")
    for value in (request.min_memory, request.max_leases):
        if value is not None and value < 0:
            raise UsageError("A limit of the request is negative.", "Give 0 or more.")


def error(trouble: GpuleaseError) -> Message:
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
DeviceVerdict = TypedDict("DeviceVerdict", {"label": str, "uuid": str, "code": str, "why": str})
Explained = TypedDict("Explained", {
    "id": str, "lease": dict[str, Any] | None, "why": str | None, "devices": list[DeviceVerdict],
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
# To a subscriber, as `snapshot` and then as `changed`: rows by key, None for what is gone; how many jobs are not over.
Changed = TypedDict("Changed", {
    "devices": NotRequired[dict[str, dict[str, Any] | None]], "leases": NotRequired[dict[str, dict[str, Any] | None]],
    "line": NotRequired[dict[str, dict[str, Any] | None]], "order": NotRequired[dict[str, dict[str, Any] | None]],
    "jobs": NotRequired[dict[str, JobEnd | None]], "open": NotRequired[int],
})
JobRow = TypedDict("JobRow", {
    "id": JobId, "command": list[str], "uid": int, "user": str, "cwd": str, "request": dict[str, Any], "added": float,
    "state": str, "name": str | None, "label": str | None, "note": str | None, "log": str, "retry": int,
    "time_limit": float | None, "after": list[JobId], "after_any": bool, "at_most": int | None, "tries": int,
    "runs": int, "changed": NotRequired[float], "started": float | None, "notify": NotRequired[list[str] | None],
    "ended": float | None, "exit_code": int | None, "signal": int | None, "why": str | None, "out_of_memory": bool,
    "devices": list[str], "peak_memory": int | None, "packed": str | None, "pid": int | None, "why_waiting": str | None,
    "why_short": str | None, "expected_start": float | None, "expected_latest": NotRequired[float | None],
    "expected_missed": NotRequired[float | None], "sure_by": NotRequired[float | None],
    "ending": str | None, "removing": bool,  # why it is being ended; whether it is forgotten then
    "environment": NotRequired[dict[str, str] | None],  # for its submitter, when asked for
    # the file that its command runs; when that had last been changed as it was added, and as it began, in milliseconds
    "script": NotRequired[str | None], "script_time": NotRequired[int | None],
    "script_changed": NotRequired[int | None],
    "usual": NotRequired[dict[str, Any] | None],  # what is known of its like, where that is something
})
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
LeaseRow = TypedDict("LeaseRow", {
    "id": str, "kind": str, "labels": list[str], "user": str, "pid": int | None, "since": float, "until": float | None,
    "memory": int | None, "note": str | None, "job": NotRequired[str | None], "ending": NotRequired[str | None],
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
RequestRow = TypedDict("RequestRow", {"gpus": int, "memory": int | None, "priority": int})

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

# verb -> what its `ok` is, or the name of its one list and what each entry of that is
REPLIES: dict[str, tuple[str | None, Any]] = {
    **dict.fromkeys(("kill", "rm", "pause", "resume", "move", "start", "retry", "edit", "clean"), (None, Done)),
    **dict.fromkeys(("moved", "let_go"), (None, Done)),
    "add": (None, Added), "ls": (None, Listing), "show": ("jobs", JobRow),
    "notify": (None, ToldOf),
    "set": ("parameters", ParameterRow), "explain": (None, Explained), "events": ("events", EventRow),
    "learned": (None, Learned), "release": ("released", ShortLease),
    "renew": ("renewed", ShortLease), "ping": (None, About),
    "stop": (None, Stopped), "status": (None, StatusDocument), "history": (None, HistoryPiece),
    "backup": (None, BackedUp), "usage": (None, UsagePiece), "totals": (None, Totals),
}
# fmt: on
