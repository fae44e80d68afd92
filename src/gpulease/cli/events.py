"""`gpulease events`: who took and gave back what, when, and why."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json
from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXAMPLES = """\
examples:
  gpulease events                 the last hundred
  gpulease events --since 1d
  gpulease events --since 7d --json
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("--since", metavar="TIME", help="of the last 1d, 2h, ... (kept for 90 days)")
    parser.add_argument(
        "--most", type=int, default=None, metavar="N", help="the last N (default 100; with --since 10000)"
    )
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.client import Client
    from gpulease.quantities import parse_seconds

    if arguments.most is not None and arguments.most < 1:
        raise UsageError(f"--most is {arguments.most}.", "Give 1 or more.")
    since = None if arguments.since is None else parse_seconds(arguments.since)
    most = arguments.most or (100 if since is None else 10_000)
    told = Client().ask("events", since=since, most=most)["events"]
    if arguments.json:
        import json

        print(json.dumps({"events": told}))
        return 0
    from gpulease.cli.render import Terminal, plain_table

    if not told:
        print("no events yet")
        return 0
    rows = [("TIME", "EVENT", "ID", "GPU", "USER", "PID", "WHY"), *(_row(event) for event in told)]
    print("\n".join(plain_table(rows, Terminal())))
    return 0


def _row(event: dict[str, Any]) -> tuple[str, ...]:
    import time

    stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(event["time"]))
    why = event.get("why") or event.get("note") or ""
    if event["what"] == "granted":
        why = f"{event['kind']}, waited {event['waited']:.0f} s"
    gpus = ",".join(event.get("devices", ()))
    return (stamp, event["what"], event.get("id", ""), gpus, event["user"], str(event.get("pid") or ""), why)
