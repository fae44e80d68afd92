"""Which jobs a verb is about: ids, ranges, `all`, `last`, a label, a state. The same for every verb."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATES = ("waiting", "held", "running", "paused", "complete", "failed", "invalid", "killed", "lost")


def add_choice(parser: ArgumentParser, required: bool = True) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="job ids and ranges, as 3,5-9; `all`; `last`")
    parser.add_argument("--label", help="jobs with this label")
    parser.add_argument("--state", choices=STATES, help="jobs in this state")
    parser.set_defaults(choice_required=required)


def choice(arguments: Namespace) -> dict[str, Any]:
    """The `select` of a message."""
    words = [part for word in arguments.ids for part in word.split(",") if part]
    if not words and not arguments.label and not arguments.state:
        if arguments.choice_required:
            raise UsageError("No job was named.", "Give ids or ranges, as 3,5-9, or `all`, `last`, --label or --state.")
        return {}
    select: dict[str, Any] = {"label": arguments.label, "state": arguments.state}
    if words == ["last"]:
        select["last"] = True
    elif words and words != ["all"]:
        select["ids"] = [_range(word) for word in words]
    return {name: value for name, value in select.items() if value is not None} or {"all": True}


def _range(word: str) -> tuple[int, int]:
    first, dash, last = word.removeprefix("J").partition("-")
    if first.isdecimal() and (last.isdecimal() if dash else True) and len(word) < 40:
        pair = int(first), int(last) if dash else int(first)
        if pair[0] <= pair[1]:
            return pair
    raise UsageError(f"{word[:40]!r} is no job id and no range.", "Write 3, 5-9, 3,5-9, `all` or `last`.")


def say(verb: str, done: dict[str, Any]) -> int:
    """What was done, and what could not be done and why."""
    import sys

    print(f"{verb} {_ranges(done['ids'])}" if done["ids"] else "nothing to do")
    for text in done["skipped"][:5]:
        print(f"gpulease: job {text}, left as it is", file=sys.stderr)
    return 0


def _ranges(ids: list[int]) -> str:
    """3,4,5,9 as 3-5,9."""
    parts: list[list[int]] = []
    for id in sorted(ids):
        if parts and parts[-1][1] == id - 1:
            parts[-1][1] = id
        else:
            parts.append([id, id])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
