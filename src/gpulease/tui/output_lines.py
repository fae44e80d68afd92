"""A job's log as it grows: the end of it, as lines that are safe to show on a terminal.

Not for: the whole of a large log. `gpulease log` prints that.
"""

from __future__ import annotations

from gpulease.api.log import LONGEST, MOST, LogReader, shown_line
from gpulease.errors import GpuleaseError
from gpulease.model.job_selection import ENDED
from gpulease.render.terminal import width_of
from gpulease.tui.entries import Row

MAX_LINES = 5000


def wrapped(text: str, width: int) -> list[str]:
    """In pieces of at most `width` columns; an empty line is one piece."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    pieces = [""]
    for letter in text:
        if pieces[-1] and width_of(pieces[-1]) + width_of(letter) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces


class Output:
    """The end of one job's log. `lines` is what was there at the last `grow`, and `note` why there is none."""

    def __init__(self, job: Row) -> None:
        self.id = int(job["id"])
        self.lines: tuple[str, ...] = ()
        self.note = ""
        self.count = 0  # of all lines that were read so far
        self._begun: list[str] = []
        self._rest = b""
        self._log: LogReader | None = None

    def grow(self, job: Row) -> bool:
        """Read what is new; whether anything is."""
        before = (self.lines, self.note)
        try:
            self.note = _without(job)
            if not self.note:
                self._read(job["log"], job["uid"])
        except FileNotFoundError:
            over = job["state"] in ENDED
            self.note = "There is no log any more." if over else "It has written nothing yet."
        except GpuleaseError as error:
            self.note = error.what
        return (self.lines, self.note) != before

    def _read(self, path: str, uid: int) -> None:
        if self._log is None or (self._log.path, self._log.uid) != (path, uid):
            self._log = LogReader(path, uid)
        data = self._log.read(MOST)
        if self._log.fresh or self._log.skipped:
            self._begun, self._rest = [], b""
        if self._log.skipped:  # from the middle of a line
            data = data.partition(b"\n")[2] or data
        if data or self._log.fresh:
            self._take(data)

    def _take(self, data: bytes) -> None:
        *ended, rest = (self._rest + data).split(b"\n")
        self.count += len(ended)
        self._rest = rest[-MOST:]
        self._begun = [*self._begun, *(_decoded(line) for line in ended[-MAX_LINES:])][-MAX_LINES:]
        last = [_decoded(self._rest)] if self._rest else []
        self.lines = (*self._begun, *last)


def _decoded(line: bytes) -> str:
    return shown_line(line[-16 * LONGEST :].decode(errors="replace"))


def _without(job: Row) -> str:
    if not job["log"]:
        return "Its log is hidden from you."
    return "" if job["runs"] else "It has not started yet."
