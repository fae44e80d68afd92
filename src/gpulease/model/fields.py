"""PURE: what a request and a job may have: a row for each field, and kinds of values that both sides of the wire check.

From the rows come the options of commands, what may be changed, and what the broker takes. Types are written by hand
where people and mypy read them: `Request`, `JobSpec`, `JobRow` and the signature of `submit()`. That all of them agree
is held by tests/model/test_fields.py. Commands that people wait for load this file, so it does without `typing`.
"""

from __future__ import annotations

from gpulease.errors import UsageError
from gpulease.model.quantities import LONGEST, parse_bytes, parse_moment, parse_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    Said = Callable[[str], str]
    Read = Callable[[Any, str, float], Any]

UNSET = "Leave it out, or say what is meant: it may be an unset variable."
LEAST = 1 << 20  # bytes that a number alone may mean
LATEST = 1e10  # seconds on the wire
TEXT_LENGTH = 4096  # characters
SHORT_TEXT = 1000
MANY = 1024  # entries of a list
LONGEST_WORD = (128 << 10) - 1  # bytes; the kernel starts no program with a longer one
MAX_WORDS = 10_000
MAX_RETRIES = 1000
MAX_AT_ONCE = 1_000_000


# ---------------------------------------------------------------------- how values are read


def amount(value: Any, said: str, now: float = 0.0) -> Any:
    """Bytes, from bytes or `6G`."""
    if type(value) in (int, float) and 0 < value < LEAST:
        raise UsageError(f"{said} is {value}, which would be bytes.", f"Write it with its unit, as '{value}G'.")
    return parse_bytes(value) if isinstance(value, str) else value


def seconds(value: Any, said: str, now: float = 0.0) -> float:
    """From seconds or `30m`."""
    if isinstance(value, str):
        return parse_seconds(value)
    if not is_number(value) or not 0 <= value <= LONGEST:
        raise UsageError(f"{said} is {value!r}.", "Give seconds, or text as '30m'.")
    return value  # type: ignore[no-any-return]


def moment(value: Any, said: str, now: float) -> float:
    """Unix seconds, from them, a datetime, or text as `22:30` or `in 2h`."""
    if isinstance(value, str):
        return parse_moment(value, now)
    if hasattr(value, "timestamp"):
        return float(value.timestamp())
    if not is_number(value) or not abs(value) < float("inf"):
        raise UsageError(f"{said} is {value!r}.", "Give a datetime, Unix seconds, or text as '22:30' or 'in 2h'.")
    return float(value)


def _time_limit(value: Any, said: str, now: float) -> float:
    limit = seconds(value, said)
    if limit <= 0:
        raise UsageError(f"{said} is {limit:g}.", LIMIT.hint)
    return limit


def texts(value: Any, said: str, now: float = 0.0) -> list[str]:
    """From `0`, `"0,2"` or `[0, "GPU-..."]`."""
    if not isinstance(value, (int, str)) and not hasattr(value, "__iter__"):
        raise UsageError(f"{said} is {value!r}.", "Give a name, a number, or a list of them.")
    given = [value] if isinstance(value, (int, str)) else list(value)
    parts = [part.strip() for one in given for part in str(one).split(",") if part.strip()]
    if given and not parts:
        raise UsageError(f"{said} is empty.", UNSET)
    return parts


def _as_it_is(value: Any, said: str, now: float) -> Any:
    return value


def _digits(value: Any, said: str, now: float) -> Any:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20 else value


def _jobs(value: Any, said: str, now: float) -> Any:
    from gpulease.model.job_selection import to_come_after

    return to_come_after(value, said)


def _label(value: Any, said: str, now: float) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{said} is {value!r}.", "Give the label of the jobs; it may be an unset variable.")
    return value


def _events(value: Any, said: str, now: float) -> list[str] | None:
    from gpulease.model.notices import NONE, of_job

    return None if value is False else of_job(value, said) or [NONE]


def _told_of(value: list[str]) -> tuple[str, ...]:
    from gpulease.model.notices import read_events

    return read_events(value, "--notify") if value else ()


# ---------------------------------------------------------------------- what values may be


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


def is_seconds(value: Any) -> bool:
    return is_number(value) and 0 <= value <= LATEST


def is_text(value: object, most: int = TEXT_LENGTH) -> bool:
    return isinstance(value, str) and len(value) <= most and "\0" not in value


def are_texts(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MANY
        and all(isinstance(one, str) and len(one) <= SHORT_TEXT for one in value)
    )


def is_unicode(value: str) -> bool:
    """Whether it can be asked for: bytes that are not text are kept as they are in paths and commands only."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def wrong_with(words: Sequence[str]) -> str | None:
    """Why no program can be started with these words; None when one can."""
    if not words or not words[0]:
        return "is empty"
    if "\0" in "".join(words):
        return "has a zero byte in it"
    longest = max(words, key=len)
    if len(longest) * 4 > LONGEST_WORD and any(len(word.encode("utf-8", "replace")) > LONGEST_WORD for word in words):
        return f"has a word of more than {LONGEST_WORD} bytes"
    return None


def command(words: Sequence[str]) -> tuple[str, ...]:
    """A command as it is kept."""
    wrong = wrong_with(words)
    if wrong is not None:
        raise UsageError(f"The command {wrong}.", "No program can start with it; put long text into a file.")
    return tuple(words)


def command_words(given: Sequence[object], said: str = "", now: float = 0.0) -> list[str]:
    if isinstance(given, str) or not given:
        raise UsageError(f"The command is {given!r}.", "Give its words as a list, as ['python', 'train.py'].")
    return list(command([str(word) for word in given]))


class Kind:
    """What a value may be on the wire, and what to give instead; how people's is read, and how the broker keeps it.

    `option` goes to the parser of options; `values` is where its completion looks.
    """

    __slots__ = ("fits", "hint", "keep", "option", "read", "values")

    def __init__(
        self,
        fits: Callable[[Any], bool],
        hint: str,
        read: Read = _as_it_is,
        keep: Callable[[Any], Any] | None = None,
        values: str = "",
        **option: Any,
    ) -> None:
        self.fits, self.hint, self.read, self.keep = fits, hint, read, keep
        self.values, self.option = values, option

    def check(self, value: Any, said: str) -> Any:
        """The value as it is kept. Clients and broker both ask: the broker trusts nobody."""
        if not self.fits(value):
            raise UsageError(f"Invalid value for {said}.", self.hint)
        return value if self.keep is None else self.keep(value)


A_LIST = f"Give a list of at most {MANY} texts."
WHOLE = Kind(is_whole, "Give a whole number that is not too large.", type=int)
AMOUNT = Kind(is_whole, "Give an amount of memory that is not too large, as 6G.", amount)
FLAG = Kind(is_flag, "Give true or false.", action="store_true")
SPAN = Kind(is_seconds, "Give a number of seconds that is not too large.", seconds)
MOMENT = Kind(is_seconds, "Give a number of seconds that is not too large.", moment)
MODELS = Kind(are_texts, A_LIST, texts, tuple, "models")
DEVICES = Kind(are_texts, A_LIST, texts, tuple, "devices")
TEXT = Kind(is_text, f"Give text of at most {TEXT_LENGTH} characters.")
LABEL = Kind(
    lambda value: is_text(value) and is_unicode(value), f"Give text in UTF-8 of at most {TEXT_LENGTH}.", values="labels"
)
PATH = Kind(lambda value: is_text(value) and value.startswith("/"), "Give a full path.")
COMMAND = Kind(
    lambda value: isinstance(value, list) and 0 < len(value) <= MAX_WORDS and {str}.issuperset(map(type, value)),
    "Give its words as a list of text.", command_words, command,
)  # fmt: skip
LIMIT = Kind(lambda value: is_number(value) and 0 < value <= LONGEST, "Give a time above 0, as 4h.", _time_limit, float)
RETRIES = Kind(
    lambda value: is_whole(value) and 0 <= value <= MAX_RETRIES,
    f"Give a number of retries from 0 to {MAX_RETRIES}.", type=int,
)  # fmt: skip
AT_MOST = Kind(
    lambda value: is_whole(value) and 1 <= value <= MAX_AT_ONCE,
    "Give how many jobs of the sweep may run at a time, as 8.", _digits,
)  # fmt: skip
JOBS = Kind(lambda value: True, "", _jobs, values="jobs", action="append", default=[])
JOBS_BY_LABEL = Kind(lambda value: True, "", _label, values="labels", action="once")
NOTICES = Kind(are_texts, A_LIST, _events, _told_of, "notices", nargs="?", const=True)
VISIBLE = Kind(is_text, "Give uuid or index.", choices=("uuid", "index"))
MILLISECONDS = Kind(lambda value: is_whole(value) and 0 < value <= 1 << 53, "Give a moment in milliseconds.")


# ---------------------------------------------------------------------- the fields


class Field:
    """One field: its argument in Python, its option, and what it is called in messages and in the broker."""

    __slots__ = (
        "alone", "apart", "change", "changed_as", "default", "editable", "flags", "help", "job", "kind", "metavar",
        "name", "none", "own", "tied", "wire",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: Kind,
        metavar: str | None = None,
        help: str = "",  # of its option; without it there is none
        change: str = "",  # the same, of `edit`
        none: str = "",  # what `none` stands for there
        *,
        wire: str | None = None,
        flags: tuple[str, ...] = (),
        changed_as: str = "",
        default: Any = None,
        editable: bool = False,  # also without an option of `edit`
        job: bool = False,  # of a request: for jobs only
        own: bool = False,  # each job of a batch may have its own
        tied: bool = False,  # a job that has it stays on its host
        apart: bool = False,  # read and checked by code of its own
        alone: bool = False,  # an option, and no argument in Python
    ) -> None:
        self.name, self.kind, self.metavar, self.help, self.change, self.none = name, kind, metavar, help, change, none
        self.wire = name if wire is None else wire
        self.flags = flags or (f"--{name.replace('_', '-')}",)
        self.changed_as, self.default, self.editable = changed_as or name, default, editable or bool(change)
        self.job, self.own, self.tied, self.apart, self.alone = job, own, tied, apart, alone


# fmt: off
REQUEST = (
    Field("gpus", WHOLE, "N", "number of GPUs (default 1)", "number of GPUs", flags=("-n", "--gpus"), default=1),
    Field("mem", AMOUNT, "SIZE", "share one GPU: take this much of its memory, as 6G",
          "share one GPU: take this much of its memory, as 6G", "for whole GPUs", wire="memory"),
    Field("model", MODELS, "MODELS", "only this GPU model; several in order of preference: A100,V100",
          "only these GPU models, as A100,V100", "for any", wire="models"),
    Field("devices", DEVICES, "IDS", "only these GPUs, in order of preference: indices or UUIDs, as 2,0",
          "only these GPUs, as 0,2", "for any", flags=("--devices", "-d"), tied=True),
    Field("exclude", DEVICES, "IDS", "not these GPUs, as 1,3", "not these GPUs, as 1,3", "for any", tied=True),
    Field("min_memory", AMOUNT, "SIZE", "only GPUs with at least this much memory in total, as 40G",
          "only GPUs with at least this much memory in total", "for any"),
    Field("max_leases", WHOLE, "N", "with --mem: at most N other leases on that GPU"),
    Field("beside_outside", FLAG, None, "with --mem: also use a GPU that others use without a lease"),
    Field("mig", FLAG, None, "use MIG instances instead of whole GPUs"),
    Field("pack", FLAG, None, "share a GPU; gpulease learns how much memory such jobs use", job=True),
    Field("priority", WHOLE, "P", "a smaller number is sooner (default 5)", "new priority; a smaller number is sooner",
          flags=("--priority", "-p"), default=5),
    Field("duration", SPAN, "TIME", "expected run time, as 2h; it is not a limit", flags=("--for",)),
    Field("at", MOMENT, "TIME", "do not start before: 22:30, 2026-12-24T22:30, or `in 2h`",
          "do not start before: 22:30, 2026-12-24T22:30, or `in 2h`", "for any time", wire="not_before", job=True),
)
RELATIVE = "relative"  # on the wire beside `not_before`: it was given as `in 2h`

JOB = (
    Field("visible_by", VISIBLE, "KIND", "how CUDA_VISIBLE_DEVICES names the GPUs: uuid or index", wire=""),
    Field("note", TEXT, "TEXT", "a text for other users, shown in `gpulease status`", "new note", own=True),
    Field("name", TEXT, "NAME", "a name for the job, shown in `gpulease ls`", "new name", own=True),
    Field("label", LABEL, "LABEL", "a label, to select several jobs by", "new label",
          changed_as="new_label", own=True),
    Field("log", TEXT, "PATH", "write the output to this file; in a folder, to ID.log", flags=("--log", "--logpath"),
          own=True, apart=True),
    Field("cwd", PATH, "PATH", "run in this folder (default: the current one)", "run in this folder"),
    Field("retry", RETRIES, "N", "run again up to N times if it fails", "run again up to N times if it fails",
          default=0),
    Field("time_limit", LIMIT, "TIME", "kill it after this time, as 4h", "kill it after this time, as 4h", "for none"),
    Field("after", JOBS, "IDS",
          "start after these jobs succeed: 3,5-9, `last`, or `all` your unfinished jobs",
          "start after these jobs succeed, as 3,5-9", "for none", tied=True, apart=True),
    Field("after_any", JOBS, "IDS", "start after these jobs end, even if they fail",
          "start after these jobs end, even if they fail", "for none", apart=True),
    Field("after_label", JOBS_BY_LABEL, "LABEL", "start after your unfinished jobs with this label succeed",
          "start after your unfinished jobs with this label succeed", apart=True),
    Field("after_any_label", JOBS_BY_LABEL, "LABEL", "the same, even if they fail", "the same, even if they fail",
          wire="after_label", apart=True, alone=True),
    Field("hold", FLAG, None, "queue it, but do not start it before `gpulease resume`", apart=True),
    Field("notify", NOTICES, "EVENTS", "send me notices: of all events, or of these, as ended,failed (see `notify`)"),
    Field("at_most", AT_MOST, "N", "run at most N jobs of this sweep or file at a time",
          "run at most N jobs of their sweep at a time", "for no limit", tied=True),
    Field("command", COMMAND, editable=True),
    Field("script", TEXT),  # the file that the command runs, and when it was last changed: the client looks
    Field("script_time", MILLISECONDS),
    Field("transfer", TEXT),  # the token of a copy of another host's job
)
# fmt: on
AFTER = ("after", "after_any", "after_label", "after_any_label")
NAMES = tuple(row.name for row in REQUEST)
OWN = tuple(row.name for row in JOB if row.own)
EDITABLE = {"request", *(row.wire for row in JOB if row.editable)}
CHANGEABLE = {*NAMES, *(row.changed_as for row in JOB if row.editable and not row.alone)}
CLEARED = {row.changed_as for row in (*REQUEST, *JOB) if row.none}
CHANGING = "See `gpulease edit --help`. Another label is --new-label: --label chooses jobs."
_OPTIONS = {row.name: next(flag for flag in row.flags if flag[1] == "-") for row in (*REQUEST, *JOB)}


def as_option(name: str) -> str:
    return _OPTIONS.get(name) or f"--{name.replace('_', '-')}"


def as_argument(name: str) -> str:
    return name


# ---------------------------------------------------------------------- from what people give to a message


def _read(row: Field, value: Any, said: str, now: float) -> Any:
    wire = row.kind.read(value, said, now)
    if wire is not None:
        row.kind.check(wire, said)
    return wire


def request_fields(given: Mapping[str, Any], said: Said = as_argument, now: float = 0.0) -> dict[str, Any]:
    """The request in a message, of options or arguments; None is what was not given.

    `said` gives an argument the caller's name for it: an error speaks of `--for` or of `duration`.
    """
    if given.get("max_leases") is not None and given.get("mem") is None:
        raise UsageError(
            f"{said('max_leases')} is for a shared GPU, and {said('mem')} was not given.", "Give both, or neither."
        )
    fields = changed_fields({name: given[name] for name in NAMES if given.get(name) is not None}, said, now)
    if fields.get("devices") == []:
        raise UsageError(f"{said('devices')} is empty.", UNSET)
    return {field: value for field, value in fields.items() if value != [] and (value is not False or field == "pack")}


def changed_fields(given: Mapping[str, Any], said: Said = as_argument, now: float = 0.0) -> dict[str, Any]:
    """As `request_fields`, for a request that exists: None takes back what it had."""
    changed: dict[str, Any] = {}
    for row in REQUEST:
        if row.name in given and given[row.name] is not None:
            changed[row.wire] = _read(row, given[row.name], said(row.name), now)
        elif row.name in given:
            changed[row.wire] = [] if row.kind.keep is tuple else None
    if "at" in given:
        changed[RELATIVE] = str(given["at"]).startswith("in ")
    return changed


def job_fields(given: Mapping[str, Any], said: Said = as_argument) -> dict[str, Any]:
    """The options of new jobs in a message, but for what the client looks up; what was not given is left out."""
    rows = [row for row in JOB if row.wire and row.name not in AFTER and given.get(row.name) is not None]
    found = {row.wire: _read(row, given[row.name], said(row.name), 0.0) for row in rows}
    found |= _after(given, said)
    return {name: value for name, value in found.items() if value is not None and value != [] and value is not False}


def job_changes(given: Mapping[str, Any], said: Said, now: float) -> dict[str, Any]:
    """The changes of jobs that wait: only what is given, where None takes back what there was."""
    changes: dict[str, Any] = {}
    for row in JOB:
        if row.editable and row.changed_as in given and row.name not in AFTER:
            value = given[row.changed_as]
            changes[row.wire] = None if value is None else _read(row, value, said(row.changed_as), now)
    changes |= _after({name: () if given[name] is None else given[name] for name in AFTER if name in given}, said)
    request = changed_fields(given, said, now)
    if request:
        changes["request"] = request
    if not changes:
        raise UsageError("Nothing to change was given.", CHANGING)
    return changes


def _after(given: Mapping[str, Any], said: Said) -> dict[str, Any]:
    """The jobs to come after, if they are complete or however they end; `after_any` may be True beside the others."""
    if not any(name in given for name in AFTER):
        return {}
    rows = {row.name: row for row in JOB if row.name in AFTER and _names_jobs(row, given.get(row.name))}
    found = {name: row.kind.read(given[name], said(name), 0.0) for name, row in rows.items()}
    named = [name for name, value in found.items() if value != []]
    however = [name for name in named if name.startswith("after_any")]
    if however and len(however) < len(named):
        first = next(name for name in named if name not in however)
        raise UsageError(f"{said(first)} and {said(however[0])} were both given.", "Leave one of the two out.")
    label = found.get("after_label") or found.get("after_any_label")
    return {
        "after": found.get("after") or found.get("after_any") or [],
        "after_any": bool(however) or given.get("after_any") is True,
        **({} if label is None else {"after_label": label}),
    }


def _names_jobs(row: Field, value: Any) -> bool:
    return value is not None and (value != () if row.kind is JOBS_BY_LABEL else not isinstance(value, bool))


# ---------------------------------------------------------------------- from a message to what the broker keeps


def kept(rows: Iterable[Field], given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """What a message has of these fields, checked as from a stranger. None is `usual`, where that has a value."""
    found = {}
    for row in rows:
        if row.wire in given and not row.apart:
            value = given[row.wire]
            usually = value is None and row.wire in usual
            found[row.wire] = usual[row.wire] if usually else row.kind.check(value, row.name)
    return found
