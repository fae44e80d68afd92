"""PURE: a command with placeholders, once for each combination of values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from re import Pattern, compile, escape

from gpulease.errors import UsageError

MOST = 1_000_000
NUMBER = compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
FORM = "Write it as lr=0.1,0.01 or seed=1:5."


def sweep(command: list[str], options: list[str]) -> list[list[str]]:
    """`{lr}` in `command` becomes each value of `lr=0.1,0.01`; `seed=1:5` counts from 1 to 5."""
    return [words for words, _ in sweep_all(command, {}, options)]


def sweep_all(
    command: list[str], texts: Mapping[str, str], options: list[str]
) -> list[tuple[list[str], dict[str, str]]]:
    """Each command with `texts` that belong to it, filled in as the command is."""
    values = _variables(options)
    unused = [name for name in values if not any(f"{{{name}}}" in word for word in command)]
    if unused:
        raise UsageError(
            f"The command has no {{{unused[0]}}} in it.", f"Write {{{unused[0]}}} where its value belongs."
        )
    if prod(map(len, values.values())) > MOST:
        raise UsageError(f"The sweep has more than {MOST} combinations.", "Sweep over less.")
    places = compile("|".join(rf"\{{{escape(name)}\}}" for name in values))
    made = []
    for chosen in product(*values.values()):
        pairs = dict(zip(values, chosen, strict=True))
        filled = {name: _filled(text, places, pairs) for name, text in texts.items()}
        made.append(([_filled(word, places, pairs) for word in command], filled))
    return made


def _variables(options: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.isidentifier() or not text:
            raise UsageError(f"--sweep {option[:40]!r} is not right.", FORM)
        if name in found:
            raise UsageError(f"--sweep {name[:40]} was given twice.", f"Write all its values at once, as {name}=1,2,3.")
        found[name] = _values(text)
    return found


def _values(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        numbers = part.split(":")
        if 2 <= len(numbers) <= 3 and all(map(NUMBER.fullmatch, numbers)):
            found += _range(part, numbers)
        else:
            found.append(part)
        if len(found) > MOST:
            raise UsageError(f"The sweep has more than {MOST} values.", "Sweep over less.")
    return found


def _range(part: str, texts: list[str]) -> list[str]:
    if not all(map(_whole, texts)):
        raise UsageError(
            f"The range {part[:40]!r} is not of whole numbers.", "List the values instead, as lr=0.1,0.3,0.5."
        )
    first, last, *rest = map(int, texts)
    step = rest[0] if rest else 1
    if step == 0:
        raise UsageError(f"The range {part[:40]!r} has no step.", "Write first:last or first:last:step.")
    numbers = range(first, last + (1 if step > 0 else -1), step)
    if not numbers:
        other = f"{first}:{last}:{-step}" if step != -1 else f"{first}:{last}"
        raise UsageError(f"The range {part[:40]!r} is empty.", f"To count the other way, write {other[:60]}.")
    if (last - first) // step >= MOST:
        raise UsageError(f"The range {part[:40]!r} has more than {MOST} values.", "Sweep over less.")
    return list(map(str, numbers))


def _whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) < 400


def _filled(text: str, places: Pattern[str], values: dict[str, str]) -> str:
    """All at once: what a value says is never taken for a placeholder."""
    return places.sub(lambda found: values[found.group()[1:-1]], text)
