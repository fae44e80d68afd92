"""`gpulease events`: who took and gave back what, when, and why."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, at_least, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.messages import EventRow

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
    from gpulease.lease_verbs import events

    told = events(since=arguments.since, most=at_least(1, "--most", arguments.most))
    if arguments.json:
        return print_json({"events": told})
    from gpulease.cli.render import Terminal, plain_table

    if not told:
        print("no events yet")
        return 0
    rows = [("TIME", "EVENT", "ID", "GPU", "USER", "PID", "WHY"), *(_row(event) for event in told)]
    print("\n".join(plain_table(rows, Terminal())))
    return 0


def line_of(event: EventRow) -> str:
    """One line of a log."""
    import time

    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
    what, id, gpus, user, _, why = _row(event)[1:]
    on = f" on GPU {gpus}" if gpus else ""
    return f"{stamp} {what} {id}{on} ({user}){f': {why}' if why else ''}".replace("  ", " ")


def _row(event: EventRow) -> tuple[str, ...]:
    import time

    stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(event["time"]))
    why = event.get("why") or event.get("note") or ""
    if event["what"] == "granted":
        why = f"{event['kind']}, waited {event['waited']:.0f} s"
    gpus = ",".join(event.get("devices", ()))
    return (stamp, event["what"], event.get("id", ""), gpus, event["user"], str(event.get("pid") or ""), why)
