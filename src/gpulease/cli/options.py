"""Options that several verbs have: what a request or a job may have, and which jobs are meant."""

from __future__ import annotations

import os
import sys
from itertools import pairwise

from gpulease.cli.parsing import Any, ArgumentParser, Namespace, clean
from gpulease.errors import NotFound, UsageError, in_words
from gpulease.model.fields import JOB, REQUEST, Field, as_option, request_fields, seconds
from gpulease.model.job_selection import EVERYBODY, STATES, are_states, id_order, job_number, ranges, selection
from gpulease.system import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpulease.model.job_selection import JobId, Named
    from gpulease.protocol.messages import JobRow


def add_field(parser: Any, row: Field, flags: tuple[str, ...] = (), **other: Any) -> None:
    """The option of a field, as its row says, but for what is `other`."""
    about = {"default": row.default, **({} if row.metavar is None else {"metavar": row.metavar}), **row.kind.option}
    parser.add_argument(*(flags or row.flags), **({"dest": row.name} | about | {"help": row.help} | other))


def add_request(parser: ArgumentParser, for_help: str, waits: bool = True) -> None:
    """`waits`: somebody does, for a lease; else it is a job's."""
    group = parser.add_argument_group("request")
    add_wanted(group, for_help, job=not waits)
    if waits:
        group.add_argument("--wait", metavar="TIME", help="wait at most this long, as 30m; then exit with code 75")
        group.add_argument("--no-wait", action="store_true", help="do not wait: get it now, or exit with code 75")
        for row in JOB:
            if row.name in ("visible_by", "note"):
                add_field(group, row)


def add_wanted(group: Any, for_help: str, job: bool = False, **other: Any) -> None:
    """Which GPUs, how many, how urgent and for how long."""
    for row in REQUEST:
        if job or not row.job:
            add_field(group, row, help=for_help if row.name == "duration" else row.help, **other)


def add_job(parser: ArgumentParser) -> None:
    for row in JOB:
        if row.help:
            add_field(parser, row)


def add_of_job(parser: Any, name: str) -> None:
    """One option of jobs, for another verb."""
    add_field(parser, next(row for row in JOB if row.name == name))


def enter_folder(named: str | None) -> None:
    """Go to the folder that --cwd names. One that is not there is told of before a long wait."""
    if named is None:
        return
    from gpulease.api.job_commands import folder

    try:
        os.chdir(folder(named))
    except OSError as trouble:
        raise UsageError(f"The folder {named!r} cannot be entered: {in_words(trouble)}.", "Name another.") from None
    os.environ["PWD"] = os.getcwd()


def acquire_fields(arguments: Namespace, kind: str) -> dict[str, Any]:
    """The fields of an `acquire` message."""
    if arguments.wait is not None and arguments.no_wait:
        raise UsageError("--wait and --no-wait were both given.", "Leave one of the two out.")
    from gpulease.model.visible import wanted

    wanted(arguments.visible_by, os.environ)  # what is wrong is said before a long wait
    wait = 0.0 if arguments.no_wait else None if arguments.wait is None else seconds(arguments.wait, "--wait")
    return {"request": request_fields(vars(arguments), as_option), "kind": kind, "wait": wait, "note": arguments.note}


def export_lines(variables: dict[str, str]) -> str:
    """Quoted: names of devices come from a broker, which may be another user's program."""
    from gpulease.model.shell_text import quoted

    return "\n".join(f"export {name}={quoted(value)}" for name, value in variables.items())


TOOLS = ("docker", "podman", "nerdctl")
INSTEAD = "Use $(gpulease docker-args) in its place: `gpulease help containers`"


def warn_of_all_gpus(commands: Iterable[list[str]]) -> None:
    found = next(filter(None, map(gpus_beside, commands)), None)
    if found is not None:
        said = f"gpulease: with `{found}` the container sees GPUs that are not of its lease. {INSTEAD}."
        print(said, file=sys.stderr, flush=True)


def gpus_beside(command: list[str]) -> str | None:
    """The option that names other GPUs than a lease can: all, or the first so many. Also inside a shell's text."""
    text = " ".join(command)
    if not any(tool in text for tool in TOOLS) or "gpu" not in text:
        return None
    words = text.translate({ord(letter): " " for letter in "=\"'"}).split()
    for option, value in pairwise(words):
        if option == "--gpus" and (value == "all" or value.isdecimal()):
            return f"--gpus {value}"
        if option.endswith("nvidia.com/gpu") and value == "all":
            return f"--device {option}={value}"
    return None


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
