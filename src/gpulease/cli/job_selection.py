"""Which jobs a verb is about, as options, the same for every verb; and where a job went that was moved."""

from __future__ import annotations

import os
import sys

from gpulease.cli.parsing import Any, ArgumentParser, Namespace, clean
from gpulease.errors import NotFound, UsageError
from gpulease.model.job_selection import EVERYBODY, STATES, are_states, id_order, job_number, ranges, selection
from gpulease.system import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpulease.model.job_selection import JobId, Named
    from gpulease.protocol.messages import JobRow

MAX_COUNTED = 5000  # jobs of one answer


class States(tuple[str, ...]):
    """The choices of --state: each of them, and several with commas between them."""

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and are_states(text)


def add_choice(parser: ArgumentParser, more: str = "") -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help=f"job ids and ranges, as 3,5-9; or `all`, `last`{more}")
    parser.add_argument("--label", action="once", help="jobs with this label")
    states = f"jobs in this state: {', '.join(STATES[:-1])} or {STATES[-1]}; several: failed,killed"
    parser.add_argument("--state", action="once", choices=States(STATES), metavar="STATE", help=states)
    add_whose(parser)


def add_whose(parser: ArgumentParser) -> None:
    parser.add_argument("--user", action="once", metavar="NAME", help="jobs of this user; only root can change others'")
    parser.add_argument("--mine", action="store_true", help="your own jobs")


def add_everybody(parser: ArgumentParser) -> None:
    """For verbs that change jobs: of root, `all` is root's own unless this is said."""
    everybody = "jobs of every user (root only); asks first on a terminal"
    parser.add_argument("--all-users", action="store_true", help=everybody)
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")


def filters(arguments: Namespace) -> dict[str, Any]:
    return {"label": arguments.label, "state": arguments.state, **whose(arguments)}


def whose(arguments: Namespace) -> dict[str, Any]:
    everybody = getattr(arguments, "all_users", False)
    given = {"--user": arguments.user is not None, "--mine": arguments.mine, "--all-users": everybody}
    several = [option for option, is_given in given.items() if is_given]
    if len(several) > 1:
        raise UsageError(f"{several[0]} and {several[1]} were both given.", "Leave one of the two out.")
    return {"user": EVERYBODY if everybody else arguments.user, "mine": arguments.mine}


def refused(verb: str, arguments: Namespace, ids: list[str], state: str) -> bool:
    """Whether somebody at a terminal does not want it, who said --all-users and is told how many jobs that is.

    Without a terminal --all-users is enough: nobody says it by mistake, and nobody could answer.
    """
    if not getattr(arguments, "all_users", False) or arguments.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    from gpulease.api.jobs import ls

    chosen = {**filters(arguments), "state": arguments.state or state}
    jobs = ls(*(ids or ["all"]), **chosen, most=MAX_COUNTED)["jobs"]
    users = sorted({job["user"] for job in jobs})
    number = f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}" if len(jobs) < MAX_COUNTED else "thousands of jobs"
    names = clean(", ".join(users[:5]) + (", ..." if len(users) > 5 else ""))
    whose = f"{len(users)} {'user' if len(users) == 1 else 'users'}"
    print(f"gpulease: {verb} {number} of {whose} ({names})? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return False
    print("nothing done")
    return True


def say_missing(rows: list[JobRow], ids: list[str]) -> int:
    """The exit code, and a word on stderr, when some of the ids that were named are nobody's here."""
    there = {number for job in rows for number in (id_order(job["id"])[0], job["id"])}  # an array by its tasks too
    named = selection(ids, required=False)
    absent: list[JobId] = [first for first, last in named.get("ids", ()) if first == last and first not in there]
    absent += [name for array, first, last in named.get("tasks", ()) if (name := f"{array}_{first}") not in there]
    if absent:
        sys.stdout.flush()
        print(f"gpulease: not there, or not yours: job {ranges(absent)}", file=sys.stderr)
    return 1 if absent else 0


# -------------------------------------------------------------------- jobs that were moved

LONG_AGO = 7 * 86400.0  # seconds; who asks later has seen where the jobs are


def tell_moved(verb: str, named: Sequence[Named], since: float = LONG_AGO) -> None:
    """An error, if one of those that were named was moved; `all` are this user's."""
    if places.engine(os.environ) != places.LOCAL:
        return
    from gpulease.api.lease_verbs import events
    from gpulease.system.identity import user_name

    select = selection(named, required=False)
    spans = [(0, 1 << 62)] if "all" in select else select.get("ids", [])
    for event in events(since=since, user=user_name(os.getuid()), kind="job") if spans else ():
        number = job_number(event["id"])
        if event["what"] == "moved" and any(first <= number <= last for first, last in spans):
            new = (event["why"] or "").removeprefix("moved to ")
            raise NotFound(f"Job {number} was moved to {new} by `gpulease rebalance`.", f"Use `gpulease {verb} {new}`.")
