"""PURE: whether what was read from a file is a record of jobs; a disk may have been full, and people edit files."""

from __future__ import annotations

from gpulease.slurm.fields import are_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGEST = 1e12  # of a number
TEXTS = ("name", "label", "note", "log")


def is_record(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    commands, each = found.get("commands"), found.get("each", [])
    options: Any = found.get("options")
    return (
        isinstance(commands, list)
        and bool(commands)
        and all(are_words(words) for words in commands)
        and isinstance(each, list)
        and len(each) in (0, len(commands))
        and all(_has_texts(texts) for texts in each)
        and _has_texts(options)
        and isinstance(options.get("cwd"), str)
        and _is_number(options.get("retry") or 0)
        and isinstance(found.get("log"), str)
        and _is_number(found.get("added"))
        and _is_number(found.get("uid", 0))
        and _is_request(found.get("request"))
        and _are_texts(found.get("forgotten", []))
    )


def _has_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), (str, type(None))) for name in TEXTS)


def _is_request(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(value.get(name, 0)) for name in ("gpus", "priority"))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST < value < LARGEST
