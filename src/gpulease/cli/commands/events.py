"""`gpulease events`: who had which GPUs, from when to when, and why it ended."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_hosts, add_json, at_least, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpulease.protocol.messages import EventRow

EXAMPLES = """\
One line for each use of GPUs, as it began, and for what else happened to them;
`-` is not known, or not yet. `gpulease log main` has everything that the
broker did, line by line.

examples:
  gpulease events                 from the last hundred events
  gpulease events --since 1d --user ada
  gpulease events --gpu 0,2 --since 2026-11-01 --until 2026-11-08
  gpulease events --job 12
  gpulease events --since 7d --json
  gpulease events --hosts --since 2h
"""
WHAT = 24  # columns, of the last column at least
HEADINGS = ("START", "END", "LONG", "USER", "GPU", "WHAT")
UNKNOWN = "-"
NOT_SHOWN = ("added",)  # nobody has a GPU by it


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    times = "so long ago, as 2h or 1d, or a moment, as 08:30 or 2026-12-24T22:30"
    parser.add_argument("--since", metavar="TIME", help=f"not before: {times} (kept for 90 days)")
    parser.add_argument("--until", metavar="TIME", help="not after, as --since")
    parser.add_argument("--user", metavar="USER", help="of this user")
    parser.add_argument("--gpu", metavar="IDS", help="of these GPUs: indices, as 0,2")
    parser.add_argument("--kind", metavar="KIND", help="of this kind of use: job, run, get, shell, acquire, ...")
    parser.add_argument("--job", metavar="ID", help="of this job")
    parser.add_argument(
        "--most", type=int, default=None, metavar="N", help="the last N (default 100; with --since 10000)"
    )
    add_hosts(parser, "of several hosts, one after the other: a,b, or those of the config")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.lease_verbs import events

    if arguments.hosts is not None:
        from gpulease.cli.all_hosts import events as events_of_hosts

        return events_of_hosts(arguments)
    chosen = {name: getattr(arguments, name) for name in ("since", "until", "user", "gpu", "kind", "job")}
    told = events(**chosen, most=at_least(1, "--most", arguments.most))
    if arguments.json:
        return print_json({"events": told})
    from gpulease.render.tables import Terminal, plain_table

    rows = table_rows(told, ended=arguments.until is not None)
    if not rows:
        print("no such events" if any(chosen.values()) else "no events yet")
        return 0
    print("\n".join(plain_table([HEADINGS, *rows], Terminal(), least=WHAT)))
    return 0


def table_rows(events: Iterable[EventRow], ended: bool) -> list[tuple[str, ...]]:
    """In the order in which they began; `ended`: what has no end here may have one."""
    import time

    began: dict[str, EventRow] = {}  # by id, what is not known to have ended
    found: list[tuple[float, tuple[str, ...]]] = []
    for event in events:
        if event["what"] == "granted":
            began[event["id"]] = event
        elif event["what"] == "ended":
            grant = began.pop(event["id"], None)
            start = event.get("since", None if grant is None else grant["time"])
            found.append((start or event["time"], _use(event, grant, start, event["time"], event["time"])))
        elif event["what"] not in NOT_SHOWN:
            found.append((event["time"], _happened(event)))
    now = None if ended else time.time()
    found += [(event["time"], _use(event, event, event["time"], None, now)) for event in began.values()]
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def _use(
    event: EventRow, grant: EventRow | None, start: float | None, end: float | None, now: float | None
) -> tuple[str, ...]:
    from gpulease.cli.commands.ls import span
    from gpulease.render.times import clock

    long = UNKNOWN if start is None or now is None else span(now - start)
    waited = None if grant is None else grant.get("waited")
    named, why = _named(event), event.get("why") or ""
    words = [why if why.startswith(named) else named]
    words += [f"waited {span(waited)}"] if waited is not None and waited >= 1 else []
    words += [f"by {event['releaser']}"] if event.get("releaser", event["user"]) != event["user"] else []
    words += [str(text) for text in (event.get("note"), why) if text and text not in words]
    times = (UNKNOWN if moment is None else clock(moment) for moment in (start, end))
    return (*times, long, event["user"], _gpus(event), ", ".join(words))


def _named(event: EventRow) -> str:
    """As the reason of a job's end begins, too."""
    id, kind = event.get("id", UNKNOWN), event.get("kind", UNKNOWN)
    return f"job {id[1:]}" if kind == "job" else f"{id} {kind}"


def _happened(event: EventRow) -> tuple[str, ...]:
    """What is no use: a device that was excluded, a lease that was renewed."""
    from gpulease.render.times import clock

    words = " ".join(str(word) for word in (event.get("id"), event["what"]) if word)
    why = event.get("why") or event.get("note")
    return (clock(event["time"]), "", "", event["user"], _gpus(event), f"{words}: {why}" if why else words)


def _gpus(event: EventRow) -> str:
    return ",".join(event.get("devices", ()))


def line_of(event: EventRow) -> str:
    """One line of a log."""
    from gpulease.render.times import stamp

    why = event.get("why") or event.get("note") or ""
    if event["what"] == "granted":
        waited = f"{event['waited']:.0f}" if "waited" in event else UNKNOWN
        why = f"{event.get('kind', UNKNOWN)}, waited {waited} s"
    on = f" on GPU {_gpus(event)}" if _gpus(event) else ""
    id = f" {event['id']}" if event.get("id") else ""
    return f"{stamp(event['time'])} {event['what']}{id}{on} ({event['user']}){f': {why}' if why else ''}"
