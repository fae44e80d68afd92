"""`gpulease usage`: who used how much of the GPUs, held beside busy, how long was waited, and how jobs ended."""

from __future__ import annotations

import sys

from gpulease.cli.parsing import ArgumentParser, Namespace, add_hosts, add_json, clean, print_json
from gpulease.errors import UsageError
from gpulease.render.usage import BY, ENDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.protocol.messages import UsageDocument, UsageRow
    from gpulease.render.terminal import Terminal

EXAMPLES = """\
HELD is the GPU-hours of leases and jobs. BUSY is HELD times the utilization.
IDLE is the part of HELD with a utilization of 1 % or less. WAIT is the mean
wait. OUTSIDE is the GPU-hours in use without a lease. A bar shows HELD, and its
full part BUSY. `-` means unknown or none.

examples:
  gpulease usage                       the last 30 days, by user
  gpulease usage --since 7d --by day
  gpulease usage --since 2026-11-01 --until 2026-12-01 --by group
  gpulease usage --by gpu --csv > usage.csv
  gpulease usage --hosts               all hosts together
"""
BAR = 10  # columns
JOBS = 24  # columns that the last one has at least
CSV = ("held", "known", "busy", "idle", "outside")


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    times = "a time ago, as 2h or 30d, or a moment, as 08:30 or 2026-12-24T22:30"
    parser.add_argument("--since", metavar="TIME", default="30d", help=f"from: {times} (default 30d; 90 days are kept)")
    parser.add_argument("--until", metavar="TIME", help="up to, in the form of --since")
    parser.add_argument("--by", choices=BY, default="user", help="one line for each of these (default user)")
    parser.add_argument("--csv", action="store_true", help="print comma-separated values, with a header line")
    add_hosts(parser, "the sum of all configured hosts, or of these: a,b")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.history import usage

    if arguments.csv and arguments.json:
        raise UsageError("--csv and --json were both given.", "Leave one of the two out.")
    if arguments.hosts is not None:
        from gpulease.cli.all_hosts import usage as usage_of_hosts

        return usage_of_hosts(arguments)
    document = usage(since=arguments.since, until=arguments.until, by=arguments.by)
    if arguments.json:
        return print_json(document)
    return show(arguments, document)


def show(arguments: Namespace, document: UsageDocument) -> int:
    if arguments.csv:
        if document["note"]:
            print(f"gpulease: {document['note']}", file=sys.stderr)
        return _print_csv(document)
    from gpulease.render.terminal import Terminal

    print("\n".join(shown(document, Terminal())))
    return 0


# -------------------------------------------------------------------- for people


def shown(document: UsageDocument, terminal: Terminal) -> list[str]:
    from gpulease.render.times import stamp

    whose = "of everybody" if document["everybody"] else "of your own"
    title = f"GPU-hours {whose} from {stamp(document['since'])[:-3]} to {stamp(document['until'])[:-3]}"
    note = [clean(text)] if (text := document.get("note")) else []
    if not document["rows"]:
        return [title, *note, "nothing was held, used or run"]
    from gpulease.render.terminal import plain_table

    return [title, *note, *plain_table(_table(document, terminal), terminal, least=JOBS)]


def _table(document: UsageDocument, terminal: Terminal) -> list[list[str]]:
    rows = [*document["rows"], *([document["total"]] if len(document["rows"]) > 1 else [])]
    outside, most = any(row["outside"] for row in rows), max(row["held"] for row in document["rows"])
    heading = [document["by"].upper(), "HELD", "BUSY", "IDLE", *(["OUTSIDE"] if outside else []), "WAIT"]
    cells = [heading, *(_cells(row, outside) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading))]
    table = [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in cells]
    bars = ["", *(_bar(row, most, terminal) for row in document["rows"]), ""] if terminal.cuts else None
    ends = ["JOBS", *map(_ends, rows)]
    return [
        [*row, *([bars[at]] if bars else []), ends[at]] for at, row in enumerate(table)
    ]  # the total has no bar: it would be the longest


def _cells(row: UsageRow, outside: bool) -> list[str]:
    from gpulease.render.times import span

    idle = "-" if row["idle_share"] is None else f"{row['idle_share']:.0%}"
    wait = "-" if row["mean_wait"] is None else span(row["mean_wait"])
    more = [_hours(row["outside"])] if outside else []
    return [row["name"], _hours(row["held"]), _hours(row["busy"]) if row["known"] else "-", idle, *more, wait]


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.0f}" if hours >= 1000 else f"{hours:.1f}" if hours >= 10 else f"{hours:.2f}"


def _bar(row: UsageRow, most: float, terminal: Terminal) -> str:
    """As long as what was held, full as far as it was busy."""
    if not row["held"] or not most:
        return ""
    long = max(1, round(BAR * row["held"] / most))
    return terminal.bar(row["busy"] / row["known"] if row["known"] else 0.0, long)


def _ends(row: UsageRow) -> str:
    return ", ".join(f"{number} {how}" for how, number in row["jobs"].items()) or "-"


# -------------------------------------------------------------------- for spreadsheets


def _print_csv(document: UsageDocument) -> int:
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = [document["by"], *(f"{name}_hours" for name in CSV), "idle_share", "granted", "mean_wait_seconds", *ENDS]
    writer.writerow(name.replace("-", "_") for name in names)
    for row in document["rows"]:
        hours = [round(float(row[name]) / 3600, 6) for name in CSV]  # type: ignore[literal-required]
        jobs = [row["jobs"].get(how, 0) for how in ENDS]
        writer.writerow([_cell(row["name"]), *hours, row["idle_share"], row["granted"], row["mean_wait"], *jobs])
    return 0


def _cell(text: str) -> str:
    """A label that a spreadsheet would take for a formula is marked as text."""
    text = clean(text)
    return f"'{text}" if len(text) > 1 and text[0] in "=+-@" else text
