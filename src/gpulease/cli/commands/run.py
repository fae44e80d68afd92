"""`gpulease run`: wait for GPUs, become the command, give back when it ends."""

from __future__ import annotations

from gpulease.cli.options import acquire_fields, add_of_job, add_request, enter_folder
from gpulease.cli.parsing import ArgumentParser, Namespace, add_command
from gpulease.errors import UsageError

EXAMPLES = """\
The command sees only its GPUs (CUDA_VISIBLE_DEVICES); GPULEASE_DEVICES has
their indices. It has the pid and the terminal of `gpulease run`. When it ends,
even by `kill -9`, gpulease releases the GPUs.

examples:
  gpulease run -- python train.py
  gpulease run -n 2 --model A100 -- torchrun --nproc-per-node 2 train.py
  gpulease run --mem 6G -- python small.py     share a GPU by memory
  gpulease run --wait 30m -- ./job.sh          give up after half an hour (75)
  gpulease run -- sh -c 'docker run $(gpulease docker-args) IMAGE'
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_request(parser, "expected run time, as 2h: helps to plan the queue; it is not a limit")
    parser.add_argument("--quiet", "-q", action="store_true", help="print nothing while waiting")
    add_of_job(parser, "cwd")
    add_command(parser)


def run(arguments: Namespace) -> int:
    if not arguments.command:
        raise UsageError("No command was given.", "Write it behind `--`, as in `gpulease run -- python train.py`.")
    from gpulease.cli.lease_wait import environment_of, wait_for
    from gpulease.cli.options import warn_of_all_gpus
    from gpulease.system.execution import become, check_command

    enter_folder(arguments.cwd)
    check_command(arguments.command[0])
    warn_of_all_gpus([arguments.command])
    fields = {**acquire_fields(arguments, "run"), "command": [word[:200] for word in arguments.command[:50]]}
    granted, _ = wait_for(fields, arguments.quiet)
    become(arguments.command, environment_of(granted, arguments.visible_by))
