"""Files of other users' processes, read by a child with a deadline.

Any user can lock the memory of a process of their own for good, and then whoever reads its command line waits for ever
in the kernel (`gpulease help decisions/0041`). A file that is not read in time is unknown, and for a while its user's
others are not tried.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence

from gpulease.system import reader_child

EACH = 0.25  # seconds for one answer
START = 2.0  # seconds for the child to begin
KILLED = 0.1  # seconds for it to be gone
ALL = 1.0  # seconds for all that is asked at once
PAUSE = 30.0  # seconds for which files of a user are not read, after one that was not answered

Wanted = tuple[str, str]  # the user whose file it is, and its path


class Reader:
    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._silent: dict[str, float] = {}  # by user: until when

    def read(self, wanted: Sequence[Wanted]) -> list[bytes | None]:
        """The first 4 KiB of each: nothing of what is not to be read, and None for what was not read in time."""
        found: dict[Wanted, bytes | None] = {}
        until = time.monotonic() + ALL
        while rest := [one for one in wanted if one not in found and not self._is_silent(one[0])]:
            if time.monotonic() >= until or not self._ask(rest, found):
                break
        return [found.get(one) for one in wanted]

    def _is_silent(self, user: str) -> bool:
        return self._silent.get(user, 0.0) > time.monotonic()

    def _ask(self, wanted: Sequence[Wanted], found: dict[Wanted, bytes | None]) -> bool:
        """Until one is not answered; False when no child can be had."""
        asked = wanted[:64]  # so that neither pipe fills up
        try:
            self._start()
            assert self._child is not None
            assert self._child.stdin is not None
            os.write(self._child.stdin.fileno(), b"".join(os.fsencode(path) + b"\n" for _, path in asked))
            for one in asked:
                found[one] = self._answer()
        except TimeoutError:
            silent = next((one for one in asked if one not in found), asked[0])
            found[silent] = None
            self._silent[silent[0]] = time.monotonic() + PAUSE
            self.close()
        except OSError:
            self.close()
            return False
        return True

    def _start(self) -> None:
        if self._child is not None:
            return
        words = [sys.executable, "-I", "-S", reader_child.__file__]
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", process_group=0)
        try:
            self._bytes(1, time.monotonic() + START)
        except TimeoutError:
            raise OSError("the child that reads does not begin") from None

    def _answer(self) -> bytes:
        until = time.monotonic() + EACH
        return self._bytes(int.from_bytes(self._bytes(4, until), "big"), until)

    def _bytes(self, size: int, until: float) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        way, data = self._child.stdout.fileno(), b""
        while len(data) < size:
            if not select.select([way], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            part = os.read(way, size - len(data))
            if not part:
                raise OSError("the child that reads has ended")
            data += part
        return data

    def close(self) -> None:
        """An old kernel may not let it be killed where it waits: then it is left there."""
        if self._child is None:
            return
        self._child.kill()
        for stream in (self._child.stdin, self._child.stdout):
            if stream:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(KILLED)
        self._child = None
