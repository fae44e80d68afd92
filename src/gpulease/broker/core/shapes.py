"""PURE: the shape of a request: requests of one shape are expected to run equally long and to use as much memory.

The user, what the command runs, its options without their values, and what is asked for. A shape is a text, so that
people can read what is known of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from gpulease.broker.core.command_kind import WORDS, kind_of
from gpulease.model.quantities import format_bytes
from gpulease.model.values import Request

LONGEST = 300  # characters; a longer one is cut, with a digest of the whole
OPTIONS = 30  # names of options that count
OPTION = re.compile(r"--[A-Za-z][^=]*|-[A-Za-z](?=-?[\d.]+$)|-[A-Za-z][^=]*")
TEXT = re.compile(r"[\s;|&$()'\"<>=]")  # what is in no path of a program, but in a text


def shape_of(user: str, command: Sequence[str], cwd: str, request: Request, kind: str = "job") -> str:
    """`user`, what is asked for, and what runs, divided by tabs."""
    runs = " ".join(_runs(command, cwd)) if command else f"({kind})"
    text = "\t".join((user, _asked(request), " ".join(runs.split())))
    text = text.encode(errors="backslashreplace").decode()  # names of files may be no text, and it is kept as text
    if len(text) <= LONGEST:
        return _same(text)
    return f"{text[:LONGEST]}…{blake2b(text.encode(), digest_size=8).hexdigest()}"


@lru_cache(maxsize=256)
def _same(text: str) -> str:
    """Equal texts as one object: a hundred thousand jobs of a sweep have one."""
    return text


def parts_of(shape: str) -> tuple[str, str, str]:
    user, _, rest = shape.partition("\t")
    asked, _, runs = rest.partition("\t")
    return user, asked, runs


def _runs(command: Sequence[str], cwd: str) -> list[str]:
    """What runs, and the names of its options in order: `--lr=0.1` and `--lr 0.1` are one, `-x5` is `-x`, `-3` a value.

    The options of an interpreter or a launcher, which stand before, do not count. Of a text, as a shell's or Python's
    behind `-c`, the beginning counts only: what else is in it may be values, and secrets.
    """
    kind, words = kind_of(command, cwd), command[:WORDS]
    script = kind[-1].rpartition("/")[2]
    begin = next((at for at, word in enumerate(words) if word.rpartition("/")[2] == script), len(words))
    options = {found.group() for word in words[begin + 1 :] if (found := OPTION.match(word))}
    return [*(TEXT.split(one, maxsplit=1)[0] for one in kind), *sorted(options)[:OPTIONS]]


def _asked(request: Request) -> str:
    amount = f"{request.gpus} GPU" if request.memory is None else f"{format_bytes(request.memory)} of a GPU"
    least = [] if request.min_memory is None else [f"of {format_bytes(request.min_memory)}"]
    without = [f"not {uuid}" for uuid in request.exclude]
    return " ".join((amount, *request.models, *least, *sorted(request.devices), *without))
