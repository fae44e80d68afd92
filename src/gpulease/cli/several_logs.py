"""`gpulease log 3,5-7 -f`: several logs as they grow, each line behind the name of its job, until all have ended."""

from __future__ import annotations

import os
import sys

from gpulease.api.log import open_log, tail
from gpulease.cli.commands.log import BLOCK, CHECK_INTERVAL, MAX_SHOWN, seen
from gpulease.cli.parsing import clean, say
from gpulease.client.subscriptions import Subscription
from gpulease.errors import GpuleaseError
from gpulease.model.job_selection import selection
from gpulease.render.terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.protocol.messages import JobRow

STYLES = ("cyan", "green", "yellow", "magenta")


def follow(found: list[JobRow], lines: int | None) -> None:
    """`lines`: only the last ones of what is there already."""
    terminal = Terminal()
    names = [clean(f"{job['id']} {job['name']}" if job["name"] else str(job["id"])) for job in found]
    width = max(map(len, names))
    with Subscription("jobs", select=selection([job["id"] for job in found])) as subscription:
        logs = [
            _Log(job, terminal.paint(f"{name:<{width}} |", STYLES[number % len(STYLES)]), lines)
            for number, (job, name) in enumerate(zip(found, names, strict=True))
        ]
        over = False
        while True:
            for log in logs:
                log.grow(last=over)
            sys.stdout.flush()
            if over:
                return
            over = bool(subscription.receive(CHECK_INTERVAL)) and not subscription.open


class _Log:
    """One of them: how far it was read, and the line that has not ended yet, as far as it was not written over."""

    def __init__(self, job: JobRow, mark: str, lines: int | None) -> None:
        self._job, self._mark, self._lines = job, f"{mark} ".encode(errors="replace"), lines
        self._position, self._rest, self._readable = 0, b"", True
        # What is there before its first run is of a queue that was here before.
        self._before = None if job["runs"] else seen(job["log"])

    def grow(self, last: bool) -> None:
        """Print what is new; a line that has not ended only at the last."""
        try:
            if self._readable and (self._before is None or seen(self._job["log"]) != self._before):
                self._before = None
                self._read()
        except FileNotFoundError:
            pass  # not yet, or not any more
        except GpuleaseError as error:
            self._readable = False
            say(f"gpulease: job {self._job['id']}: {error.what}", sys.stderr)
        if last and self._rest:
            self._print([self._rest])
            self._rest = b""

    def _read(self) -> None:
        path, uid = self._job["log"], self._job["uid"]
        with open_log(path, uid) as file:
            if self._lines is not None:
                self._position = os.fstat(file.fileno()).st_size
                self._print([line.encode() for line in tail(path, self._lines, uid, MAX_SHOWN)])
                self._lines = None
            file.seek(self._position)
            while block := file.read(BLOCK):
                self._position += len(block)
                *whole, rest = (self._rest + block).split(b"\n")
                self._print(whole)
                self._rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
                if len(self._rest) > BLOCK:
                    self._print([self._rest])
                    self._rest = b""

    def _print(self, lines: list[bytes]) -> None:
        """Of a bar that is drawn over itself the last: a carriage return would go to before the mark."""
        last = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines)
        sys.stdout.buffer.writelines(self._mark + line + b"\n" for line in last)
