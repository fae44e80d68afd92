"""`gpulease shell` on Slurm: a shell on the node of an allocation, which ends with it."""

from __future__ import annotations

import os

from gpulease.cli.commands.slurm_run import run_there
from gpulease.cli.foreground import marked_shell
from gpulease.cli.parsing import Namespace
from gpulease.cli.request_options import acquire_fields, enter_folder


def run(arguments: Namespace) -> int:
    enter_folder(arguments.cwd)
    command, marks = marked_shell("slurm", os.environ)
    os.environ.update(marks)
    return run_there(acquire_fields(arguments, "shell"), command)
