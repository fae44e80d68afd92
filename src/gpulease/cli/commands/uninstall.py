"""`gpulease uninstall`: remove what `install` wrote. The program itself stays, and so does what users left waiting."""

from __future__ import annotations

import os

from gpulease.cli.commands.install import add_options, check_words
from gpulease.cli.parsing import ArgumentParser, Namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.cli.install.changes import Change, Target

EXAMPLES = """\
The queue, limits and history in /var/lib/gpulease stay, unless you give
--purge. Files that you edited stay too. It refuses while the broker runs.

examples:
  sudo gpulease uninstall --dry-run     print what it would remove
  sudo gpulease uninstall               the service of this machine
  gpulease uninstall --user             your own
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--system", action="store_true", help="the service of this machine (default for root)")
    whose.add_argument("--user", action="store_true", help="your own service (default for other users)")
    parser.add_argument("--purge", action="store_true", help="also remove the state and the account")
    add_options(parser)


def run(arguments: Namespace) -> int:
    from gpulease.cli.install import manifest
    from gpulease.cli.install.changes import Target
    from gpulease.cli.install.manifest import has_systemd, show

    arguments.user = arguments.user or not (arguments.system or arguments.root or os.geteuid() == 0)
    arguments.system = not arguments.user
    check_words(arguments)
    target = Target(arguments.root or "/", arguments.force)
    here = arguments.system and not arguments.root
    if here and not (arguments.dry_run or arguments.force):
        _refuse_while_it_runs()
    files = manifest.user("", os.environ) if arguments.user else manifest.system("", root=target.root)
    changes = list(target.removable(files, arguments.purge))
    changes += _left_by_use(changes, target, here)
    account = "remove" if here and arguments.purge and manifest.account_exists() else None
    if not arguments.dry_run:
        for change in changes:
            target.carry_out(change)
        if account:
            manifest.remove_account()
    reload = f"systemctl {'--user ' if arguments.user else ''}daemon-reload"
    then = [reload] if has_systemd() and not arguments.root else []
    if show(arguments, target, changes, account, then) and then:
        print(f"Then run:\n  {reload}")
    return 0


def _refuse_while_it_runs() -> None:
    """Jobs that it left are no obstacle: other brokers see whose processes are on a GPU."""
    import socket

    from gpulease.errors import WrongState
    from gpulease.system import places

    with socket.socket(socket.AF_UNIX) as connected:
        connected.setblocking(False)  # one that is too busy to let us in runs all the same
        try:
            connected.connect(places.socket_path(places.SYSTEM))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return
        except BlockingIOError:
            pass
    step = (
        "Stop it first (`systemctl disable --now gpulease`): its jobs go on, and its reservations end. Or give --force."
    )
    raise WrongState("The broker of this machine runs.", step)


def _left_by_use(changes: list[Change], target: Target, here: bool) -> list[Change]:
    """What others made: the link by which the unit was enabled, and the folder with the socket."""
    from gpulease.cli.install.changes import Change, File
    from gpulease.system import places

    units = [
        change.file.path for change in changes if change.action == "remove" and change.file.path.endswith(".service")
    ]
    wants = [
        File(f"{os.path.dirname(unit)}/{goal}.target.wants/gpulease.service", "")
        for unit in units
        for goal in ("multi-user", "default")
    ]
    found = [link for link in wants if os.path.islink(target.path(link))]
    run = [File(places.SYSTEM, None, data=True)] if here and os.path.isdir(places.SYSTEM) else []
    return [Change("remove", file) for file in (*found, *run)]
