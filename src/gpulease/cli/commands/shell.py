"""`gpulease shell`: a subshell that holds GPUs until it is left."""

from __future__ import annotations

import os
import sys

from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.cli.request_options import acquire_fields, add_of_job, add_request, enter_folder

EXAMPLES = """\
The prompt shows the GPUs, as `(gpu 0,1)`. `exit` releases them.

examples:
  gpulease shell -n 2
  gpulease shell --mem 10G --note "debugging"
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_request(parser, "how long you expect to need it, as 2h; it is not a limit")
    add_of_job(parser, "cwd")


def run(arguments: Namespace) -> int:
    from gpulease.cli.foreground import marked_shell
    from gpulease.cli.lease_wait import environment_of, wait_for
    from gpulease.system.execution import become

    enter_folder(arguments.cwd)
    granted, _ = wait_for(acquire_fields(arguments, "shell"))
    changes = environment_of(granted, arguments.visible_by)
    print(f"Yours until you leave this shell (exit): GPU {changes['GPULEASE_DEVICES']}", file=sys.stderr)
    command, marks = marked_shell(f"gpu {changes['GPULEASE_DEVICES']}", os.environ)
    become(command, {**changes, **marks})
