"""A request, spelled the same for every verb that takes a lease."""

from __future__ import annotations

import os

from gpulease.cli.parsing import Any, ArgumentParser, Namespace
from gpulease.errors import UsageError, in_words
from gpulease.model.request_fields import as_option, request_fields, seconds
from gpulease.model.visible import wanted


def add_request(parser: ArgumentParser, for_help: str, waits: bool = True) -> None:
    group = parser.add_argument_group("request")
    add_wanted(group, 1, 5)
    if waits:
        group.add_argument("--wait", metavar="TIME", help="wait at most so long, as 30m; then exit with 75")
        group.add_argument("--no-wait", action="store_true", help="do not wait at all: granted now, or exit with 75")
    group.add_argument("--for", dest="duration", metavar="TIME", help=for_help)
    add_visible_by(group)
    group.add_argument("--note", metavar="TEXT", help="shown to others in `gpulease status`")


def add_wanted(group: Any, gpus: int | None, priority: int | None) -> None:
    """Which GPUs, how many, and how urgent; with these defaults."""
    group.add_argument("-n", "--gpus", type=int, default=gpus, metavar="N", help="how many GPUs (default 1)")
    group.add_argument("--mem", metavar="SIZE", help="share one GPU: only so much of its memory, as 6G")
    group.add_argument(
        "--model", metavar="MODELS", help="GPUs of this model; several in order of preference: A100,V100"
    )
    group.add_argument(
        "--devices", "-d", metavar="IDS", help="only these, in order of preference: indices or UUIDs, as 2,0"
    )
    group.add_argument("--exclude", metavar="IDS", help="not these")
    group.add_argument("--min-memory", metavar="SIZE", help="GPUs with at least so much memory in all, as 40G")
    group.add_argument("--max-leases", type=int, metavar="N", help="at most N other leases on the shared GPU")
    group.add_argument(
        "--beside-outside", action="store_true", help="with --mem: also on a GPU that somebody outside of gpulease uses"
    )
    group.add_argument("--mig", action="store_true", help="MIG instances instead of whole GPUs")
    group.add_argument(
        "--priority", "-p", type=int, default=priority, metavar="P", help="smaller is sooner (default 5)"
    )


def add_visible_by(parser: Any) -> None:
    """Not `--visible`, which narrows what `status` and `select` look at."""
    help = "how CUDA_VISIBLE_DEVICES names the GPUs: uuid or index"
    parser.add_argument("--visible-by", choices=("uuid", "index"), metavar="KIND", help=help)


def add_folder(parser: ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="PATH", help="the folder to run in (default: this one)")


def enter_folder(named: str | None) -> None:
    """Go to the folder that --cwd names. One that is not there is told of before a long wait."""
    if named is None:
        return
    from gpulease.api.job_fields import folder

    try:
        os.chdir(folder(named))
    except OSError as trouble:
        raise UsageError(f"The folder {named!r} cannot be entered: {in_words(trouble)}.", "Name another.") from None
    os.environ["PWD"] = os.getcwd()


def acquire_fields(arguments: Namespace, kind: str) -> dict[str, Any]:
    """The fields of an `acquire` message."""
    if arguments.wait is not None and arguments.no_wait:
        raise UsageError("--wait and --no-wait were both given.", "Leave one of the two out.")
    wanted(arguments.visible_by, os.environ)  # what is wrong is said before a long wait
    wait = 0.0 if arguments.no_wait else None if arguments.wait is None else seconds(arguments.wait, "--wait")
    return {"request": request_fields(vars(arguments), as_option), "kind": kind, "wait": wait, "note": arguments.note}
