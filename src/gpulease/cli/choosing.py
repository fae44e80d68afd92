"""Which jobs a verb is about: ids, ranges, `all`, `last`, a label, a state. The same for every verb."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.errors import NotFound, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATES = ("waiting", "held", "running", "paused", "complete", "failed", "invalid", "killed", "lost")
ENDED = STATES[4:]
ALONE = ("all", "last")
TOLD = 5  # jobs that are named one by one
MISSING = "No such job"


def add_choice(parser: ArgumentParser, required: bool = True, more: str = "") -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help=f"job ids and ranges, as 3,5-9; `all`; `last`{more}")
    parser.add_argument("--label", action="once", help="jobs with this label")
    states = f"jobs in this state: {', '.join(STATES[:-1])} or {STATES[-1]}"
    parser.add_argument("--state", action="once", choices=STATES, metavar="STATE", help=states)
    parser.set_defaults(choice_required=required)


def choice(arguments: Namespace) -> dict[str, Any]:
    """The `select` of a message."""
    words = [part for word in arguments.ids for part in word.split(",") if part]
    _refuse_empty(arguments, words)
    if not words and not arguments.label and not arguments.state:
        if arguments.choice_required:
            raise UsageError("No job was named.", "Give ids or ranges, as 3,5-9, or `all`, `last`, --label or --state.")
        return {}
    select: dict[str, Any] = {"label": arguments.label, "state": arguments.state}
    if words == ["last"]:
        select["last"] = True
    elif words and words != ["all"]:
        select["ids"] = [_range(word, len(words)) for word in words]
    return {name: value for name, value in select.items() if value is not None} or {"all": True}


def _refuse_empty(arguments: Namespace, words: list[str]) -> None:
    """An unset variable must not turn `some` into `all`."""
    if arguments.label == "" or (arguments.ids and not words):
        what = "label" if arguments.label == "" else "id"
        raise UsageError(f"No job was named: the {what} is empty.", "It may be an unset variable.")


def _range(word: str, words: int = 1) -> tuple[int, int]:
    if word in ALONE and words > 1:
        raise UsageError(f"`{word}` was given together with other jobs.", "Give it alone, or ids and ranges.")
    first, dash, last = word.removeprefix("J").partition("-")
    if first.isdecimal() and (last.isdecimal() if dash else True) and len(word) < 40:
        pair = int(first), int(last) if dash else int(first)
        if pair[0] <= pair[1]:
            return pair
    raise UsageError(f"{word[:40]!r} is no job id and no range.", "Write 3, 5-9, 3,5-9, `all` or `last`.")


def ask(verb: str, select: dict[str, Any], client: Any = None, **fields: Any) -> Any:
    """The broker's answer; when `select` chooses no job, the error says what was meant."""
    from gpulease.client import Client

    try:
        return (client or Client()).ask(verb, select=select or None, **fields)
    except NotFound as error:
        raise named(error, select) from None


def named(error: NotFound, select: dict[str, Any]) -> NotFound:
    """The same error, with the label and the state that no job has; ids are named by the broker."""
    if error.what != f"{MISSING}.":
        return error
    label = f" with the label {select['label'][:40]!r}" if "label" in select else ""
    state = f" in the state {select['state']}" if "state" in select else ""
    return NotFound(f"{MISSING}{label}{state}.", error.next_step)


def one_id(text: str, client: Any) -> int:
    """Of `12`, `J12` or `last`."""
    if text == "last":
        return int(ask("show", {"last": True}, client)["jobs"][0]["id"])
    number = text.removeprefix("J")
    if not number.isdecimal() or len(number) >= 18:
        raise UsageError(f"{text[:40]!r} is no job id.", "Write an id, as 12, or `last`.")
    return int(number)


def say(verb: str, done: dict[str, Any], select: dict[str, Any]) -> int:
    """What was done, and what could not be done and why."""
    import sys

    print(f"{verb} {_ranges(done['ids'])}" if done["ids"] else "nothing to do")
    left = done["skipped"] if "ids" in select else [text for text in done["skipped"] if not text.endswith(ENDED)]
    for text in left[:TOLD]:
        print(f"gpulease: job {text}, left as it is", file=sys.stderr)
    if len(left) > TOLD:
        print(f"gpulease: and {len(left) - TOLD} more, left as they are", file=sys.stderr)
    return 0


def pairs(ids: list[int]) -> list[list[int]]:
    """3,4,5,9 as [3, 5], [9, 9]."""
    parts: list[list[int]] = []
    for id in sorted(ids):
        if parts and parts[-1][1] == id - 1:
            parts[-1][1] = id
        else:
            parts.append([id, id])
    return parts


def _ranges(ids: list[int]) -> str:
    """3,4,5,9 as 3-5,9."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs(ids))
