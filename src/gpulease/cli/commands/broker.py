"""`gpulease broker`: the broker in the foreground, for this user or for everybody."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace

EXAMPLES = """\
Without this, a broker of your own starts by itself at first use and ends by
itself after ten idle minutes. One in the foreground stays until it is stopped.

examples:
  gpulease broker                 for you alone
  sudo gpulease broker --system   for every user of this machine
  gpulease broker --shared        for every user, where nobody is root
  gpulease broker --system --check   is the config file right
  gpulease broker --replace       instead of the one that runs, after an upgrade
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--system", action="store_true", help="serve everybody from /run/gpulease (root only)")
    whose.add_argument("--shared", action="store_true", help="serve everybody from the temporary folder")
    parser.add_argument("--replace", action="store_true", help="end the one that runs, and go on with all that it held")
    parser.add_argument("--check", action="store_true", help="only say whether the config file is right; start nothing")
    parser.add_argument("--idle", metavar="TIME", help="end after so long with nothing to do (default: never)")


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
