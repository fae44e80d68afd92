"""`gpulease.submit(...)`, `sweep(...)`, `jobs(...)` and `edit(...)`: the queue from Python."""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpulease.api import jobs as api_jobs
from gpulease.api.job_commands import by_shell, job_changes, job_fields, refuse_unstartable, swept
from gpulease.api.log import open_log
from gpulease.errors import UsageError
from gpulease.model.fields import CHANGEABLE, OWN, as_argument, command_words, request_fields
from gpulease.model.job_selection import selection
from gpulease.model.sweeps import texts_of

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from gpulease.model.job_selection import JobId, Named
    from gpulease.protocol.messages import Done, JobRow

SHOWN = 70  # letters of a command


class SubmittedJob:
    """A job in the queue, as it is whenever it is asked."""

    def __init__(self, id: JobId, command: Sequence[str] = ()) -> None:
        self.id = id
        self._command, self._state = command, ""  # as last seen

    @property
    def info(self) -> JobRow:
        """Everything that `gpulease show --json` tells."""
        seen = api_jobs.show(self.id)[0]
        self._command, self._state = seen["command"], seen["state"]
        return seen

    @property
    def state(self) -> str:
        return self.info["state"]

    @property
    def exit_code(self) -> int | None:
        return self.info["exit_code"]

    def wait(self, timeout: float | str | None = None) -> str:
        """The state in which it ended. Raises NotGranted when that takes longer than `timeout`."""
        self._state = api_jobs.wait(self.id, timeout=timeout)[0]["state"]
        return self._state

    def log(self) -> str:
        """Its output so far."""
        try:
            with open_log(self.info["log"], self.info["uid"]) as file:
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def kill(self) -> None:
        api_jobs.kill(self.id)

    def __repr__(self) -> str:
        """As it was last seen: to be shown it asks nobody."""
        state = f" {self._state}" if self._state else ""
        command = f": {shlex.join(self._command)}" if self._command else ""
        return f"<job {self.id}{state}{command if len(command) <= SHOWN else command[: SHOWN - 1] + '…'}>"


def submit(
    command: Sequence[str] | str,
    *,
    gpus: int = 1,
    mem: int | str | None = None,
    model: str | Iterable[str] | None = None,
    devices: int | str | Iterable[int | str] | None = None,
    exclude: int | str | Iterable[int | str] | None = None,
    min_memory: int | str | None = None,
    max_leases: int | None = None,
    beside_outside: bool = False,
    mig: bool = False,
    pack: bool | None = None,
    priority: int = 5,
    duration: float | str | None = None,
    visible_by: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    no_env: str | Iterable[str] = (),
    log: str | os.PathLike[str] | None = None,
    retry: int = 0,
    time_limit: float | str | None = None,
    after: Named | None = (),
    after_any: bool | Named | None = False,
    after_label: str | None = None,
    at: str | float | datetime | None = None,
    hold: bool = False,
    name: str | None = None,
    label: str | None = None,
    note: str | None = None,
    notify: bool | str | Iterable[str] | None = None,
    shell: bool = False,
    force: bool = False,
) -> SubmittedJob:
    """Queue a command; it is on disk when this returns.

    `command` is a list of words; with `shell` it is one text, which a shell runs. One that cannot be started is
    refused, unless with `force`.

    It gets this process's variables, without those like `no_env` or the parameter `env-exclude`, and with `env`.
    With `pack` it shares a GPU by the memory that such jobs were seen to use; None is as the machine is set.

    It comes after `after`, if those are complete, or after `after_any`, however they end: jobs, ids, "5-9", "last", or
    "all" of this user's that are not over. `after_label` are those of them with a label; `after_any=True`: however.

    `notify` says of what the user is told about it, as "ended,failed"; True is of all, None as `gpulease notify` says.
    """
    given = dict(locals())  # the arguments, by their names
    words = _words(given.pop("command"), shell)
    return _queue([words], given, job_fields(given))[0]


def sweep(
    command: Sequence[str] | str,
    *,
    values: Mapping[str, object] | None = None,
    at_most: int | None = None,
    **arguments: Any,
) -> list[SubmittedJob]:
    """Queue a job for each combination of values, all at once: `sweep(["train", "--lr", "{lr}"], lr=[0.1, 0.01])`.

    An argument of `submit` means the same here; every other one is a variable. `values` has variables too, also those
    with the name of an argument. Values are a list, a range, or text as on the command line: `"1:5"`. At most `at_most`
    of the jobs run at a time.
    """
    defaults = submit.__kwdefaults__ or {}
    own = {name: arguments[name] for name in arguments if name in defaults}
    given = {**defaults, **own, "at_most": at_most}
    swept_over = {**(values or {}), **{name: arguments[name] for name in arguments if name not in own}}
    if not swept_over:
        raise UsageError("Nothing to sweep over was given.", "Give values, as lr=[0.1, 0.01].")
    texts = {name: str(given.pop(name)) for name in OWN if given[name] is not None}
    words = _words(command, given["shell"])
    found = {name: texts_of(name, each) for name, each in swept_over.items()}
    commands, shared, each = swept(words, texts, found, given["force"])
    return _queue(commands, given, {**job_fields(given), **shared}, each)


def _words(command: Sequence[str] | str, shell: bool) -> list[str]:
    if isinstance(command, str) != shell:
        text = "With shell=True the command is one text" if shell else f"The command is the text {command[:60]!r}"
        raise UsageError(f"{text}.", "Give a list of words, as ['python', 'train.py'], or one text with shell=True.")
    return command_words(by_shell(str(command)) if shell else command)


def _queue(
    commands: list[list[str]], given: dict[str, Any], options: dict[str, Any], each: list[dict[str, str]] | None = None
) -> list[SubmittedJob]:
    if not given["force"]:
        refuse_unstartable(commands, options)
    added = api_jobs.add(commands, request_fields(given, now=time.time()), options, each)
    if added["left_out"]:
        names = ", ".join(added["left_out"])
        warnings.warn(f"the job does not get {names}: secret by its name; give it in env=", stacklevel=3)
    return [SubmittedJob(id, words) for id, words in zip(api_jobs.ids_of(added), commands, strict=True)]


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
    after_any after_label name note` as for `submit`, `at_most`, and `new_label`.
    """
    select = selection(jobs, label, state, user, mine)
    strange = sorted(set(changes) - CHANGEABLE)
    if strange:
        raise UsageError(f"A job has no {strange[0]!r} that can be changed.", "See the reference of `edit`.")
    return api_jobs.change(select, job_changes(changes, as_argument, time.time()))


def jobs(*, state: str | None = None, label: str | None = None) -> list[SubmittedJob]:
    """The jobs of this user, in the order of their ids."""
    select = selection((), label, state, required=False)
    return [SubmittedJob(id) for id in api_jobs.ask("ls", select, ids=True)["ids"]]
