"""`gpulease ls`: what runs, what waits and why, what ended."""

from __future__ import annotations

from gpulease.cli.options import MAX_COUNTED, add_choice, filters
from gpulease.cli.parsing import ArgumentParser, Namespace, add_hosts, add_json, add_watch, at_least, clean, print_json
from gpulease.errors import NotFound
from gpulease.model.job_selection import ENDED
from gpulease.render.jobs import COLOURS, job_text, state_text, wants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.protocol.messages import JobRow, Listing
    from gpulease.render.terminal import Terminal

EXAMPLES = """\
It lists running jobs, then waiting jobs in the order of the queue with the
reason why each waits, then the last jobs that ended.

examples:
  gpulease ls
  gpulease ls --all
  gpulease ls --mine --watch     redraw at each change; Ctrl-C ends it
  gpulease ls --hosts            the jobs of all hosts
  gpulease ls --label sweep1 --state failed
  gpulease ls --state failed --json    an empty list if none failed
  gpulease ls --json | jq '.jobs[] | select(.state == "failed") | .id'
"""
MAX_CHOSEN = 1000  # jobs that are shown, where some were chosen
REASON = 26  # columns: the longest short form of a reason, in brackets
HEADINGS = ("ID", "STATE", "PRIO", "GPU", "TIME", "USER", "COMMAND")


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.add_argument("--all", "-a", action="store_true", help="all ended jobs too")
    parser.add_argument(
        "--most", type=int, metavar="N", help="at most N of each: running, waiting, ended (default 50; with --all 1000)"
    )
    add_watch(parser)
    add_hosts(parser)
    add_json(parser)


def run(arguments: Namespace) -> int:
    if arguments.hosts is not None:
        from gpulease.cli import all_hosts

        return all_hosts.ls(arguments)
    from gpulease.api.jobs import ls

    most = at_least(1, "--most", arguments.most)
    chosen = filters(arguments)
    some = arguments.ids or any(chosen.values())

    def listed() -> Listing:
        try:
            return ls(*arguments.ids, **chosen, all=arguments.all, most=most)
        except NotFound:
            if arguments.watch is None:
                raise
            return {**ls(most=1), "jobs": []}  # none yet, or none any more: who watches goes on

    def lines(listing: Listing, terminal: Terminal) -> list[str]:
        more = _more_chosen(len(listing["jobs"]), terminal) if some else _more(listing, arguments.all, most, terminal)
        return [*_lines(listing, terminal), *more]

    def _more_chosen(shown: int, terminal: Terminal) -> list[str]:
        """Of those that were chosen: the counts are of all."""
        if shown < (most or MAX_CHOSEN):
            return [] if shown else ["No jobs match."]
        more = len(ls(*arguments.ids, **chosen, all=arguments.all, most=MAX_COUNTED)["jobs"]) - shown
        return [f"{_mark(terminal)} and {more} more; see --most"] if more > 0 else []

    if arguments.watch is not None:
        from gpulease.cli.watch import watch

        return watch(arguments, ("jobs", "line"), listed, lines)
    if arguments.json:
        return print_json(listed(), 2)
    from gpulease.render.terminal import Terminal

    print("\n".join(lines(listed(), Terminal())))
    return 0


def _more(listing: Listing, all: bool, asked: int | None, terminal: Terminal) -> list[str]:
    """How many there are beside those that are shown, and how to see them: `--most` has a bound of its own."""
    bound = listing.get("most") or 0
    more = (
        f"{bound} of each kind are listed; --state, --label or ids show others"
        if (asked or 0) > bound > 0
        else "see --most"
    )
    over = sum(listing["counts"].get(state, 0) for state in ENDED)
    ended = over - sum(job["state"] in ENDED for job in listing["jobs"])
    held = listing["counts"].get("held", 0) - sum(job["state"] == "held" for job in listing["jobs"])
    others = sum(listing["counts"].values()) - len(listing["jobs"]) - ended - held
    mark = _mark(terminal)
    lines = [f"{mark} and {others} more that wait; {more}"] if others > 0 else []
    lines += [f"{mark} and {held} more that are held; {more}"] if held > 0 else []
    return [*lines, *([f"{mark} and {ended} more ended; {more if all else 'see --all'}"] if ended > 0 else [])]


def _mark(terminal: Terminal) -> str:
    return "…" if terminal.unicode else "..."


def _lines(listing: Listing, terminal: Terminal) -> list[str]:
    from gpulease.render.terminal import plain_table

    mark = "SIMULATED GPUs; " if listing["simulated"] else ""
    counts = ", ".join(f"{number} {state}" for state, number in sorted(listing["counts"].items()))
    head = f"{mark}{counts or 'no jobs'}" + ("; the queue is paused" if listing["paused"] else "")
    heads = _wrapped(clean(head), terminal.width)
    if listing.get("state_trouble"):
        heads += [
            terminal.paint(line, "red") for line in _wrapped(clean(str(listing["state_trouble"])), terminal.width)
        ]
    if not listing["jobs"]:
        return heads
    rows = [HEADINGS, *(job_row(job) for job in listing["jobs"])]
    lines = plain_table(rows, terminal, least=REASON)
    shown = [lines[0]]
    for job, line in zip(listing["jobs"], lines[1:], strict=True):
        state = state_text(job)
        shown.append(line.replace(state, terminal.paint(state, COLOURS[state]), 1))
    return [*heads, *shown]


def _wrapped(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    from textwrap import wrap

    return wrap(text, width)


def job_row(job: JobRow) -> tuple[str, ...]:
    return (
        str(job["id"]),
        state_text(job),
        str(job["request"]["priority"]),
        ",".join(job["devices"]) or wants(job),
        _time(job),
        job["user"],
        job_text(job),
    )


def _time(job: JobRow) -> str:
    import time

    from gpulease.render.times import span, start_text

    if job["state"] == "waiting":
        return start_text(job, time.time())
    if job["started"] is None or job["state"] == "held":
        return ""
    return span((job["ended"] or time.time()) - job["started"])
