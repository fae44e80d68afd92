"""`gpulease shims DIR`: commands and packages under the names of older tools, for PATH and PYTHONPATH."""

from __future__ import annotations

import os
import shlex

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json

EXAMPLES = """\
Scripts that call these tools run on leases then, and need no change.
Files that `gpulease shims` did not write are not replaced. A second run
brings the files up to date. To undo it, remove DIR.

examples:
  eval "$(gpulease shims ~/gpulease-shims)"        write them, and use them here
  gpulease shims ~/shims --only GPU.py,safe_gpu    only these two
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("folder", metavar="DIR", help="where bin and python are written")
    parser.add_argument(
        "--only", metavar="NAMES", help="these alone: names of commands or packages, as GPU.py,safe_gpu"
    )
    parser.add_argument("--force", action="store_true", help="replace other files too; each is kept as .bak")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.compat.shim_files import write
    from gpulease.errors import UsageError

    if not arguments.folder or ":" in arguments.folder:
        raise UsageError(f"The folder {arguments.folder!r} cannot be in a PATH.", "Give the path of another.")
    folder = os.path.abspath(os.path.expanduser(arguments.folder))
    changes = write(folder, arguments.only, arguments.force)
    if arguments.json:
        files = [{"path": os.path.join(folder, change.file.path), "action": change.action} for change in changes]
        return print_json({"folder": folder, "files": files})
    print(f'export PATH={shlex.quote(f"{folder}/bin")}:"$PATH"')
    print(f'export PYTHONPATH={shlex.quote(f"{folder}/python")}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    return 0
