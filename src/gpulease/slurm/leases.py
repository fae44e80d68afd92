"""Allocations that somebody holds without a job: `get` and `release` on Slurm, by salloc and scancel.

One is held for a process by a salloc of its own, which ends with that process; or for a time, or until it is released.
"""

from __future__ import annotations

import os
import select
import time

from gpulease.errors import NotFound, NotOnEngine, NotPermitted, SlurmUnavailable
from gpulease.slurm import add, commands, options, rows
from gpulease.slurm.known_jobs import SlurmJobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpulease.protocol.messages import Granted, ShortLease
    from gpulease.slurm.records import Records

    Waiting = Callable[[str, str], object]  # the id in the line, and why it waits

CHECK_INTERVAL = 0.02  # seconds between looks at what salloc has printed
ASK = 2.0  # seconds between questions to Slurm, while it waits
GRANTED = "Granted job allocation "
STDERR = 9  # where the command's own stderr is, while salloc's is read by us
OWN_STDERR = f'exec 2>&{STDERR} {STDERR}>&-; exec "$@"'
DEVICES = 'GPULEASE_DEVICES=${CUDA_VISIBLE_DEVICES-}; export GPULEASE_DEVICES; exec "$@"'


def hold(records: Records, fields: Mapping[str, Any], waiting: Waiting | None = None) -> Granted:
    """What is in the allocation that is held from now on; `waiting` hears why it is not granted yet."""
    lasts = fields["kind"] == "reservation"
    until = ["--no-shell"] if lasts else ["tail", "-s", "2", f"--pid={fields['owner']}", "-f", "/dev/null"]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        id, _ = _granted(records, fields, until, (null, null), waiting)
    finally:
        os.close(null)
    return contents(records, id)


def run_in(
    records: Records,
    fields: Mapping[str, Any],
    command: list[str],
    terminal: bool,
    waiting: Waiting,
    granted: Callable[[], object],
) -> int:
    """Run a command in an allocation of its own, which ends with it; its exit code."""
    step = ["srun", "--quiet", "--nodes=1", "--ntasks=1", *(["--pty"] if terminal else [])]
    inside = ["sh", "-c", OWN_STDERR, "sh", *step, "sh", "-c", DEVICES, "sh", *command]
    _end_on_signal()
    _, pid = _granted(records, fields, inside, (), waiting)
    granted()
    return _ended(pid)


def _end_on_signal() -> None:
    """By an exception, so that salloc, which waits in Slurm's line, is ended too."""
    import signal
    import sys

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda sent, _: sys.exit(128 + sent))


def _granted(
    records: Records,
    fields: Mapping[str, Any],
    inside: list[str],
    streams: tuple[int, ...],
    waiting: Waiting | None,
) -> tuple[str, int]:
    """The id of the allocation, and the process of the salloc that has it. With `streams` it outlives this process."""
    request, token = fields["request"], os.urandom(8).hex()
    comment = {"token": token, "kind": fields["kind"], "note": fields.get("note")}
    own = add.extra()
    words = ["salloc", "--kill-command=TERM"]
    words += [*options.resources(request, add.model(records, request), own), *own]
    words += [f"--comment={options.comment(comment)}", f"--job-name={fields['kind']}"]
    words += [] if fields.get("wait") is None else [f"--immediate={max(1, int(fields['wait']))}"]
    lasts = request.get("duration") if fields["kind"] == "reservation" else None
    words += [f"--time={options.minutes(lasts)}"] if lasts else []
    file = os.memfd_create("err", os.MFD_CLOEXEC)
    actions = [(os.POSIX_SPAWN_DUP2, one, number) for number, one in enumerate(streams)]
    told_to = streams[0] if streams else 2  # what outlives this process keeps nobody's pipe open
    actions += [(os.POSIX_SPAWN_DUP2, told_to, STDERR), (os.POSIX_SPAWN_DUP2, file, 2)]
    try:
        pid = commands.spawn([*words, *inside], actions, add.job_environment(os.environ), bool(streams))
        try:
            return _until_granted(pid, file, lambda: _report_wait(records, token, waiting)), pid
        except BaseException:
            commands.end(pid, commands.TERM)  # it takes its place in the line with it
            raise
    finally:
        os.close(file)


def _ended(pid: int) -> int:
    """The keyboard's signals are for the command, which has them already; others are passed on."""
    import signal

    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda sent, _: os.kill(pid, sent))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _until_granted(pid: int, file: int, meanwhile: Callable[[], None]) -> str:
    descriptor = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    next_question = time.monotonic() + ASK
    try:
        while True:
            over = poll.poll(CHECK_INTERVAL * 1000)
            comment = commands.all_of(file)
            found = comment.partition(GRANTED)[2].split()
            if found:
                return found[0]
            if over:
                raise commands.refusal("salloc", comment)
            if time.monotonic() > next_question:
                meanwhile()
                next_question = time.monotonic() + ASK
    finally:
        os.close(descriptor)


def _report_wait(records: Records, token: str, waiting: Waiting | None) -> None:
    if waiting is None:
        return
    try:
        for id, raw in SlurmJobs(records).raw:
            if rows.carries(raw, token, os.geteuid()) and rows.state_of(raw) == "waiting":
                waiting(id, rows.line_row(raw, id, time.time())["why"])
    except SlurmUnavailable:
        pass  # salloc goes on trying


def contents(records: Records, id: str) -> Granted:
    for found, raw in SlurmJobs(records).raw:
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


def release(records: Records, what: list[str], mine: bool, all: bool, if_held: bool, gone: bool) -> list[ShortLease]:
    """Give back allocations; a batch job is ended by `kill`."""
    if gone:
        raise NotOnEngine("Slurm does not know which process asked for an allocation.", "Name it: see `status`.")
    held = [
        (id, raw) for id, raw in SlurmJobs(records).raw if not raw.get("batch_flag") and rows.state_of(raw) == "running"
    ]
    leases = [(rows.lease_row(raw, id, None), raw) for id, raw in held]
    own = [(lease, raw) for lease, raw in leases if (raw.get("user_id") or 0) == os.geteuid()]
    meant = (
        leases if all else own if mine else [pair for pair in leases if {pair[0]["id"], *pair[0]["labels"]} & {*what}]
    )
    known = {name for lease, _ in meant for name in (lease["id"], *lease["labels"])}
    absent = [name for name in what if name not in known]
    if absent and not if_held:
        raise NotFound(f"You hold no allocation {absent[0][:40]!r} of Slurm.", "See `gpulease status --engine slurm`.")
    if os.geteuid() and any(pair not in own for pair in meant):
        raise NotPermitted("It belongs to another user.", "Ask its owner, or root.")
    if meant:
        commands.output_of(["scancel", *(lease["id"] for lease, _ in meant)], deadline=commands.ACTING)
    return [
        {"id": lease["id"], "devices": lease["labels"], "user": lease["user"], "until": lease["until"]}
        for lease, _ in meant
    ]
