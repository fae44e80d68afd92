"""PURE: the output of a program as lines that a page can show, however it was cut into pieces when it was read.

Escape sequences and control characters are left out. Of a line that was written over, as a bar of progress is, what
stood there last is left; the last line may still be written over, and so it is apart from those that stay.
"""

from __future__ import annotations

import re

from gpulease.web.markup import printable

LONGEST = 128 << 10  # characters of a line without an end that are kept
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[^\x1b\r\n])?")
UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\r\n]*\x1b?|[ -/]+)?\Z")  # none of them goes over a line


class WrittenLines:
    def __init__(self) -> None:
        self._rest = ""  # behind the last line break, of what was written over only the last

    @property
    def tail(self) -> str:
        """The last line as it is now, without a sequence that has only begun."""
        return _last_written(UNFINISHED.sub("", self._rest))

    def add(self, text: str) -> str:
        """The lines that are whole now, each with its line break."""
        whole, ended, rest = (self._rest + text).rpartition("\n")
        self._rest = _shortened(rest)
        return "".join(f"{_last_written(line)}\n" for line in whole.split("\n")) if ended else ""

    def end(self) -> str:
        """What is left, when it does not go on here."""
        tail, self._rest = self.tail, ""
        return tail


def _last_written(line: str) -> str:
    return printable(ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2])


def _shortened(rest: str) -> str:
    """Which comes to the same with whatever follows: a bar of progress may be gigabytes without a line break."""
    begun = UNFINISHED.search(rest)
    whole = ESCAPES.sub("", rest[: begun.start()] if begun else rest)
    shown = whole.rstrip("\r")
    kept = shown.rpartition("\r")[2] + ("\r" if shown != whole else "")
    return (kept + (begun.group() if begun else ""))[-LONGEST:]
