"""`gpulease.submit(...)` and `gpulease.jobs(...)`: the queue from Python."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gpulease import leases
from gpulease.cli import job_options
from gpulease.cli.choosing import STATES, named
from gpulease.cli.show import open_log
from gpulease.cli.wait import wait_for
from gpulease.client import Client, refuse_stranger
from gpulease.errors import GpuleaseError, NotFound, UsageError
from gpulease.leases import _bytes, _connection, _put_back, _texts

# What the broker calls by its option is called by its argument here.
ARGUMENTS = {
    "--hold": "hold=True",
    "--after-any": "after_any",
    "--after 3,4": "after=[3, 4]",
    "--mem or --gpus": "mem or gpus",
    "--mem 6G": "mem='6G'",
    "--for 4h": "duration='4h'",
}


def _directory() -> str | None:
    """Of the broker that this thread is connected to already."""
    client = _connection()
    if client is None:
        return None
    _put_back(client)
    return client.directory


class SubmittedJob:
    """A job in the queue, as it is whenever it is asked."""

    def __init__(self, id: int) -> None:
        self.id = id

    @property
    def info(self) -> dict[str, Any]:
        """Everything that `gpulease show --json` tells."""
        found: dict[str, Any] = _ask("show", self._select)["jobs"][0]
        return found

    @property
    def state(self) -> str:
        return str(self.info["state"])

    @property
    def exit_code(self) -> int | None:
        code: int | None = self.info["exit_code"]
        return code

    def wait(self, timeout: float | str | None = None) -> str:
        """The state in which it ended. Raises NotGranted when that takes longer than `timeout`."""
        seconds = _seconds(timeout)
        ended = wait_for(self._select, None if seconds is None else time.monotonic() + seconds)
        return str(ended[self.id]["state"])

    def log(self) -> str:
        """Its output so far."""
        try:
            with open_log(self.info["log"]) as file:
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def kill(self) -> None:
        _ask("kill", self._select)

    @property
    def _select(self) -> dict[str, Any]:
        return {"ids": [[self.id, self.id]]}

    def __repr__(self) -> str:
        return f"<job {self.id}>"


Others = int | str | SubmittedJob | Iterable[int | str | SubmittedJob]


def submit(
    command: Sequence[str],
    *,
    gpus: int = 1,
    mem: int | str | None = None,
    name: str | Iterable[str] | None = None,
    devices: int | str | Iterable[int | str] | None = None,
    min_memory: int | str | None = None,
    priority: int = 5,
    duration: float | str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
    retry: int = 0,
    time_limit: float | str | None = None,
    after: Others = (),
    after_any: bool | Others = False,
    at: str | float | datetime | None = None,
    hold: bool = False,
    job_name: str | None = None,
    label: str | None = None,
    note: str | None = None,
) -> SubmittedJob:
    """Queue a command; it is on disk when this returns.

    It comes after `after`, if those are complete, or after `after_any`, however they end.
    """
    if isinstance(command, str) or not command:
        raise UsageError(f"The command is {command!r}.", "Give its words as a list, as ['python', 'train.py'].")
    words = [str(word) for word in command]
    job_options.check_command(words)
    request = {
        "gpus": gpus,
        "memory": _bytes(mem),
        "names": _texts(name),
        "devices": _texts(devices),
        "min_memory": _bytes(min_memory),
        "priority": priority,
        "duration": _seconds(duration),
        "not_before": _moment(at),
    }
    options = {
        "cwd": job_options.folder(None if cwd is None else os.fspath(cwd)),
        "environment": {**job_options.own_environment(), **job_options.variables(env or {})},
        "log": job_options.log_path(None if log is None else os.fspath(log)),
        "retry": retry,
        "time_limit": job_options.time_limit(_seconds(time_limit), "time_limit"),
        **_dependencies(after, after_any),
        "hold": hold,
        "name": job_name,
        "label": label,
        "note": note,
    }
    return SubmittedJob(_add(words, request, options))


def _add(words: list[str], request: dict[str, Any], options: dict[str, Any]) -> int:
    """The id. What was not given is left out; the token lets it be sent again and be queued once."""
    _refuse_stranger()
    done = _ask(
        "add",
        request={key: value for key, value in request.items() if value not in (None, [])},
        options={key: value for key, value in options.items() if value is not None and value != []},
        commands=[words],
        token=os.urandom(8).hex(),
    )
    id: int = done["first"]
    return id


def jobs(*, state: str | None = None, label: str | None = None) -> list[SubmittedJob]:
    """The jobs of this user, in the order of their ids."""
    if state is not None and state not in STATES:
        raise UsageError(f"The state is {state!r}.", f"Give one of {', '.join(STATES)}.")
    select = {name: value for name, value in {"state": state, "label": label}.items() if value is not None}
    return [SubmittedJob(id) for id in _ask("ls", select, ids=True)["ids"]]


def _refuse_stranger() -> None:
    client = leases._connection() or Client()
    refuse_stranger(client)
    leases._put_back(client)


def _ask(verb: str, select: dict[str, Any] | None = None, **fields: Any) -> Any:
    """The broker's answer, or its error in the words of Python."""
    if select is not None:
        fields["select"] = select
    try:
        return leases._ask(_directory(), verb, **fields)
    except NotFound as error:
        raise named(error, select or {}) from None
    except GpuleaseError as error:
        for option, argument in ARGUMENTS.items():
            error.next_step = error.next_step.replace(option, argument)
        raise


def _seconds(value: float | str | None) -> float | None:
    seconds = leases._seconds(value)
    if seconds is not None and not math.isfinite(seconds):
        raise UsageError(f"A time is {value!r}.", "Give seconds, or text as '30m', or None for no limit.")
    return seconds


def _moment(value: str | float | datetime | None) -> float | None:
    """As Unix seconds."""
    if value is None:
        return None
    if isinstance(value, str):
        return job_options.moment(value)
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"at is {value!r}.", "Give a datetime, Unix seconds, or text as '22:30' or 'in 2h'.")
    return float(value)


def _dependencies(after: Others, after_any: bool | Others) -> dict[str, Any]:
    if isinstance(after_any, bool):
        return {"after": _ids(after, "after"), "after_any": after_any}
    first, second = _ids(after, "after"), _ids(after_any, "after_any")
    if first and second:
        raise UsageError("after and after_any were both given.", "Leave one of the two out.")
    return {"after": first or second, "after_any": bool(second)}


def _ids(given: Others, argument: str) -> list[int]:
    if isinstance(given, str):
        return job_options.ids(given, argument)
    if isinstance(given, SubmittedJob):
        return [given.id]
    if isinstance(given, int) and not isinstance(given, bool):
        return [given]
    if not isinstance(given, Iterable):
        raise UsageError(f"{argument} is {given!r}.", "Give a job, an id, or a list of them.")
    return [id for one in given for id in _ids_of_one(one, argument)]


def _ids_of_one(given: object, argument: str) -> list[int]:
    if isinstance(given, (str, SubmittedJob)) or (isinstance(given, int) and not isinstance(given, bool)):
        return _ids(given, argument)
    raise UsageError(f"{argument} has {given!r} in it.", "Give jobs or ids.")
