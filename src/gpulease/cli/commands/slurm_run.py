"""`gpulease run` on Slurm: a command in an allocation of its own, with this terminal, by salloc and srun."""

from __future__ import annotations

import os
import sys

from gpulease.cli.parsing import Any, Namespace
from gpulease.cli.request_options import acquire_fields, enter_folder
from gpulease.client.wait_notice import WaitNotice
from gpulease.errors import UsageError


def run(arguments: Namespace) -> int:
    if not arguments.command:
        raise UsageError("No command was given.", "Write it behind `--`, as in `gpulease run -- python train.py`.")
    enter_folder(arguments.cwd)
    return run_there(acquire_fields(arguments, "run"), arguments.command, arguments.quiet)


def run_there(fields: dict[str, Any], command: list[str], quiet: bool = False) -> int:
    """Its exit code, once it was granted, run and given back."""
    from gpulease.slurm.leases import run_in
    from gpulease.slurm.records import Records

    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    notice = WaitNotice(quiet, log=True)
    try:
        return run_in(Records(os.environ), fields, command, terminal, notice_of(notice), notice.end)
    finally:
        notice.end()


def notice_of(notice: WaitNotice) -> Any:
    """What hears the id in the line and the reason, and tells it."""
    return lambda id, why: notice.say(f"{id} waits in Slurm's queue.", why)
