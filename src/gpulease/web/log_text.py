"""The end of a job's log, and then what is added to it, as text that a page can show.

Never more than MOST bytes at a time, however large the file is.

Escape sequences and control characters are left out. Of a line that was written over, as a bar of progress is, what
stood there last is left; the last line may still be written over, and so it is apart from those that stay.
"""

from __future__ import annotations

import codecs
import re

from gpulease.api.log import LogReader
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


# -------------------------------------------------------------------- the log

MOST = 128 << 10  # bytes that are read at a time, and kept


class LogText:
    """`text` is the end of its whole lines, `tail` the line that is still written.

    `past` says how many characters stood before `text` since this began to read.
    """

    def __init__(self, path: str, uid: int) -> None:
        self._log = LogReader(path, uid)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = WrittenLines()
        self.text, self.past, self.size, self.skipped = "", 0, 0, 0

    def is_of(self, path: str, uid: int) -> bool:
        return (path, uid) == (self._log.path, self._log.uid)

    @property
    def tail(self) -> str:
        return self._lines.tail

    @property
    def shown(self) -> str:
        return self.text + self.tail

    def read(self) -> bool:
        """Whether there is something new. OSError and GpuleaseError where it cannot be read."""
        known = self._log.position > 0
        data = self._log.read(MOST)
        self.size = self._log.size
        if self._log.fresh:
            if known:
                self.past += len(self.text) + 1  # so that who was told all of the last one is told this one anew
            self.text, self.skipped, self._lines = "", 0, WrittenLines()
            self._decoder.reset()
        if self._log.skipped:  # it grows faster than anybody reads
            self.skipped += self._log.skipped
            self._decoder.reset()
            self._add(self._lines.end())
        before = self.tail
        grown = self._add(self._lines.add(self._decoder.decode(data)))
        return grown or self.tail != before

    def _add(self, text: str) -> bool:
        self.text += text
        more = len(self.text) - MOST
        if more > 0:
            self.text, self.past = self.text[more:], self.past + more
        return bool(text)
