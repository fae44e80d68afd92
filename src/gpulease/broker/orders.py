"""What broker and agents say to each other: orders one way, events the other. A stranger may be at the other end.

An agent is a process of its user, who may do with it whatever they like: what it says is checked, and is only ever
about its own user's runs (broker/edge/agents.py).
"""

from __future__ import annotations

import os
import signal as signals
from collections.abc import Callable
from typing import Any

from gpulease.broker.core.events import EndRead, Event, Found, Launched, LaunchFailed, RunEnded, RunNote, TreeSeen
from gpulease.broker.core.instructions import FindRun, Launch, ReadEnd, SignalTree
from gpulease.errors import ProtocolError
from gpulease.protocol.wire import Message, pack

LARGEST = 64 << 20  # bytes of one order: a command and its environment
LARGEST_EVENT = 1 << 16
LONGEST = 1000  # letters of a sentence
MOST = 1 << 53


def order(one: Launch | ReadEnd | FindRun | SignalTree) -> Message:
    """All that an agent needs to know of a run, but for the environment: it has the one before, if that is equal."""
    job = one.job
    common = {
        "id": job.id,
        "run": job.run,
        "log": job.spec.log,
        "log_limit": one.place.log_limit,
        "note": one.place.note,
    }
    if isinstance(one, Launch):
        fresh = job.run == 1 and job.spec.log == f"{os.path.dirname(os.path.dirname(one.place.note))}/{job.id}.log"
        said: dict[str, object] = {"cwd": job.spec.cwd, "command": job.spec.command, "given": one.given, "fresh": fresh}
        said |= {"script": job.spec.script, "script_time": job.spec.script_time}
        return {"do": "launch", **common, **said}
    if isinstance(one, ReadEnd):
        said = {"cwd": job.spec.cwd, "command": job.spec.command, "code": one.code}
        said |= {"pid": job.pid, "log_begin": job.log_begin}
        return {"do": "read-end", **common, **said}
    if isinstance(one, FindRun):
        return {"do": "find", **common, "root": one.root}
    return {"do": "signal", **common, "root": one.root, "signals": one.signals, "every": one.every}


# -------------------------------------------------------------------- events


def packed(event: Event) -> bytes:
    return pack({"event": type(event).__name__, "fields": event}, LARGEST_EVENT)


def read_event(message: Message) -> Event:
    """The event that an agent tells of; raises ProtocolError for anything else."""
    kind, fields = message.get("event"), message.get("fields")
    shape = SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None or not isinstance(fields, list) or len(fields) != len(shape[1]):
        raise ProtocolError("An agent sent an invalid message.")
    make, checks = shape
    event: Event = make(*(check(value) for check, value in zip(checks, fields, strict=True)))
    return event


def read_process(value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ProtocolError("An agent did not say who it is.")
    return _pid(value[0]), _number(value[1])


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise ProtocolError("An agent gave no number.")
    return value


def _pid(value: object) -> int:
    if _number(value) <= 1:
        raise ProtocolError("An agent named a process that does not belong to a job.")
    return _number(value)


def _code(value: object) -> int:
    if type(value) is not int or not -signals.NSIG <= value <= 255:
        raise ProtocolError("An agent gave no exit code.")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ProtocolError("An agent gave neither true nor false.")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ProtocolError("An agent gave no text.")
    return value[:LONGEST]


def _run_note(value: object) -> RunNote:
    if not isinstance(value, list) or len(value) != 3:
        raise ProtocolError("An agent gave no end of a run.")
    return RunNote(_or_none(_pid)(value[0]), _or_none(_code)(value[1]), _or_none(_text)(value[2]))


def _or_none(check: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else check(value)


SHAPES: dict[str, tuple[Callable[..., Any], tuple[Callable[[object], Any], ...]]] = {
    "Launched": (Launched, (_number, _number, _pid, _or_none(_number), _number, _or_none(_number))),
    "LaunchFailed": (LaunchFailed, (_number, _number, _text, _flag)),
    "RunEnded": (RunEnded, (_number, _number, _or_none(_code))),
    "Found": (Found, (_number, _number, _run_note, _or_none(_pid), _or_none(_number), _flag)),
    "EndRead": (EndRead, (_number, _number, _run_note, _flag, _or_none(_text))),
    "TreeSeen": (TreeSeen, (_number, _number, _number)),
}
