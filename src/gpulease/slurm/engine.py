"""The engine `slurm`: answers the messages of a broker by Slurm's commands (see client.engines.BackendConnection)."""

from __future__ import annotations

import os
import time

from gpulease.errors import NotFound, NotOnEngine, SlurmUnavailable
from gpulease.model.job_selection import job_text
from gpulease.model.quantities import SECRETS, matching
from gpulease.slurm import add
from gpulease.slurm.records import Records
from gpulease.system.places import ENGINE, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpulease.protocol.messages import JobRow
    from gpulease.protocol.wire import Message

NAME = "slurm"
DAY = 86400.0
AGAIN = 2.0  # seconds between questions to Slurm about the same
OPEN = ("waiting", "held", "running", "paused")
# verb of the command line -> what Slurm cannot do, and what to do instead
CANNOT = {
    "renew": (
        "Slurm gives no more time to an allocation of yours.",
        "Take it longer to begin with (`get --for`), or ask an administrator of Slurm.",
    ),
    "start": ("Slurm starts no job past its own order.", "`gpulease move ID` puts it first, where Slurm allows that."),
    "set": ("The parameters of Slurm are its administrators'.", "See `scontrol show config`."),
    "exclude": (
        "A GPU of Slurm is taken out of service by its administrators.",
        "They drain its node: `scontrol update nodename=N state=drain reason=...`.",
    ),
    "include": (
        "A GPU of Slurm is brought back into service by its administrators.",
        "They resume its node: `scontrol update nodename=N state=resume`.",
    ),
    "stop": ("No broker runs for Slurm.", "Its controller is for its administrators to stop."),
    "select": ("On Slurm no GPU is used without an allocation.", "Write `gpulease run --engine slurm -- ...`."),
    "pool": (
        "A pool lives on one machine, and Slurm's allocations are elsewhere.",
        "Start the program inside one: `gpulease run --engine slurm -n 4 -- python program.py`.",
    ),
    "docker-args": ("Slurm's GPUs are on another machine.", "Ask inside the job, without an engine."),
    "top": (
        "`top` shows the GPUs of one machine, and what Slurm gives is on others.",
        "`gpulease status --engine slurm --watch` shows Slurm as it changes; `--engine local` this machine.",
    ),
    "web": (
        "`web` shows the GPUs of one machine, and what Slurm gives is on others.",
        "`gpulease status --engine slurm --watch` shows Slurm as it changes; `--engine local` this machine.",
    ),
    "metrics": (
        "Slurm counts what its jobs used itself.",
        "Use an exporter for Slurm, `gpulease usage`, or `gpulease metrics --engine local` for this machine.",
    ),
    "learned": (
        "Slurm estimates starts from the time limits of jobs, and learns nothing from earlier runs.",
        "Give a time limit, and see `gpulease explain`.",
    ),
    "notify": (
        "Slurm tells people about their jobs by mail.",
        'Set GPULEASE_SLURM_OPTIONS="--mail-type=END,FAIL --mail-user=ada@example.org".',
    ),
    "rebalance": (
        "Slurm has one queue for all nodes, so nothing has to move.",
        "Leave the engine out for hosts by ssh.",
    ),
    "debug": ("Slurm's own log says why a job could not start.", "See `gpulease show` and `scontrol show job`."),
}
# verbs that Slurm's commands do themselves, with the terminal and the signals; and the one that looks at Slurm
VERBS = {
    "run": "gpulease.cli.commands.slurm:run",
    "shell": "gpulease.cli.commands.slurm:shell",
    "get": "gpulease.cli.commands.slurm:get",
    "doctor": "gpulease.cli.commands.slurm:doctor",
}


def connect(start: bool) -> SlurmConnection:
    return SlurmConnection()


class SlurmConnection:
    """Nothing is connected: each question is one or two of Slurm's commands."""

    idle = True

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.place = Place(NAME, "", ENGINE + NAME)
        self.broker_uid = os.geteuid()
        self.env_exclude: str | None = " ".join(SECRETS)
        self.records = Records(os.environ)
        self._parts: list[dict[str, Any]] = []
        self._subscribed: dict[str, Any] = {}
        self._told: dict[str, Any] | None = None
        self._next = 0.0

    def ask(self, verb: str, **fields: Any) -> Any:
        answer = getattr(self, f"_{verb}", None)
        if answer is None:
            raise NotOnEngine(f"Slurm cannot do `{verb}`.")
        return answer(**fields)

    def close(self) -> None:
        pass

    def silent(self) -> SlurmUnavailable:
        return SlurmUnavailable("Slurm's controller does not answer.")

    # ------------------------------------------------------------------ adding

    def _add(
        self,
        commands: list[list[str]],
        request: dict[str, Any],
        options: dict[str, Any],
        each: list[dict[str, str]] | None = None,
        more: bool = False,
        token: str | None = None,
    ) -> dict[str, Any]:
        self._parts.append({"commands": commands, "each": each or []})
        if more:
            return {}
        parts, self._parts = self._parts, []
        batch = [words for part in parts for words in part["commands"]]
        texts = [one for part in parts for one in part["each"]]
        ids = add.add(self.records, batch, texts, request, options)
        return {"first": ids[0], "last": ids[-1], "ids": ids, "left_out": []}

    # ------------------------------------------------------------------ looking

    def _jobs(self, select: dict[str, Any] | None, looks: bool = True, all: bool = False) -> list[JobRow]:
        from gpulease.slurm.jobs import chosen
        from gpulease.slurm.known_jobs import SlurmJobs

        seen = SlurmJobs(self.records)
        jobs = seen.jobs_and_forgotten(select or {}, all) if looks else seen.jobs()
        return chosen(jobs, select or {}, os.geteuid(), looks)

    def _ls(
        self, select: dict[str, Any] | None = None, all: bool = False, most: int | None = None, ids: bool = False
    ) -> dict[str, Any]:
        from gpulease.slurm.status import listing

        if ids:
            return {"ids": [row["id"] for row in self._jobs({**(select or {}), "mine": True})]}
        try:
            jobs = self._jobs(select, all=all)
        except NotFound:
            if not select or {"ids", "tasks", "last"} & {*select}:
                raise
            jobs = []  # that no job is as was asked is no error of who only looks
        return listing(jobs, bool(select), all, most or 50, time.time())

    def _show(self, select: dict[str, Any], environment: bool = False) -> dict[str, Any]:
        return {"jobs": self._jobs(select)}

    def _status(self) -> dict[str, Any]:
        from gpulease.slurm.status import status

        return status(self.records)

    def _explain(
        self, id: str | None = None, request: dict[str, Any] | None = None, kind: str = "run", count: int = 1
    ) -> dict[str, Any]:
        from gpulease.slurm.status import estimate_start, explain

        if id is None:
            return estimate_start(self.records, request or {}, count)
        return explain(self.records, job_text(id))

    def _events(self, since: float | None = None, most: int | None = None) -> dict[str, Any]:
        from gpulease.slurm.known_jobs import SlurmJobs
        from gpulease.slurm.status import events

        now = time.time()
        jobs, _ = SlurmJobs(self.records).jobs_since(now - (DAY if since is None else since))
        return {"events": events(jobs, since, most or 100, now)}

    def _usage(self, since: float | None = None, until: float | None = None, step: float = 60.0) -> dict[str, Any]:
        from gpulease.slurm.known_jobs import NO_ACCOUNTING, SlurmJobs
        from gpulease.slurm.status import usage_piece

        now = time.time()
        jobs, everybody = SlurmJobs(self.records).jobs_since(now - DAY if since is None else since)
        jobs = jobs if everybody else [row for row in jobs if row["uid"] == os.geteuid()]  # which are recorded
        whose = {"everybody": everybody, "note": None if everybody else NO_ACCOUNTING}
        return {**usage_piece(jobs, since, until, step, now), **whose}

    def _ping(self) -> dict[str, Any]:
        from gpulease.slurm.known_jobs import SlurmJobs
        from gpulease.slurm.status import about

        return about(SlurmJobs(self.records))

    # ------------------------------------------------------------------ acting

    def _act(self, verb: str, select: dict[str, Any] | None, *more: Any) -> Any:
        from gpulease.slurm import jobs

        act: Callable[..., Any] = getattr(jobs, verb)
        return act(self.records, self._jobs(select, looks=False), *more)

    def _kill(self, select: dict[str, Any]) -> Any:
        return self._act("kill", select)

    def _rm(self, select: dict[str, Any]) -> Any:
        return self._act("rm", select)

    def _clean(self, select: dict[str, Any] | None = None) -> Any:
        return self._act("clean", select or {"all": True})

    def _pause(self, select: dict[str, Any] | None = None, queue: bool = False) -> Any:
        _refuse_queue(queue)
        return self._act("pause", select)

    def _resume(self, select: dict[str, Any] | None = None, queue: bool = False) -> Any:
        _refuse_queue(queue)
        return self._act("resume", select)

    def _retry(
        self, select: dict[str, Any], changes: dict[str, Any] | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        """Their own variables were never kept, so these are always new ones."""
        if "ids" not in select and "tasks" not in select and "state" not in select:
            select = {**select, "state": "failed,killed,lost,invalid"}
        secret = matching(os.environ, SECRETS)
        own = {name: value for name, value in os.environ.items() if name not in secret}
        environ = own if options is None else options["environment"]
        return self._act("retry", select, environ, changes or {})

    def _move(self, id: Any, index: int = 0) -> Any:
        from gpulease.model.job_selection import selection

        return self._act("move", selection([str(id)]), index)

    def _edit(self, select: dict[str, Any], changes: dict[str, Any]) -> Any:
        return self._act("edit", select, changes)

    def _release(
        self, what: list[str], mine: bool = False, all: bool = False, if_held: bool = False, gone: bool = False
    ) -> dict[str, Any]:
        from gpulease.slurm.leases import release

        return {"released": release(self.records, what, mine, all, if_held, gone)}

    # ------------------------------------------------------------------ being told

    def send(self, verb: str, **fields: Any) -> None:
        if verb == "acquire":
            raise NotOnEngine(
                "GPUs of Slurm are on other machines, and this process is here.",
                "Start the program there: `gpulease run --engine slurm -- ...`.",
            )
        self._subscribed, self._told, self._next = fields, None, 0.0

    def receive(self, timeout: float | None) -> Message | None:
        """What changed since the last time; Slurm is asked once in two seconds, however often this is called."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            rest = self._next - time.monotonic()
            if until is not None and until - time.monotonic() < rest:
                time.sleep(max(0.0, until - time.monotonic()))
                return None
            time.sleep(max(0.0, rest))
            self._next = time.monotonic() + AGAIN
            changes = self._changes()
            if changes is not None:
                return changes

    def _changes(self) -> Message | None:
        if "jobs" not in self._subscribed["topics"]:  # of a picture that is drawn again as time passes
            first, self._told = self._told is None, {}
            return {"snapshot": {"open": 0}} if first else None
        try:
            rows = self._jobs(self._subscribed.get("select"))
        except NotFound:
            if self._told is None:
                raise
            rows = []  # all of them were removed
        except SlurmUnavailable as trouble:
            if self._told is None or trouble.fields.get("absent"):
                raise
            return None  # a controller that restarts; what runs goes on
        return self._difference(rows)

    def _difference(self, rows: list[JobRow]) -> Message | None:
        now = {str(row["id"]): {name: row[name] for name in ("id", "state", "exit_code")} for row in rows}
        open_jobs = sum(row["state"] in OPEN for row in rows)
        before, self._told = self._told, now
        if before is None:
            return {"snapshot": {"jobs": now, "open": open_jobs}}
        changed: dict[str, Any] = {key: row for key, row in now.items() if before.get(key) != row}
        changed |= {key: None for key in before if key not in now}
        return {"changed": {"jobs": changed, "open": open_jobs}} if changed else None


def _refuse_queue(queue: bool) -> None:
    if queue:
        raise NotOnEngine(
            "The queue of Slurm is its administrators' to stop.",
            "They do it with `scontrol update partition=P state=down`; `gpulease pause all` holds your own jobs.",
        )
