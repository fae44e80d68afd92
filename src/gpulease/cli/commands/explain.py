"""`gpulease explain`: why a request waits, device by device."""

from __future__ import annotations

import os
import time

from gpulease.cli.options import add_wanted
from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json, say
from gpulease.errors import UsageError
from gpulease.model.fields import NAMES
from gpulease.system import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpulease.protocol.messages import Explained

EXAMPLES = """\
examples:
  gpulease explain          all your waiting requests
  gpulease explain L18
  gpulease explain 12       a job
  gpulease explain last
  gpulease explain -n 2 --model A100   when would this start?
"""


TIMED = ("busy", "holding", "capped")  # reasons that say themselves when it should start


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    which = "a waiting request, as `gpulease status` shows it, or a job; `last` is the newest job"
    parser.add_argument("id", nargs="?", metavar="ID", help=f"{which}; default: all your waiting requests")
    add_json(parser)
    group = parser.add_argument_group("what if: a request that you have not made")
    add_wanted(group, "expected run time, as 2h", default=None)
    parser.add_argument("--job", action="store_true", help="ask for a job, not for `run`: the queue may be paused")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="when would N such requests start (up to 64)")


def run(arguments: Namespace) -> int:
    given = {name: getattr(arguments, name, None) for name in NAMES}
    request = {name: value for name, value in given.items() if value is not None and value is not False}
    if arguments.id is None and not request and not arguments.job:
        return _own(arguments)
    from gpulease.api.lease_verbs import explain

    if arguments.id is None:
        return _show_estimate(arguments, request)
    if request:
        raise UsageError("An id and a request were both given.", "Leave one of the two out.")
    reply = explain(arguments.id)
    if arguments.json:
        return print_json(reply, 2)
    if reply["lease"] is not None:
        say(f"{reply['id']} does not wait: it holds GPU {','.join(reply['lease']['labels'])}.")
        return 0
    from gpulease.render.times import start_text

    start = start_text(reply, time.time())
    expected = f" It should start {start}." if start and reply["code"] not in TIMED else ""
    say(f"{reply['id']} is number {reply['place']} in the queue. {reply['why']}{expected}")
    _print_devices(reply)
    return 0


def _print_devices(reply: Explained) -> None:
    from gpulease.render.terminal import Terminal, plain_table

    rows, heading = [(row["label"], row["why"]) for row in reply["devices"]], ("GPU", "WHY NOT")
    if places.engine(os.environ) != places.LOCAL:
        from gpulease.render.hosts import joined

        rows, heading = joined(rows), ("NODE", "WHAT IS THERE")
    if rows:
        print()
        print("\n".join(plain_table([heading, *rows], Terminal())))


def _show_estimate(arguments: Namespace, request: dict[str, Any]) -> int:
    from gpulease.api.lease_verbs import explain
    from gpulease.render.times import start_in

    reply = explain(kind="job" if arguments.job else "run", count=arguments.count, **request)
    if arguments.json:
        return print_json(reply, 2)
    start = start_in(reply.get("expected_start"), None, time.time())
    expected = f" It should start {start}." if start and reply["code"] not in (*TIMED, "fits") else ""
    waits = (
        reply["possible"] and reply["code"] != "fits" and reply["place"]
    )  # Slurm does not tell the place of such a one
    place = f"It would be number {reply['place']} in the queue. " if waits else ""
    say(f"{place}{reply['why']}{expected}")
    if arguments.count > 1 and reply["possible"]:
        now, unknown = reply["starts"].count(0.0), reply["starts"].count(None)
        say(f"Of {arguments.count} such requests {now} would start now. For {unknown} the start is unknown.")
    _print_devices(reply)
    return 0


def _own(arguments: Namespace) -> int:
    from gpulease.api.status import status
    from gpulease.system.identity import user_name

    own = [row for row in status()["line"] if row["user"] == user_name(os.getuid())]
    if arguments.json:
        return print_json({"requests": own}, 2)
    for row in own:
        say(f"{row['id']} waits. {row['why']}")
    if not own:
        print("You have no waiting requests.")
    elif len(own) > 1:
        print(f"\nGPU by GPU: gpulease explain {own[0]['id']}")
    return 0
