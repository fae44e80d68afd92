"""`gpulease.submit(...)` and `gpulease.jobs(...)`: the queue from Python."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from gpulease.cli.add import own_environment
from gpulease.cli.wait import wait_for
from gpulease.errors import UsageError
from gpulease.leases import _ask, _bytes, _connection, _put_back, _seconds, _texts


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
        found: dict[str, Any] = _ask(_directory(), "show", select=self._select)["jobs"][0]
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
            with open(self.info["log"], errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def kill(self) -> None:
        _ask(_directory(), "kill", select=self._select)

    @property
    def _select(self) -> dict[str, Any]:
        return {"ids": [[self.id, self.id]]}

    def __repr__(self) -> str:
        return f"<job {self.id}>"


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
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    log: str | None = None,
    retry: int = 0,
    time_limit: float | str | None = None,
    after: Iterable[int | SubmittedJob] = (),
    after_any: bool = False,
    hold: bool = False,
    job_name: str | None = None,
    label: str | None = None,
    note: str | None = None,
) -> SubmittedJob:
    """Queue a command; it is on disk when this returns."""
    if isinstance(command, str) or not command:
        raise UsageError(f"The command is {command!r}.", "Give its words as a list, as ['python', 'train.py'].")
    request = {
        "gpus": gpus,
        "memory": _bytes(mem),
        "names": _texts(name),
        "devices": _texts(devices),
        "min_memory": _bytes(min_memory),
        "priority": priority,
        "duration": _seconds(duration),
    }
    options = {
        "cwd": os.path.abspath(cwd or "."),
        "environment": {**own_environment(), **(env or {})},
        "log": None if log is None else os.path.abspath(log),
        "retry": retry,
        "time_limit": _seconds(time_limit),
        "after": [job.id if isinstance(job, SubmittedJob) else job for job in after],
        "after_any": after_any,
        "hold": hold,
        "name": job_name,
        "label": label,
        "note": note,
    }
    done = _ask(
        _directory(),
        "add",
        request={key: value for key, value in request.items() if value not in (None, [])},
        options={key: value for key, value in options.items() if value is not None and value != []},
        commands=[[str(word) for word in command]],
        token=os.urandom(8).hex(),
    )
    return SubmittedJob(done["first"])


def jobs(*, state: str | None = None, label: str | None = None) -> list[SubmittedJob]:
    """The jobs of this user, in the order of their ids."""
    select = {name: value for name, value in {"state": state, "label": label}.items() if value is not None}
    return [SubmittedJob(id) for id in _ask(_directory(), "ls", select=select, ids=True)["ids"]]
