"""PURE: which jobs a verb is about: ids, ranges, `all`, `last`, a label, a state, a user. The same for every verb."""

from __future__ import annotations

from gpulease.errors import NotFound, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    JobId = int | str  # a number; of Slurm also one of an array, as `12_3`

    class HasId(Protocol):
        @property
        def id(self) -> JobId: ...

    Named = int | str | HasId | Iterable[int | str | HasId]
    Selection = dict[str, Any]  # the `select` of a message

STATES = ("waiting", "held", "running", "paused", "complete", "failed", "invalid", "killed", "lost")
ENDED = STATES[4:]
GPULIMIT = {"CMD_ERROR": "invalid", "runtime_error": "failed", "kill": "killed"}  # its names of states
DONE = ("complete", "invalid")  # ends after which nobody wants to look at a job again
ALONE = ("all", "last")
EVERYBODY = "*"
MANY = 100  # ids that are named one by one; of more, the broker need not say which of them is missing
MISSING = "No such job"
FORM = "Write 3, 5-9, 3,5-9, `all` or `last`; jobs are chosen by label too, not by name."


def selection(
    jobs: Iterable[Named],
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    required: bool = True,
) -> Selection:
    """One's own jobs, but for ids, and for verbs that only look; those of `user`, "*" being everybody."""
    given = list(jobs)
    words = [word for one in given for inner in _listed(one) for word in _words(inner, "A job")]
    empty = [what for what, value in (("label", label), ("user", user)) if value == ""]
    if empty or (given and not words):  # an unset variable must not turn `some` into `all`
        what = empty[0] if empty else "id"
        raise UsageError(f"No job was named: the {what} is empty.", "It may be an unset variable.")
    if mine and user is not None:
        raise UsageError("`mine` and a user were both given.", "Leave one of the two out.")
    if state is not None:
        state = ",".join(GPULIMIT.get(one, one) for one in state.split(","))
    if state is not None and not set(state.split(",")) <= set(STATES):
        raise UsageError(f"The state is {state!r}.", f"Give one of {', '.join(STATES)}, or several, as failed,killed.")
    if not words and label is None and state is None and user in (None, EVERYBODY) and not mine:
        if required:
            raise UsageError("No job was named.", "Give ids or ranges, as 3,5-9, or `all`, `last`, a label or a state.")
        return {}
    select: Selection = {"label": label, "state": state, "user": user, "mine": mine or None}
    if words == ["last"]:
        select["last"] = True
    elif words and words != ["all"]:
        tasks = _arrays(words)
        if len(tasks) < len(words):
            select["ids"] = _ranges([word for word in words if "_" not in word])
        if tasks:
            select["tasks"] = [_tasks(word) for word in tasks]
    return {name: value for name, value in select.items() if value is not None} or {"all": True}


def line_id(job: JobId) -> str:
    """The name of a job in the queue and as the holder of a lease: `J12`."""
    return f"J{job}"


def job_number(line_id: str) -> int:
    """The job of `J12`; 0 if it is not a job of a broker, as the lease `L3`."""
    number = line_id[1:]
    return int(number) if line_id[:1] == "J" and number.isascii() and number.isdecimal() else 0


def job_text(line_id: str) -> str:
    """The same as people type it, also of an engine: `12`, `12_3`."""
    return line_id.removeprefix("J")


def are_states(text: str) -> bool:
    """Whether it is a state, or several with commas between them; gpulimit's names are understood too."""
    return set(text.split(",")) <= {*STATES, *GPULIMIT}


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, with neighbours joined: a thousand jobs of one sweep are one range."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1 and first > merged[-1][0]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def one_job(id: JobId) -> Selection:
    return selection([id])


def to_come_after(jobs: Named, said: str) -> str | list[int | str | tuple[int, int]]:
    """Of `3`, `"3,5-9"`, `J3`, a job, or a list of them: ids and ranges; or one of the words `all` and `last`."""
    each = [_words(one, said) for one in _listed(jobs)]
    words = [word for found in each for word in found]
    if not all(each):
        raise UsageError(f"{said} is empty.", "Leave it out, or say what is meant: it may be an unset variable.")
    if len(words) == 1 and words[0] in ALONE:
        return words[0]
    spans = _ranges([word for word in words if "_" not in word])
    tasks = [f"{array}_{task}" for array, first, last in map(_tasks, _arrays(words)) for task in range(first, last + 1)]
    return [*(first if first == last else (first, last) for first, last in spans), *tasks]


def _arrays(words: list[str]) -> list[str]:
    return [word for word in words if "_" in word]


def _tasks(word: str) -> tuple[int, int, int]:
    """Of an array of Slurm's: `12_3`, `12_3-9` or `12_[3-9]`; the array, and its first and last task that are meant."""
    array, _, rest = word.partition("_")
    first, dash, last = rest.removeprefix("[").removesuffix("]").partition("-")
    parts = (array, first, last if dash else first)
    if all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts) and int(parts[1]) <= int(parts[2]):
        return int(parts[0]), int(parts[1]), int(parts[2])
    raise UsageError(f"{word[:40]!r} is not a job id or a range.", FORM)


def _listed(jobs: Any) -> list[Any]:
    return list(jobs) if hasattr(jobs, "__iter__") and not isinstance(jobs, str) else [jobs]


def _words(one: Any, said: str) -> list[str]:
    if isinstance(one, str):
        return [job_text(part) for part in one.replace(",", " ").split()]  # also what `add` printed
    number = getattr(one, "id", one)
    if isinstance(number, str):
        return [number]
    if isinstance(number, int) and not isinstance(number, bool):
        return [str(number)]
    raise UsageError(f"{said} is {one!r}.", "Give a job, an id, or a list of them.")


def _ranges(words: list[str]) -> list[tuple[int, int]]:
    found = [_range(word, len(words)) for word in words]
    return _merged(found) if len(found) > MANY else found


def _range(word: str, words: int = 1) -> tuple[int, int]:
    if word in ALONE and words > 1:
        raise UsageError(f"`{word}` was given together with other jobs.", "Give it alone, or ids and ranges.")
    first, dash, last = word.partition("-")
    if first.isdecimal() and (last.isdecimal() if dash else True) and word.isascii() and len(word) < 40:
        pair = int(first), int(last) if dash else int(first)
        if pair[0] <= pair[1]:
            return pair
    raise UsageError(f"{word[:40]!r} is not a job id or a range.", FORM)


def named(error: NotFound, select: Selection) -> NotFound:
    """The same error, with the label and the state that no job has; ids are named by the broker."""
    if error.what != f"{MISSING}.":
        return error
    label = f" with the label {select['label'][:40]!r}" if "label" in select else ""
    state = f" in the state {select['state']}" if "state" in select else ""
    user = f" of {select['user'][:40]}" if select.get("user", EVERYBODY) != EVERYBODY else ""
    return NotFound(f"{MISSING}{user}{label}{state}.", error.next_step)


def ranges(ids: Iterable[JobId]) -> str:
    """3,4,5,9 as 3-5,9; of arrays of Slurm's 12_0,12_1 as 12_0-1."""
    parts: list[list[Any]] = []
    for array, number in sorted(map(_numbers, ids)):
        if not parts or parts[-1][0] != array or parts[-1][2] != number - 1:
            parts.append([array, number, number])
        parts[-1][2] = number
    return ",".join(f"{'' if of < 0 else f'{of}_'}{a}{'' if a == b else f'-{b}'}" for of, a, b in parts)


def _numbers(id: JobId) -> tuple[int, int]:
    array, _, number = str(id).rpartition("_")
    return int(array or -1), int(number)


def id_order(id: JobId) -> tuple[int, int]:
    """What to sort ids by: an array of Slurm's, and then its task."""
    array, _, task = str(id).partition("_")
    return int(array), int(task or -1)
