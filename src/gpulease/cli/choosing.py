"""Which jobs a verb is about, as options. The same for every verb."""

from __future__ import annotations

import sys

from gpulease.cli.parsing import Any, ArgumentParser, Namespace
from gpulease.errors import UsageError
from gpulease.job_selection import EVERYBODY, STATES, are_states, ranges, selection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.messages import JobRow


class States(tuple[str, ...]):
    """The choices of --state: each of them, and several with commas between them."""

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and are_states(text)


def add_choice(parser: ArgumentParser, more: str = "") -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help=f"job ids and ranges, as 3,5-9; `all`; `last`{more}")
    parser.add_argument("--label", action="once", help="jobs with this label")
    states = f"jobs in this state: {', '.join(STATES[:-1])} or {STATES[-1]}; several as failed,killed"
    parser.add_argument("--state", action="once", choices=States(STATES), metavar="STATE", help=states)
    parser.add_argument("--user", action="once", metavar="NAME", help="jobs of this user; others' are root's to change")


def add_everybody(parser: ArgumentParser) -> None:
    """For verbs that change jobs: of root, `all` is root's own unless this is said."""
    parser.add_argument("--all-users", action="store_true", help="jobs of every user, for root; else only one's own")


def filters(arguments: Namespace) -> dict[str, Any]:
    user = arguments.user
    if getattr(arguments, "all_users", False):
        if user is not None:
            raise UsageError("--user and --all-users were both given.", "Leave one of the two out.")
        user = EVERYBODY
    return {"label": arguments.label, "state": arguments.state, "user": user}


def say_missing(told: list[JobRow], ids: list[str]) -> int:
    """The exit code, and a word on stderr, when some of the ids that were named are nobody's here."""
    there = {job["id"] for job in told}
    named = selection(ids, required=False).get("ids", ())
    absent = [first for first, last in named if first == last and first not in there]
    if absent:
        sys.stdout.flush()
        print(f"gpulease: not there, or not yours: job {ranges(absent)}", file=sys.stderr)
    return 1 if absent else 0
