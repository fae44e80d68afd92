"""PURE: a command with placeholders, once for each combination of values: `0.1,0.01`, `1:5`, `1e-4:1e-1:x10`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Context, Decimal
from itertools import product
from math import ceil, floor, log, log1p, prod
from re import IGNORECASE, Pattern, compile, escape

from gpulease.errors import UsageError

CAP = compile(r"(\w+=[^,%]+:[^,%]+)%([0-9]{1,7})")
PLACE = compile(r"(?<!\$)\{([A-Za-z_]\w*)\}")
FORM = "Write it as lr=0.1,0.01, seed=1:5, lr=0.1:0.5:0.1 or lr=1e-4:1e-1:x10."


def variables(options: list[str]) -> dict[str, list[str]]:
    """The values of each variable, of options as `lr=0.1,0.01` and `seed=1:5`, which counts from 1 to 5."""
    found: dict[str, list[str]] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.isidentifier() or not text:
            raise UsageError(f"Invalid sweep: {option[:40]!r}.", FORM)
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


# -------------------------------------------------------------------- the values of one variable

# Ranges are counted in decimals, never in binary floats: 0.1:0.5:0.1 has 0.3 in it, not 0.30000000000000004.
MOST = 1_000_000
NUMBER = compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
NO_NUMBER = compile(r"[+-]?(nan|inf|infinity)", IGNORECASE)
LONGEST = 100  # characters of a number of a range, and its greatest power of ten
EXACT = Context(prec=4 * LONGEST)  # digits enough that nothing is rounded
PRODUCTS = Context(prec=50)
SHOWN = Context(prec=12)  # digits of a value that was multiplied


def read_values(text: str) -> list[str]:
    """Of a list with commas; each part of it may be a range."""
    found: list[str] = []
    for part in text.split(","):
        texts = part.split(":")
        _refuse_near_range(part, texts)
        found += _range(part, texts) if _is_range(texts) else [part]
        _refuse_more(len(found))
    return found


def texts_of(name: str, values: object) -> list[str]:
    """Of what Python gives: text as on the command line, or anything that can be gone through."""
    if isinstance(values, str) and values:
        return read_values(values)
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise UsageError(f"The values of {name} are {values!r:.60}.", "Give a list, a range, or text as '1:5'.")
    found: list[str] = []
    for value in values:
        found.append(str(value))
        _refuse_more(len(found))
    if not found:
        raise UsageError(f"There is no value of {name}.", "Give at least one.")
    return found


def _refuse_more(count: int) -> None:
    if count > MOST:
        raise UsageError(f"The sweep has more than {MOST} values.", "Sweep over less.")


def _refuse_near_range(part: str, texts: list[str]) -> None:
    """What was surely meant as a range, and would be one job with this text."""
    dotted = part.split("..")
    if len(dotted) in (2, 3) and all(map(NUMBER.fullmatch, dotted)):
        raise UsageError(f"{part[:40]!r} is not a range.", "Write it with colons, as 1:5 or 0.1:0.5:0.1.")
    wrong = [text for text in texts if NO_NUMBER.fullmatch(text)]
    if (
        wrong
        and len(texts) in (2, 3)
        and all(NUMBER.fullmatch(text.removeprefix("x")) for text in texts if text not in wrong)
    ):
        raise UsageError(f"The range {part[:40]!r} has {wrong[0]} in it.", "Write numbers, as 0.1:0.5:0.1.")


def _is_range(texts: list[str]) -> bool:
    """Two numbers, and maybe a step, or a factor as `x10`."""
    *ends, step = texts if len(texts) == 3 else [*texts, "1"]
    return len(ends) == 2 and all(map(NUMBER.fullmatch, [*ends, step.removeprefix("x")]))


def _range(part: str, texts: list[str]) -> list[str]:
    multiplied = texts[-1].startswith("x")
    numbers = [_number(text.removeprefix("x"), part) for text in texts]
    if len(numbers) == 2:
        if any(number != number.to_integral_value() for number in numbers):
            raise UsageError(f"The range {part[:40]!r} has no step.", _steps(part[:40], *numbers))
        numbers.append(Decimal(1))
    return _multiplied(part, *numbers) if multiplied else _counted(part, texts, *numbers)


def _steps(part: str, first: Decimal, last: Decimal) -> str:
    """How it may be written, in the direction in which it goes."""
    step, factor = "0.1" if first <= last else "-0.1", "10" if abs(first) <= abs(last) else "0.1"
    added = f"Write it as {part}:{step} to add {step}"
    return f"{added}, or {part}:x{factor} to multiply by {factor}." if first * last > 0 else f"{added}."


def _number(text: str, part: str) -> Decimal:
    number = Decimal(text)
    if len(text) > LONGEST or abs(int(number.as_tuple().exponent)) > LONGEST:
        raise UsageError(f"The range {part[:40]!r} has a number that is too long.", "List the values instead.")
    return number


def _counted(part: str, texts: list[str], first: Decimal, last: Decimal, step: Decimal) -> list[str]:
    """In whole numbers of the smallest digit that the first value and the step have."""
    if not step:
        raise UsageError(f"The range {part[:40]!r} has no step.", "Write first:last or first:last:step.")
    places = max(0, *(-int(number.as_tuple().exponent) for number in (first, step)))
    begin, stride = (int(EXACT.scaleb(number, places)) for number in (first, step))
    inside: Callable[[Decimal], int] = floor if stride > 0 else ceil
    end = inside(EXACT.scaleb(last, places))
    if (end - begin) // stride >= MOST:
        raise UsageError(f"The range {part[:40]!r} has more than {MOST} values.", "Sweep over less.")
    numbers = range(begin, end + (1 if stride > 0 else -1), stride)
    if not numbers:
        raise UsageError(f"The range {part[:40]!r} is empty.", f"To count the other way, write {_other_way(texts)}.")
    return [f"{EXACT.scaleb(Decimal(number), -places):f}" for number in numbers] if places else list(map(str, numbers))


def _other_way(texts: list[str]) -> str:
    step = texts[2] if len(texts) == 3 else "1"
    other = step[1:] if step.startswith("-") else f"-{step.removeprefix('+')}"
    return ":".join([*texts[:2], other] if other != "1" else texts[:2])[:60]


def _multiplied(part: str, first: Decimal, last: Decimal, factor: Decimal) -> list[str]:
    if factor <= 0 or factor == 1 or not first or not last or (first > 0) != (last > 0):
        step = "Multiply by a number above 0 that is not 1, as 1:64:x2, and by no range from, to or across 0."
        raise UsageError(f"The range {part[:40]!r} reaches no end.", step)
    if log(abs(last / first)) / log1p(factor - 1) >= MOST:
        raise UsageError(f"The range {part[:40]!r} has more than {MOST} values.", "Sweep over less.")
    found: list[str] = []
    value, shown = first, SHOWN.plus(first)
    while abs(shown) <= abs(last) if factor > 1 else abs(shown) >= abs(last):
        found.append(f"{shown.normalize():f}")
        value = PRODUCTS.multiply(value, factor)
        shown = SHOWN.plus(value)
    if not found:
        raise UsageError(
            f"The range {part[:40]!r} is empty.", "A factor above 1 goes away from 0, one below towards it."
        )
    return found
