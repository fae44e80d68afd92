"""PURE: amounts and patterns as people write them: `6G` of memory, `30m` of time, `AWS_*` among names."""

from __future__ import annotations

from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
LONGEST = 3650 * 86400  # seconds
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_bytes(text: str) -> int:
    """`6G`, `512M`, `1.5g`, `6GB`, `6GiB`, `6144m` or plain bytes; units are powers of 1024."""
    number, unit = _split(text)
    unit = unit.upper()
    for ending in ("IB", "B"):
        if unit.endswith(ending):
            unit = unit[: -len(ending)]
            break
    if number is None or unit not in _BYTES or number * _BYTES[unit] >= 1 << 63:
        raise UsageError(f"{text[:40]!r} is not an amount of memory.", "Write it as 6G, 512M or a number of bytes.")
    return int(number * _BYTES[unit])


def parse_seconds(text: str) -> float:
    """`30m`, `4h`, `1h30m`, `1.5d`, `90` (seconds)."""
    total, rest = 0.0, text.strip()
    while rest:
        number, unit, rest = _next_part(rest)
        if number is None or unit not in _SECONDS:
            break
        total += number * _SECONDS[unit]
    else:
        if text.strip() and total <= LONGEST:
            return total
        if text.strip():
            raise UsageError(f"{text[:40]!r} is too long a time.", "The longest is 3650d, ten years.")
    raise UsageError(f"{text[:40]!r} is not a length of time.", "Write it as 30m, 4h, 1h30m, 2d or seconds.")


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
    raise UsageError(f"{text[:40]!r} is no time.", "Write 22:30, 2026-12-24T22:30 or 'in 2h'.")


def _local(parts: tuple[int, ...], text: str) -> float:
    import time

    year, month, day, hour, minute = parts
    try:
        return time.mktime((year, month, day, hour, minute, 0, 0, 0, -1))
    except (OverflowError, ValueError):
        raise UsageError(f"{text[:40]!r} is no time.", "Write 22:30, 2026-12-24T22:30 or 'in 2h'.") from None


def format_bytes(value: int | None) -> str:
    """Short, for tables: `31.2G`, `512M`, `?` when unknown."""
    if value is None:
        return "?"
    for unit, size in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if value >= size:
            return f"{value / size:.1f}{unit}" if value < 100 * size else f"{value / size:.0f}{unit}"
    return f"{value}B"


def _split(text: str) -> tuple[float | None, str]:
    number, unit, rest = _next_part(text.strip())
    return (None, "") if rest else (number, unit)


def _next_part(text: str) -> tuple[float | None, str, str]:
    """The leading number, the letters after it, and what follows."""
    end = _run(text, 0, "0123456789.")
    stop = end
    while stop < len(text) and text[stop].isascii() and text[stop].isalpha():
        stop += 1
    try:
        number = float(text[:end])
    except ValueError:
        return None, "", ""
    return number, text[end:stop], text[stop:]


def _run(text: str, start: int, letters: str) -> int:
    while start < len(text) and text[start] in letters:
        start += 1
    return start


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that are like one of the patterns, in any case; `*` stands for anything."""
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
    """A time to come, or an age, roughly."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{round(seconds / size)} {unit}"
    return f"{max(0, round(seconds))} s"
