"""`gpulease broker`: the broker in the foreground, for this user or for everybody."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace

EXAMPLES = """\
You rarely need this: your own broker starts at the first command and ends after
ten idle minutes. A broker in the foreground runs until you stop it.

examples:
  gpulease broker                 for you alone
  sudo gpulease broker --system   for every user of this machine
  gpulease broker --shared        for every user, on a machine without root
  gpulease broker --system --check   check the config file
  gpulease broker --replace       replace the running one, after an upgrade
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--system", action="store_true", help="serve everybody from /run/gpulease (root only)")
    whose.add_argument("--shared", action="store_true", help="serve everybody from a folder in /tmp (no root needed)")
    parser.add_argument("--replace", action="store_true", help="end the running broker and take over leases and jobs")
    parser.add_argument("--check", action="store_true", help="only check the config file; start nothing")
    parser.add_argument("--idle", metavar="TIME", help="end after this time without work (default: never)")


def run(arguments: Namespace) -> int:
    from gpulease.model.quantities import parse_seconds

    if arguments.check:
        from gpulease.broker.__main__ import check

        print(check("system" if arguments.system else "shared" if arguments.shared else "own"))
        return 0
    idle = None if arguments.idle is None else parse_seconds(arguments.idle)
    if arguments.system:
        _become_launcher(idle, arguments.replace)
    from gpulease.broker.__main__ import serve

    serve("shared" if arguments.shared else "own", -1, idle, arguments.replace)
    return 0


def _become_launcher(idle: float | None, replace: bool) -> None:
    """A process that has loaded nothing but what it needs with its privileges."""
    import os
    import sys

    rest = [*(["--replace"] if replace else []), *([] if idle is None else ["--idle", str(idle)])]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "gpulease.broker.launcher", *rest])
