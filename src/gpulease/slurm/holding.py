"""Allocations that somebody holds without a job: `get` and `release` on Slurm, by salloc and scancel.

One is held for a process by a salloc of its own, which ends with that process; or for a time, or until it is released.
"""

from __future__ import annotations

import os
import select
import time

from gpulease.errors import NotFound, NotOnEngine, NotPermitted, SlurmUnavailable
from gpulease.slurm import adding, asking, commands, rows
from gpulease.slurm.looking import Seen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpulease.messages import Granted, ShortLease
    from gpulease.slurm.records import Records

LOOK = 0.02  # seconds between looks at what salloc has printed
ASK = 2.0  # seconds between questions to Slurm, while it waits
GRANTED = "Granted job allocation "


def hold(
    records: Records, fields: Mapping[str, Any], waiting: Callable[[str, str], None] | None = None
) -> tuple[str, Granted]:
    """The id of the allocation and what is in it; `waiting` hears the id and the reason every two seconds."""
    request, token = fields["request"], os.urandom(8).hex()
    reserved = fields["kind"] == "reservation"
    told = {"token": token, "kind": fields["kind"], "note": fields.get("note")}
    words = ["salloc", *asking.resources(request, adding.model(records, request)), *adding.extra()]
    words += [f"--comment={asking.comment(told)}", f"--job-name={fields['kind']}"]
    words += [] if fields.get("wait") is None else [f"--immediate={max(1, int(fields['wait']))}"]
    words += [f"--time={asking.minutes(request['duration'])}"] if request.get("duration") else []
    words += ["--no-shell"] if reserved else ["tail", "-s", "2", f"--pid={fields['owner']}", "-f", "/dev/null"]
    id = _granted(words, lambda: _tell(records, token, waiting))
    return id, contents(records, id)


def _granted(words: list[str], meanwhile: Callable[[], None]) -> str:
    file = os.memfd_create("err", os.MFD_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    actions = [(os.POSIX_SPAWN_DUP2, one, number) for number, one in enumerate((null, null, file))]
    environ = adding.job_environment(os.environ)
    try:
        pid = os.posix_spawnp(words[0], words, environ, file_actions=actions, setsid=True)
    except FileNotFoundError:
        raise SlurmUnavailable(f"There is no Slurm here: `{words[0]}` is not found.", commands.MISSING) from None
    try:
        return _until_granted(pid, file, meanwhile)
    except BaseException:
        commands.end(pid)  # it takes its place in the line with it
        raise
    finally:
        os.close(file)
        os.close(null)


def _until_granted(pid: int, file: int, meanwhile: Callable[[], None]) -> str:
    descriptor = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    next_question = time.monotonic() + ASK
    try:
        while True:
            over = poll.poll(LOOK * 1000)
            told = commands.all_of(file)
            found = told.partition(GRANTED)[2].split()
            if found:
                return found[0]
            if over:
                raise commands.refusal("salloc", told)
            if time.monotonic() > next_question:
                meanwhile()
                next_question = time.monotonic() + ASK
    finally:
        os.close(descriptor)


def _tell(records: Records, token: str, waiting: Callable[[str, str], None] | None) -> None:
    if waiting is None:
        return
    try:
        for id, raw in Seen(records).raw:
            if rows.comment_of(raw).get("token") == token and rows.state_of(raw) == "waiting":
                waiting(id, rows.line_row(raw, id, time.time())["why"])
    except SlurmUnavailable:
        pass  # salloc goes on trying


def contents(records: Records, id: str) -> Granted:
    for found, raw in Seen(records).raw:
        if found == id:
            lease = rows.lease_row(raw, id, None)
            model = (rows.models_of(raw) or ["gpu"])[0]
            devices = [{"label": label, "uuid": label, "name": model, "vendor": ""} for label in lease["labels"]]
            return {
                "id": id,
                "devices": devices,  # type: ignore[typeddict-item]
                "memory": None,
                "since": lease["since"],
                "until": lease["until"],
            }
    raise NotFound(f"Slurm granted the allocation {id} and does not know it any more.", "Ask again.")


def release(
    records: Records, what: list[str], mine: bool, all: bool, if_held: bool, gone: bool
) -> list[ShortLease]:
    """Give back allocations; a batch job is ended by `kill`."""
    if gone:
        raise NotOnEngine("Slurm does not know which process asked for an allocation.", "Name it: see `status`.")
    held = [(id, raw) for id, raw in Seen(records).raw if not raw.get("batch_flag") and rows.state_of(raw) == "running"]
    leases = [(rows.lease_row(raw, id, None), raw) for id, raw in held]
    own = [(lease, raw) for lease, raw in leases if (raw.get("user_id") or 0) == os.geteuid()]
    meant = leases if all else own if mine else [pair for pair in leases if {pair[0]["id"], *pair[0]["labels"]} & {*what}]
    known = {name for lease, _ in meant for name in (lease["id"], *lease["labels"])}
    absent = [name for name in what if name not in known]
    if absent and not if_held:
        raise NotFound(f"You hold no allocation {absent[0][:40]!r} of Slurm.", "See `gpulease status --engine slurm`.")
    if os.geteuid() and any(pair not in own for pair in meant):
        raise NotPermitted("It belongs to another user.", "Ask its owner, or root.")
    if meant:
        commands.told(["scancel", *(lease["id"] for lease, _ in meant)], deadline=commands.ACTING)
    return [
        {"id": lease["id"], "devices": lease["labels"], "user": lease["user"], "until": lease["until"]}
        for lease, _ in meant
    ]
