"""PURE: a command with placeholders, once for each combination of values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product
from math import prod
from re import Pattern, compile, escape

from gpulease.errors import UsageError
from gpulease.model.sweep_values import MOST, read_values

CAP = compile(r"(\w+=[^,%]+:[^,%]+)%([0-9]{1,7})")
PLACE = compile(r"(?<!\$)\{([A-Za-z_]\w*)\}")
FORM = "Write it as lr=0.1,0.01, seed=1:5, lr=0.1:0.5:0.1 or lr=1e-4:1e-1:x10."


def variables(options: list[str]) -> dict[str, list[str]]:
    """The values of each variable, of options as `lr=0.1,0.01` and `seed=1:5`, which counts from 1 to 5."""
    found: dict[str, list[str]] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.isidentifier() or not text:
            raise UsageError(f"The sweep {option[:40]!r} is not right.", FORM)
        if name in found:
            raise UsageError(
                f"The sweep over {name[:40]} was given twice.", f"Write all its values at once, as {name}=1,2,3."
            )
        found[name] = read_values(text)
    return found


def unfilled(command: list[str], names: Collection[str]) -> str | None:
    """A placeholder as `{lr}` of which there are no values; `${lr}` is the shell's."""
    found = (place.group(1) for word in command for place in PLACE.finditer(word))
    return next((name for name in found if name not in names), None)


def refuse_unfilled(command: list[str], names: Collection[str]) -> None:
    name = unfilled(command, names)
    if name is not None:
        step = f"Sweep over {name[:40]} too; if it is meant so, queue it with `force`."
        raise UsageError(f"The command has {{{name[:40]}}} in it, which has no values.", step)


def without_caps(options: list[str]) -> tuple[list[str], list[str]]:
    """Slurm's `seed=1:100%8`, where at most 8 run at a time, as `seed=1:100` and `8`; only of ranges."""
    split = [(option, CAP.fullmatch(option)) for option in options]
    rest = [found.group(1) if found else option for option, found in split]
    return rest, [found.group(2) for _, found in split if found]


def expand(
    command: list[str], texts: Mapping[str, str], values: Mapping[str, list[str]]
) -> list[tuple[list[str], dict[str, str]]]:
    """`{lr}` in `command` becomes each value of `lr`; so does it in `texts` that belong to it."""
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


def _filled(text: str, places: Pattern[str], values: dict[str, str]) -> str:
    """All at once: what a value says is never taken for a placeholder."""
    return places.sub(lambda found: values[found.group()[1:-1]], text)
