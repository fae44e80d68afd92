"""`on-finish`: a command or a URL that hears of each job that ended. Its failure never touches the job.

One process at a time tells of all that ended since the last one began, in order, so that ten thousand jobs that end
at once do not start ten thousand processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

from gpulease.broker.events import Key
from gpulease.errors import in_words
from gpulease.messages import Message

LONGEST = 60  # seconds that a hook may take for one job
MOST = 100_000  # jobs that wait to be told of; then the oldest are dropped


class Hooks:
    def __init__(self, watch: Callable[[Key], None], log: Callable[[str], None]) -> None:
        self._watch, self._log = watch, log
        self._command = ""
        self._pending: list[Message] = []
        self._running: Key | None = None

    def add(self, command: str, job: Message) -> None:
        self._command = command
        self._pending.append(job)
        del self._pending[:-MOST]

    def run(self) -> None:
        """Start one process for all that is pending, unless one still runs."""
        if self._running is not None or not self._pending:
            return
        pending, self._pending = self._pending, []
        try:
            pid = _start("\n".join(map(json.dumps, (self._command, *pending))).encode())
        except OSError as trouble:
            return self._log(f"the hook on-finish could not be started: {in_words(trouble)}")
        self._running = (pid, None)  # a child of ours, so the number is nobody else's until it is reaped
        self._watch(self._running)

    def ended(self, key: Key) -> bool:
        """Whether it was the hook's process that ended."""
        if key != self._running:
            return False
        self._running = None
        self.run()
        return True


def _start(lines: bytes) -> int:
    """With the hook and the jobs in a file in memory: a pipe could make the broker wait for its reader.

    The hook may have a password in it, and everybody sees the words of a process.
    """
    words = [sys.executable, "-P", "-m", "gpulease.broker.hooks"]
    with _in_memory(lines) as file:
        child = subprocess.Popen(words, stdin=file, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/")
    child.returncode = 0  # reaped by its pid elsewhere; keeps Popen from waiting for it
    return child.pid


def _in_memory(content: bytes) -> BinaryIO:
    file = open(os.memfd_create("hook"), "r+b")  # noqa: SIM115  # closed by the caller
    file.write(content)
    file.seek(0)
    return file


def main() -> int:
    first, *lines = sys.stdin.buffer.read().splitlines()
    hook = json.loads(first)
    tell = _post if hook.startswith(("http://", "https://")) else _run
    for line in lines:
        trouble = tell(hook, line + b"\n")  # which `while read -r` needs
        if trouble is not None:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            print(f"{stamp} the hook on-finish failed for job {json.loads(line)['id']}: {trouble}", file=sys.stderr)
    return 0


def _run(command: str, body: bytes) -> str | None:
    """Why it failed; None when it did not."""
    try:
        with _in_memory(os.fsencode(command)) as script:
            words = ["/bin/sh", f"/proc/self/fd/{script.fileno()}"]
            code = subprocess.run(words, input=body, timeout=LONGEST, pass_fds=[script.fileno()]).returncode
    except subprocess.TimeoutExpired:
        return f"it was ended after {LONGEST} s"
    except OSError as trouble:
        return in_words(trouble)
    return f"exit code {code}" if code else None


def _post(url: str, body: bytes) -> str | None:
    import urllib.request

    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LONGEST):
            return None
    except (OSError, ValueError) as trouble:
        return in_words(trouble)


if __name__ == "__main__":
    sys.exit(main())
