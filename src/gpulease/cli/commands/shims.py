"""`gpulease shims DIR`: commands and packages under the names of older tools, for PATH and PYTHONPATH."""

from __future__ import annotations

import os
import shlex

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json

EXAMPLES = """\
Scripts that call these tools then use leases, without a change. It does not
replace files of others. A second run updates its files. To undo it, delete DIR.

examples:
  eval "$(gpulease shims ~/gpulease-shims)"        write and use them here
  gpulease shims ~/shims --only GPU.py,safe_gpu    only these two
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("folder", metavar="DIR", help="the folder for bin and python")
    parser.add_argument(
        "--only", metavar="NAMES", help="write only these commands or packages, for example GPU.py,safe_gpu"
    )
    parser.add_argument("--force", action="store_true", help="also replace files of others; keep each as .bak")
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
