"""The end of a job's log, and then what is added to it, as text that a page can show.

Never more than MOST bytes at a time, however large the file is. Escape sequences and control characters are left out.
"""

from __future__ import annotations

import codecs
import os
import re

from gpulease.job_log import open_log
from gpulease.web.markup import printable

MOST = 128 << 10  # bytes that are read at a time, and kept
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?", re.DOTALL)


def plain(text: str) -> str:
    """Of a line that was written over, as a bar of progress is, what stood there last."""
    text = ESCAPES.sub("", text).replace("\r\n", "\n")
    return "\n".join(printable(line.rstrip("\r").rpartition("\r")[2]) for line in text.split("\n"))


class LogText:
    """`text` is the end of it; `past` says how many characters stood before that since this began to read."""

    def __init__(self, path: str, uid: int) -> None:
        self._path, self._uid = path, uid
        self._identity: tuple[int, int] | None = None
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text, self.past, self.size, self.skipped = "", 0, 0, 0

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
        return self._add(plain(self._decoder.decode(data)))

    def _begin(self, identity: tuple[int, int], size: int) -> None:
        self._identity = identity
        self.past += len(self.text)
        self.text, self.skipped = "", 0
        self._position = 0
        if size > MOST:
            self._skip_to(size - MOST)

    def _skip_to(self, position: int) -> None:
        self.skipped += position - self._position
        self._position = position
        self._decoder.reset()

    def _add(self, text: str) -> bool:
        self.text += text
        more = len(self.text) - MOST
        if more > 0:
            self.text, self.past = self.text[more:], self.past + more
        return bool(text)
