"""The end of a job's log, and then what is added to it, as text that a page can show.

Never more than MOST bytes at a time, however large the file is.
"""

from __future__ import annotations

import codecs

from gpulease.api.log import LogReader
from gpulease.web.lines_written import WrittenLines

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
