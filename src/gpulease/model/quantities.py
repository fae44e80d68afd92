"""PURE: amounts and patterns as people write them: `6G` of memory, `30m` of time, `AWS_*` and `gpu[1-3]` of names."""

from __future__ import annotations

from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BYTES = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
LONGEST = 3650 * 86400  # seconds
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 604800),
}


def parse_bytes(text: str) -> int:
    """`6G`, `512M`, `1.5g`, `6GB`, `6GiB`, `6144m`, `900B`; units are powers of 1024."""
    number, unit, rest = _next_part(text.strip())
    unit = unit.upper()
    if unit[1:] in ("B", "IB"):
        unit = unit[:1]
    if number is not None and not unit and not rest:
        if number == 0:
            return 0
        raise UsageError(f"{text[:40].strip()} what? A size has a unit.", f"Give one, as {text[:40].strip()}G.")
    if number is None or rest or unit not in _BYTES or number * _BYTES[unit] >= 1 << 63:
        raise UsageError(f"{text[:40]!r} is not an amount of memory.", "Write it as 6G or 512M.")
    return int(number * _BYTES[unit])


def parse_seconds(text: str) -> float:
    """`30min`, `4h`, `1h30m`, `1.5d`, `90` (seconds), and Slurm's `01:30:00`, `1-12`, `1-00:00:00`."""
    total = _clock(text.strip()) if text.isascii() and (":" in text or "-" in text) else _parts(text.strip())
    if total is None:
        raise UsageError(
            f"{text[:40]!r} is not a length of time.", "Write it as 30min, 4h, 1h30m, 2d, 01:30:00 or seconds."
        )
    if total > LONGEST:
        raise UsageError(f"{text[:40]!r} is too long a time.", "The longest is 3650d, ten years.")
    return total


def _parts(text: str) -> float | None:
    """`1h30m`, or seconds alone. In `1h30` the 30 may be minutes or seconds: that is not a valid time."""
    number, unit, rest = _next_part(text)
    if number is not None and not unit and not rest:
        return number
    total = 0.0
    while number is not None and unit in _SECONDS:
        total += number * _SECONDS[unit]
        if not rest:
            return total
        number, unit, rest = _next_part(rest.lstrip())
    return None


def _clock(text: str) -> float | None:
    """As Slurm has it. `1:30` would be minutes there and hours on a clock."""
    days, dash, clock = text.rpartition("-")
    fields = clock.split(":")
    if not all(field.isdecimal() and len(field) < 9 for field in (*fields, days if dash else "0")) or len(fields) > 3:
        return None
    if len(fields) == 2 and not dash:
        raise UsageError(f"{text!r} may be hours or minutes.", "Write it as 1h30m or 1m30s, or as 01:30:00.")
    hours, minutes, seconds = (int(field) for field in (*fields, "0", "0")[:3])
    return (int(days or 0) * 24 + hours) * 3600.0 + minutes * 60 + seconds


def parse_moment(text: str, now: float) -> float:
    """A time of day, a date and time, or `in 2h`, as Unix seconds."""
    import time

    if text.startswith("in "):
        return now + parse_seconds(text[3:])
    for form in ("%H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            parsed = time.strptime(text, form)
        except ValueError:
            continue
        if form != "%H:%M":
            return _local(tuple(parsed[:5]), text)
        today = time.localtime(now)
        moment = _local((*today[:3], parsed.tm_hour, parsed.tm_min), text)
        return moment if moment > now else _local((*today[:2], today[2] + 1, *parsed[3:5]), text)
    raise UsageError(f"{text[:40]!r} is not a time.", "Write 22:30, 2026-12-24T22:30 or 'in 2h'.")


def _local(parts: tuple[int, ...], text: str) -> float:
    import time

    year, month, day, hour, minute = parts
    try:
        return time.mktime((year, month, day, hour, minute, 0, 0, 0, -1))
    except (OverflowError, ValueError):
        raise UsageError(f"{text[:40]!r} is not a time.", "Write 22:30, 2026-12-24T22:30 or 'in 2h'.") from None


def format_bytes(value: int | None) -> str:
    """Short, for tables: `31.2G`, `512M`, `?` when unknown."""
    if value is None:
        return "?"
    for unit, size in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if value >= size:
            return f"{value / size:.1f}{unit}" if value < 100 * size else f"{value / size:.0f}{unit}"
    return f"{value}B"


def _next_part(text: str) -> tuple[float | None, str, str]:
    """The leading number, the letters after it, and what follows."""
    end = _run(text, 0, "0123456789.")
    start = stop = _run(text, end, " ")
    while stop < len(text) and text[stop].isascii() and text[stop].isalpha():
        stop += 1
    try:
        number = float(text[:end])
    except ValueError:
        return None, "", ""
    return number, text[start:stop].lower(), text[stop:]


def _run(text: str, start: int, letters: str) -> int:
    while start < len(text) and text[start] in letters:
        start += 1
    return start


# Names of variables that are secret by convention. Keys of the services that training itself talks to, hubs of models
# and trackers of experiments, are excepted: a job that loses one fails at night.
SECRETS = (
    "*PASSWORD*", "*PASSWD*", "*PASSPHRASE*", "*SECRET*", "*_TOKEN", "*_API_KEY", "*_ACCESS_KEY", "*_ACCESS_KEY_ID",
    "*_PRIVATE_KEY", "*_WEBHOOK_URL", "*_CONNECTION_STRING", "*DATABASE_URL",
    "!HF_TOKEN", "!HUGGING_FACE_HUB_TOKEN", "!WANDB_API_KEY", "!COMET_API_KEY", "!NEPTUNE_API_TOKEN",
    "!MLFLOW_TRACKING_TOKEN", "!CLEARML_API_*",
)  # fmt: skip


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that are like one of the patterns, in any case; `*` stands for anything, and `!` excepts what it is
    put before."""
    listed = list(patterns)
    excepted = [pattern[1:] for pattern in listed if pattern.startswith("!")]
    found = _like(names, [pattern for pattern in listed if not pattern.startswith("!")])
    if not excepted or not found:
        return found
    kept = set(_like(found, excepted))
    return [name for name in found if name not in kept]


def _like(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    listed, patterns_parts = list(names), [pattern.upper().split("*") for pattern in patterns]
    all_of_them = "\n".join(listed).upper()
    possible = [parts for parts in patterns_parts if all(part in all_of_them for part in parts)]  # seldom any
    return [name for name in listed if any(_is_like(name.upper(), parts) for parts in possible)]


def _is_like(name: str, parts: list[str]) -> bool:
    if len(parts) == 1:
        return name == parts[0]
    first, *middle, last = parts
    if not (name.startswith(first) and name.endswith(last)):
        return False
    at = len(first)
    for part in middle:
        found = name.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(name) - len(last) >= at


def span_text(seconds: float) -> str:
    """A time to come, or an age, roughly: 7199.6 seconds are 2 h, and not 120 min."""
    for size, unit, finer in ((86400, "d", 3600), (3600, "h", 60), (60, "min", 1)):
        if round(seconds / finer) * finer >= 2 * size:
            return f"{round(seconds / size)} {unit}"
    return f"{max(0, round(seconds))} s"


def exact_time(seconds: float) -> str:
    """As it may be typed: `14d`, `1h30m`, `0.5s`."""
    rest, text = seconds, ""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        count, rest = divmod(rest, size)
        text += f"{count:.0f}{unit}" if count else ""
    plain = f"{rest:.9f}".rstrip("0").rstrip(".")
    return text if text and not rest else f"{text}{plain}s"


def exact_size(value: int) -> str:
    """As it may be typed: `1G`, `1536M`, `1000B`."""
    for unit in "TGMK":
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return f"{value}B" if value else "0"


def pause_after(failures: int, first: float, longest: float) -> float:
    """Seconds before the next attempt, after this number of failures in a row: each time twice as long."""
    return min(longest, first * 2.0 ** min(max(failures - 1, 0), 60))


def folded_names(names: Sequence[str]) -> str:
    """`gpu[01-03,7], login`, in the order of the first of each kind."""
    found: dict[str, list[str]] = {}
    for name in names:
        prefix = name.rstrip("0123456789")
        found.setdefault(prefix, []).append(name[len(prefix) :])
    return ", ".join(
        f"{prefix}[{_number_spans(ends)}]" if len(ends) > 1 else prefix + ends[0] for prefix, ends in found.items()
    )


def _number_spans(ends: list[str]) -> str:
    parts: list[list[str]] = []
    for end in sorted(ends, key=lambda end: (int(end or -1), len(end))):
        last = parts[-1][-1] if parts else ""
        alike = len(last) == len(end) or "0" not in (last[:1], end[:1])
        if last and end and alike and int(end) == int(last) + 1:
            parts[-1][1:] = [end]
        else:
            parts.append([end])
    return ",".join("-".join(part) for part in parts)
