"""Verbs that Slurm does in another way: `run`, `shell` and `get` take an allocation, `doctor` looks at the cluster."""

from __future__ import annotations

import os
import sys

from gpulease.cli.options import acquire_fields, enter_folder
from gpulease.cli.parsing import Any, Namespace, print_json
from gpulease.client.wait_notice import WaitNotice
from gpulease.errors import GpuleaseError, NotOnEngine, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpulease.cli.commands.doctor import Finding


def run(arguments: Namespace) -> int:
    """A command in an allocation of its own, with this terminal, by salloc and srun."""
    if not arguments.command:
        raise UsageError("No command was given.", "Write it behind `--`, as in `gpulease run -- python train.py`.")
    enter_folder(arguments.cwd)
    return _run_there(acquire_fields(arguments, "run"), arguments.command, arguments.quiet)


def shell(arguments: Namespace) -> int:
    """A shell on the node of an allocation, which ends with it."""
    from gpulease.cli.commands.shell import marked_shell

    enter_folder(arguments.cwd)
    command, marks = marked_shell("slurm", os.environ)
    os.environ.update(marks)
    return _run_there(acquire_fields(arguments, "shell"), command)


def _run_there(fields: dict[str, Any], command: list[str], quiet: bool = False) -> int:
    """Its exit code, once it was granted, run and given back."""
    from gpulease.slurm.leases import run_in
    from gpulease.slurm.records import Records

    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    notice = WaitNotice(quiet, log=True)
    try:
        return run_in(Records(os.environ), fields, command, terminal, _waiting(notice), notice.end)
    finally:
        notice.end()


def _waiting(notice: WaitNotice) -> Any:
    """A function of the id in the line and the reason, which tells both."""
    return lambda id, why: notice.say(f"{id} waits in Slurm's queue.", why)


def get(arguments: Namespace) -> int:
    """An allocation that is held for a script, for a time, or until it is released."""
    from gpulease.cli.commands.get import holder, refuse_pairs
    from gpulease.slurm.leases import hold
    from gpulease.slurm.records import Records

    refuse_pairs(arguments)
    if arguments.uuid:
        raise NotOnEngine("Slurm does not know the UUIDs of GPUs.", "Leave out --uuid.")
    fields = holder(arguments, acquire_fields(arguments, "get"))
    notice, labels = WaitNotice(arguments.quiet, log=True), None
    try:
        granted = hold(Records(os.environ), fields, _waiting(notice))
        labels = ",".join(device["label"] for device in granted["devices"])
    finally:
        notice.end(labels)
    if arguments.json:
        return print_json(granted)
    if arguments.export:  # so that `srun` runs in it
        print(f"export SLURM_JOB_ID={granted['id']} GPULEASE_LEASE={granted['id']} GPULEASE_DEVICES={labels}")
    else:
        print(labels)
    return 0


def doctor(arguments: Namespace) -> int:
    """Whether jobs can be queued, run and known there."""
    from gpulease.cli.commands.doctor import run, show

    return show(arguments, list(_findings())) if arguments.hosts is None else run(arguments)


def _findings() -> Iterator[Finding]:
    from gpulease.cli.commands.doctor import Finding, software
    from gpulease.slurm.doctor import diagnosis
    from gpulease.slurm.records import Records

    yield from software()
    try:
        for finding in diagnosis(Records(os.environ)):
            yield Finding(*finding)
    except GpuleaseError as error:
        yield Finding("error", "Slurm", error.what, error.next_step)
