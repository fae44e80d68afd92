"""`gpulease events`: who had which GPUs, from when to when, and why it ended."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_hosts, add_json, at_least, print_json

EXAMPLES = """\
It prints one line for each use of GPUs, at the time when it began, and for
other events of GPUs. `-` means unknown, or not yet. `gpulease log main` has
everything that the broker did.

examples:
  gpulease events                 the last hundred events
  gpulease events --since 1d --user ada
  gpulease events --gpu 0,2 --since 2026-11-01 --until 2026-11-08
  gpulease events --job 12
  gpulease events --since 7d --json
  gpulease events --hosts --since 2h
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    times = "a time ago, as 2h or 1d, or a moment, as 08:30 or 2026-12-24T22:30"
    parser.add_argument("--since", metavar="TIME", help=f"from: {times} (kept for 90 days)")
    parser.add_argument("--until", metavar="TIME", help="up to, in the form of --since")
    parser.add_argument("--user", metavar="USER", help="only of this user")
    parser.add_argument("--gpu", metavar="IDS", help="only of these GPUs: indices, as 0,2")
    parser.add_argument("--kind", metavar="KIND", help="only this kind of use: job, run, get, shell, acquire, ...")
    parser.add_argument("--job", metavar="ID", help="only of this job")
    parser.add_argument(
        "--most", type=int, default=None, metavar="N", help="the last N events (default 100; with --since 10000)"
    )
    add_hosts(parser, "of all configured hosts, or of these: a,b, one host after the other")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.lease_verbs import events

    if arguments.hosts is not None:
        from gpulease.cli.all_hosts import events as events_of_hosts

        return events_of_hosts(arguments)
    chosen = {name: getattr(arguments, name) for name in ("since", "until", "user", "gpu", "kind", "job")}
    reply = events(**chosen, most=at_least(1, "--most", arguments.most))
    if arguments.json:
        return print_json({"events": reply})
    import time

    from gpulease.render.events import HEADINGS, WHAT, table_rows
    from gpulease.render.terminal import Terminal, plain_table

    rows = table_rows(reply, arguments.until is not None, time.time())
    if not rows:
        print("no such events" if any(chosen.values()) else "no events yet")
        return 0
    print("\n".join(plain_table([HEADINGS, *rows], Terminal(), least=WHAT)))
    return 0
