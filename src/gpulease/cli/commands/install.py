"""`gpulease install`: the broker as a service of the machine, or of one user, with all that belongs to it."""

from __future__ import annotations

import os
import sys

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json

EXAMPLES = """\
It does not change files that you edited, and lists them. A second run changes
nothing.

examples:
  sudo gpulease install --system --dry-run     print what it would write
  sudo gpulease install --system               for every user of this machine
  sudo gpulease install --system --group lab   for the members of a group only
  gpulease install --user                      a broker of your own
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--system", action="store_true", help="for everybody on this machine (root only)")
    whose.add_argument("--user", action="store_true", help="for you, in your home folder")
    parser.add_argument("--group", metavar="G", help="only members of this group may use it (default: everybody)")
    parser.add_argument("--python", metavar="PATH", help="the Python of the service (default: the one that runs this)")
    add_options(parser)


def add_options(parser: ArgumentParser) -> None:
    """Those that `uninstall` has too."""
    parser.add_argument("--root", metavar="DIR", help="use another root folder; no accounts are changed")
    parser.add_argument("--dry-run", action="store_true", help="print what it would do, and do nothing")
    parser.add_argument("--force", action="store_true", help="also change files that you edited; keep each as .bak")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.cli.install import manifest
    from gpulease.cli.install.changes import Target
    from gpulease.cli.install.manifest import how_to_start, show, start_commands

    check_words(arguments)
    target = Target(arguments.root or "/", arguments.force)
    python = os.path.abspath(arguments.python or sys.executable)
    if arguments.user:
        files = manifest.user(python, os.environ)
    else:
        files = manifest.system(python, _group(arguments, target.root), target.root)
    here = arguments.system and not arguments.root
    if here and os.geteuid() == 0:
        manifest.check_python(python)
    account = "make" if here and not manifest.account_exists() else None
    changes = list(target.needed(files))
    if not arguments.dry_run:
        if account:
            manifest.make_account()
        os.umask(0o022)
        for change in changes:
            target.carry_out(change)
    then = start_commands(arguments, python)
    if show(arguments, target, changes, account, then):
        print(how_to_start(arguments, then))
    return 0


def check_words(arguments: Namespace) -> None:
    """Refuse options that contradict each other, and users who may not do it."""
    from gpulease.errors import NotPermitted, UsageError

    given = {name: getattr(arguments, name, None) for name in ("root", "group", "python")}
    if arguments.user and (given["root"] or given["group"]):
        raise UsageError("--root and --group belong to --system.", "Leave them out.")
    for name, value in given.items():
        if value is not None and not (value and value.isprintable()):
            raise UsageError(f"--{name} is {value!r}.", "Leave it out, or give a name.")
    if arguments.root and not os.path.isdir(arguments.root):
        raise UsageError(f"{arguments.root} is not a folder.", "Make it first.")
    if arguments.root and os.path.samefile(arguments.root, "/"):
        arguments.root = None
    if arguments.system and not arguments.root and not arguments.dry_run and os.geteuid() != 0:
        raise NotPermitted("Only root may change the services of this machine.", "Use sudo, or --user for your own.")


def _group(arguments: Namespace, root: str) -> str | None:
    """As asked for, else as it is: a second run without --group does not open the socket to everybody."""
    from gpulease.cli.install import changes, manifest
    from gpulease.errors import UsageError
    from gpulease.system.places import SYSTEM_CONFIG
    from gpulease.system.service import GROUP_KEY, socket_group

    path = os.path.join(root, SYSTEM_CONFIG.lstrip("/"))
    known = socket_group(path)
    if arguments.group in (None, known):
        return known
    if not arguments.root:
        manifest.check_group(arguments.group)
    if changes.was_edited(path):
        step = f"Change {GROUP_KEY} there, and leave out --group."
        raise UsageError(f"{path} was edited by hand, and names another group or none.", step)
    return str(arguments.group)
