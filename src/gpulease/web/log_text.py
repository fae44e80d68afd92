"""The end of a job's log, and then what is added to it, as text that a page can show.

Never more than MOST bytes at a time, however large the file is.
"""

from __future__ import annotations

import codecs
import os

from gpulease.api.log import open_log
from gpulease.web.lines_written import WrittenLines

MOST = 128 << 10  # bytes that are read at a time, and kept


class LogText:
    """`text` is the end of its whole lines, `tail` the line that is still written.

    `past` says how many characters stood before `text` since this began to read.
    """

    def __init__(self, path: str, uid: int) -> None:
        self._path, self._uid = path, uid
        self._identity: tuple[int, int] | None = None
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = WrittenLines()
        self.text, self.past, self.size, self.skipped = "", 0, 0, 0

    def is_of(self, path: str, uid: int) -> bool:
        return (path, uid) == (self._path, self._uid)

    @property
    def tail(self) -> str:
        return self._lines.tail

    @property
    def shown(self) -> str:
        return self.text + self.tail

    def read(self) -> bool:
        """Whether there is something new. OSError and GpuleaseError where it cannot be read."""
        with open_log(self._path, self._uid) as file:
            about = os.fstat(file.fileno())
            identity = (about.st_dev, about.st_ino)
            if identity != self._identity or about.st_size < self._position:
                self._begin(identity, about.st_size)
            elif about.st_size - self._position > MOST:  # it grows faster than anybody reads
                self._skip_to(about.st_size - MOST)
            self.size = about.st_size
            file.seek(self._position)
            data = file.read(MOST)
        self._position += len(data)
        before = self.tail
        grown = self._add(self._lines.add(self._decoder.decode(data)))
        return grown or self.tail != before

    def _begin(self, identity: tuple[int, int], size: int) -> None:
        if self._identity is not None:
            self.past += len(self.text) + 1  # so that who was told all of the last one is told this one anew
        self._identity = identity
        self.text, self.skipped, self._lines = "", 0, WrittenLines()
        self._decoder.reset()
        self._position = 0
        if size > MOST:
            self._skip_to(size - MOST)

    def _skip_to(self, position: int) -> None:
        self.skipped += position - self._position
        self._position = position
        self._decoder.reset()
        self._add(self._lines.end())

    def _add(self, text: str) -> bool:
        self.text += text
        more = len(self.text) - MOST
        if more > 0:
            self.text, self.past = self.text[more:], self.past + more
        return bool(text)
