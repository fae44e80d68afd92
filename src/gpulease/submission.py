"""`gpulease.submit(...)`, `gpulease.jobs(...)` and `gpulease.edit(...)`: the queue from Python."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpulease import queueing
from gpulease.errors import GpuleaseError, UsageError
from gpulease.job_fields import command_words, job_changes, job_fields
from gpulease.job_log import open_log
from gpulease.job_selection import selection
from gpulease.request_fields import FIELDS, as_argument, request_fields

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from gpulease.job_selection import Named
    from gpulease.messages import Done, JobRow

# What the broker calls by its option is called by its argument here.
CHANGEABLE = {
    *FIELDS, "command", "cwd", "retry", "time_limit", "after", "after_any", "after_label", "name", "note", "new_label",
}  # fmt: skip
ARGUMENTS = {
    "--hold": "hold=True",
    "--after-any": "after_any",
    "--after 3,4": "after=[3, 4]",
    "--mem or --gpus": "mem or gpus",
    "--mem 6G": "mem='6G'",
    "--for 4h": "duration='4h'",
}


class SubmittedJob:
    """A job in the queue, as it is whenever it is asked."""

    def __init__(self, id: int) -> None:
        self.id = id

    @property
    def info(self) -> JobRow:
        """Everything that `gpulease show --json` tells."""
        return queueing.show(self.id)[0]

    @property
    def state(self) -> str:
        return self.info["state"]

    @property
    def exit_code(self) -> int | None:
        return self.info["exit_code"]

    def wait(self, timeout: float | str | None = None) -> str:
        """The state in which it ended. Raises NotGranted when that takes longer than `timeout`."""
        return queueing.wait(self.id, timeout=timeout)[0]["state"]

    def log(self) -> str:
        """Its output so far."""
        try:
            with open_log(self.info["log"], self.info["uid"]) as file:
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def kill(self) -> None:
        queueing.kill(self.id)

    def __repr__(self) -> str:
        return f"<job {self.id}>"


def submit(
    command: Sequence[str],
    *,
    gpus: int = 1,
    mem: int | str | None = None,
    model: str | Iterable[str] | None = None,
    devices: int | str | Iterable[int | str] | None = None,
    exclude: int | str | Iterable[int | str] | None = None,
    min_memory: int | str | None = None,
    max_leases: int | None = None,
    priority: int = 5,
    duration: float | str | None = None,
    visible_by: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    no_env: str | Iterable[str] = (),
    log: str | os.PathLike[str] | None = None,
    retry: int = 0,
    time_limit: float | str | None = None,
    after: Named = (),
    after_any: bool | Named = False,
    after_label: str | None = None,
    at: str | float | datetime | None = None,
    hold: bool = False,
    name: str | None = None,
    label: str | None = None,
    note: str | None = None,
) -> SubmittedJob:
    """Queue a command; it is on disk when this returns.

    It gets this process's variables, without those like `no_env` or the parameter `env-exclude`, and with `env`.
    It comes after `after`, if those are complete, or after `after_any`, however they end: jobs, ids, "5-9", "last", or
    "all" of this user's that are not over. `after_label` are those of them with a label; `after_any=True`: however.
    """
    given = dict(locals())  # the arguments, by their names
    words = command_words(given.pop("command"))
    with _in_words_of_python():
        added = queueing.add([words], request_fields(given, now=time.time()), job_fields(given))
    if added["left_out"]:
        names = ", ".join(added["left_out"])
        warnings.warn(f"the job does not get {names}: secret by its name; give it in env=", stacklevel=2)
    return SubmittedJob(added["first"])


def edit(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    **changes: Any,
) -> Done:
    """Change jobs that wait or are held. What is not given stays; None takes back what there was.

    `gpus mem model devices exclude min_memory max_leases priority duration at`, `command cwd retry time_limit after
    after_any after_label name note` as for `submit`, and `new_label`.
    """
    select = selection(jobs, label, state, user, mine)
    strange = sorted(set(changes) - CHANGEABLE)
    if strange:
        raise UsageError(f"A job has no {strange[0]!r} that can be changed.", "See the reference of `edit`.")
    with _in_words_of_python():
        return queueing.change(select, job_changes(changes, as_argument, time.time()))


def jobs(*, state: str | None = None, label: str | None = None) -> list[SubmittedJob]:
    """The jobs of this user, in the order of their ids."""
    select = selection((), label, state, required=False)
    return [SubmittedJob(id) for id in queueing.ask("ls", select, ids=True)["ids"]]


class _in_words_of_python:
    """The broker's errors speak of options; here they are arguments."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, GpuleaseError):
            for option, argument in ARGUMENTS.items():
                error.next_step = error.next_step.replace(option, argument)
