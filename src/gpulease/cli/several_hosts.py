"""One verb about jobs of several hosts, as `kill gpu1:3,gpu2:5-9`: each host does its part, all at once."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from typing import IO

from gpulease.cli.parsing import clean, print_json
from gpulease.cli.remote_words import Words
from gpulease.hosts.hosts import Answer

HERE = "here"


def run_on_all(found: Words, hosts: dict[str | None, list[str]]) -> int:
    """The largest exit code. Each line is told with its host before it; with --json one document has all answers."""
    as_json = "--json" in found.options
    calls = {host or HERE: _call(found, host, ids, as_json) for host, ids in hosts.items()}
    try:
        if as_json:
            answers = [_answer(host, call) for host, call in calls.items()]
            print_json({"hosts": [answer.as_row() for answer in answers]}, 2)
        else:
            _pass_on(calls)
    except KeyboardInterrupt:
        pass  # they had it too
    return max(call.wait() for call in calls.values())


def _call(found: Words, host: str | None, ids: list[str], as_json: bool) -> subprocess.Popen[bytes]:
    where = [] if host is None else ["--host", host]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gpulease", *where, found.verb, *found.options, *ids, *found.command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if as_json else subprocess.PIPE,
    )


def _answer(host: str, call: subprocess.Popen[bytes]) -> Answer:
    from gpulease.errors import HostUnavailable

    output, _ = call.communicate()
    try:
        return Answer(host, json.loads(output))
    except ValueError:
        return Answer(host, None, HostUnavailable(f"{host} gave no answer.", "What it said is on stderr."))


def _pass_on(calls: dict[str, subprocess.Popen[bytes]]) -> None:
    """Whole lines, as they come."""
    with selectors.DefaultSelector() as ready:
        for host, call in calls.items():
            for source, target in ((call.stdout, sys.stdout), (call.stderr, sys.stderr)):
                assert source is not None
                ready.register(source, selectors.EVENT_READ, _HostLines(host, target))
        while ready.get_map():
            for key, _ in ready.select():
                block = key.fileobj.read1(1 << 16)  # type: ignore[union-attr]  # a pipe of subprocess
                key.data.take(block)
                if not block:
                    ready.unregister(key.fileobj)


class _HostLines:
    def __init__(self, host: str, target: IO[str]) -> None:
        self._host, self._target, self._rest = host, target, b""

    def take(self, block: bytes) -> None:
        """An empty block is the end."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        if not block and self._rest:
            lines.append(self._rest)
        for line in lines:
            print(f"{self._host}: {clean(line.decode(errors='replace'))}", file=self._target, flush=True)
