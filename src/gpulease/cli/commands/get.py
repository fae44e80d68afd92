"""`gpulease get`: take GPUs for the shell or script that asks, and print their indices."""

from __future__ import annotations

import os
import sys

from gpulease.cli.options import acquire_fields, add_request
from gpulease.cli.parsing import Any, ArgumentParser, Namespace, add_json
from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.protocol.messages import Granted

EXAMPLES = """\
The shell or script that runs `get` holds the GPUs. They are released when it
ends, or by `gpulease release`. With --for the lease ends after that time, with
--until-released only by `gpulease release`, whatever process ends.

examples:
  eval "$(gpulease get --export)" || exit   in a script: CUDA sees only this GPU
  GPUID=$(gpulease get)                     only its index, as 0
  gpulease get -n 2 --for 4h --note demo    a reservation for four hours
  gpulease get --until-released             even beyond a reboot
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_request(parser, "hold the GPUs for this long, as 4h, even if this script ends before")
    parser.add_argument("--until-released", action="store_true", help="hold the GPUs until `gpulease release`")
    parser.add_argument("--owner", type=int, metavar="PID", help="hold for this process, not for the calling shell")
    parser.add_argument("--uuid", action="store_true", help="print UUIDs instead of indices")
    parser.add_argument("--export", action="store_true", help="print `export` commands for `eval`")
    parser.add_argument("--quiet", "-q", action="store_true", help="print nothing while waiting")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.cli.lease_wait import wait_for
    from gpulease.client.connection import take

    if getattr(sys.stdout, "name", "") == os.devnull:  # it was closed: see main
        raise UsageError("The output is closed, so nobody would learn which GPUs these are.", "Leave out `>&-`.")
    refuse_pairs(arguments)
    fields = holder(arguments, acquire_fields(arguments, "get"))
    granted, client = wait_for(fields, arguments.quiet)
    print(_text(arguments, granted), flush=True)
    take(client, granted)
    return 0


def holder(arguments: Namespace, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with the process that it is held for, or as a reservation."""
    reserved = arguments.until_released or arguments.duration is not None
    if arguments.owner is not None and not reserved:
        _refuse_short_lived(arguments.owner)
    owner = _requester(reserved) if arguments.owner is None else arguments.owner
    return {**fields, **({"kind": "reservation"} if reserved else {}), "owner": owner}


def refuse_pairs(arguments: Namespace) -> None:
    if arguments.owner is not None and arguments.duration is not None:
        raise UsageError("--owner and --for were both given.", "A lease ends with a process or by the clock.")
    if arguments.until_released and arguments.duration is not None:
        raise UsageError("--until-released and --for were both given.", "Leave one of the two out.")
    if arguments.export and arguments.json:
        raise UsageError("--export and --json were both given.", "Leave one of the two out.")


def _refuse_short_lived(owner: int) -> None:
    """In `$(…)` the shell's $BASHPID is that of a fork which is gone when the answer is read, and the GPUs with it."""
    from gpulease.system.identity import ends_with

    if ends_with(os.getpid(), owner):
        raise UsageError(
            f"Process {owner} ends with this command, and the GPUs would go back at once.",
            "Take the number of the subshell before: me=$BASHPID; G=$(gpulease get --owner $me).",
        )


def _requester(reserved: bool) -> int | None:
    """The process to hold for; of a reservation, the one that is shown to have made it."""
    from gpulease.system.identity import requesting_process

    pid = requesting_process(os.getpid(), read_scripts=True)
    if pid <= 1 and not reserved:
        raise UsageError(
            "There is no shell or script to hold the GPUs for.",
            "Name a process with --owner, or hold it --until-released.",
        )
    return pid if pid > 1 else None


def _text(arguments: Namespace, granted: Granted) -> str:
    if arguments.json:
        import json

        return json.dumps(granted)
    if arguments.export:
        from gpulease.cli.lease_wait import environment_of
        from gpulease.cli.options import export_lines

        return export_lines(environment_of(granted, arguments.visible_by))
    return ",".join(device["uuid" if arguments.uuid else "label"] for device in granted["devices"])
