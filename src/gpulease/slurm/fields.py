"""PURE: single values out of Slurm's JSON, whose shapes changed from version to version.

Up to 22.05 a number is a number, or null; from 23.02 on it is {"set", "infinite", "number"}. A state is a text, and
from 23.11 on a list of texts. An exit code is a raw wait status, in 23.02 as such a number, and an object from 23.11.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LEFT_OUT = 4294967294  # NO_VAL of Slurm: the number was not given
UNLIMITED = 4294967295


def number(value: Any) -> float | None:
    """None for what is not set, and for what has no limit."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return None if value in (LEFT_OUT, UNLIMITED) else value


def whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def moment(value: Any) -> float | None:
    """Unix seconds; 0 is none."""
    return number(value) or None


def states(value: Any) -> list[str]:
    """In capitals, the state itself first, flags such as COMPLETING behind it."""
    if isinstance(value, str):
        return value.upper().replace("+", " ").split()
    return [str(one).upper() for one in value] if isinstance(value, list) else []


def text(value: Any) -> str:
    return value if isinstance(value, str) and value not in ("(null)", "N/A", "None") else ""


def are_words(value: Any) -> bool:
    """A command: texts, and at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def ended_with(value: Any) -> tuple[int | None, int | None]:
    """Exit code and signal."""
    if isinstance(value, dict) and "return_code" in value:
        return _from_object(value)
    status = whole(value)
    if status is None:
        return None, None
    return (None, status & 0x7F) if status & 0x7F else (status >> 8, None)


def _from_object(value: Mapping[str, Any]) -> tuple[int | None, int | None]:
    signal = value.get("signal") or {}
    caught = whole(signal.get("id", signal.get("signal_id"))) if isinstance(signal, dict) else whole(signal)
    return (None, caught) if caught else (whole(value.get("return_code")), None)


def version(document: Mapping[str, Any]) -> tuple[int, int] | None:
    """Of the Slurm that printed the document, as (22, 5)."""
    meta = document.get("meta") or {}
    slurm_meta = meta.get("slurm") or meta.get("Slurm") or {}
    parts = slurm_meta.get("version") or {}
    try:
        return int(parts["major"]), int(parts["minor"])
    except (KeyError, TypeError, ValueError):
        return None


def hosts(text: str) -> list[str]:
    """The names in a list as `gpu[01-03,7],login`."""
    found: list[str] = []
    for part in split(text):
        prefix, bracket, rest = part.partition("[")
        inner, _, suffix = rest.partition("]")
        found += [f"{prefix}{one}{suffix}" for one in numbers(inner)] if bracket else [part]
    return found


def split(text: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth, begun = [], 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append(begun)
            begun = ""
        else:
            begun += letter
    return [part for part in (*parts, begun) if part]


def numbers(text: str) -> list[str]:
    """`01-03,7` or `0-20:2%4` one by one, zeros in front as they are."""
    found: list[str] = []
    for part in text.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        if not dash:
            found += [first] if first else []
        elif first.isdecimal() and last.isdecimal():
            by = int(step) if step.isdecimal() and int(step) else 1
            found += [f"{one:0{len(first)}d}" for one in range(int(first), int(last) + 1, by)]
    return found
