"""PURE: a command with placeholders, once for each combination of values."""

from __future__ import annotations

from itertools import product
from math import prod
from re import Pattern, compile

from gpulease.errors import UsageError

MOST = 1_000_000


def sweep(command: list[str], options: list[str]) -> list[list[str]]:
    """`{lr}` in `command` becomes each value of `lr=0.1,0.01`; `seed=1:5` counts from 1 to 5."""
    names: list[str] = []
    values: list[list[str]] = []
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.isidentifier() or not text:
            raise UsageError(f"--sweep {option[:40]!r} is not right.", "Write it as lr=0.1,0.01 or seed=1:5.")
        names.append(name)
        values.append(_values(text))
    unused = [name for name in names if not any(f"{{{name}}}" in word for word in command)]
    if unused:
        raise UsageError(
            f"The command has no {{{unused[0]}}} in it.", f"Write {{{unused[0]}}} where its value belongs."
        )
    if prod(map(len, values)) > MOST:
        raise UsageError(f"The sweep has more than {MOST} combinations.", "Sweep over less.")
    places = compile("|".join(rf"\{{{name}\}}" for name in names))
    return [_filled(command, places, dict(zip(names, chosen, strict=True))) for chosen in product(*values)]


def _values(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        numbers = part.split(":")
        if 2 <= len(numbers) <= 3 and all(map(_whole, numbers)):
            first, last, *rest = map(int, numbers)
            step = rest[0] if rest else 1
            if step == 0 or abs(last - first) // abs(step) > MOST:
                raise UsageError(f"--sweep range {part!r} is not right.", "Write first:last or first:last:step.")
            found += [str(number) for number in range(first, last + (1 if step > 0 else -1), step)]
        else:
            found.append(part)
    return found


def _whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) < 20


def _filled(command: list[str], places: Pattern[str], values: dict[str, str]) -> list[str]:
    """All at once: what a value says is never taken for a placeholder."""
    return [places.sub(lambda found: values[found.group()[1:-1]], word) for word in command]
