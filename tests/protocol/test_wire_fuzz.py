"""Random and mutated messages, answers that are not read, half-sent frames, clients that vanish: for seconds in
`make test`, for minutes with the long tests. Afterwards the broker is the same, and serves others.

GPULEASE_FUZZ_SEED repeats a run, as far as the order of what arrives can be repeated.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.raw import Raw
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

from gpulease.protocol.messages import REQUESTS
from gpulease.protocol.wire import pack

RUNS = {"add", "edit", "notify"}  # a mutated one might run a command that nobody has thought of
VERBS = sorted(set(REQUESTS) - RUNS - {"stop"})
ODD: list[Any] = [None, True, -1, 0, 7, 2**31, 2**63, 1e300, "", "0", "L1", "*", "x" * 5000, [], [[]], ["0"] * 1024, {}]
SELECTS: list[Any] = [{"all": True}, {"ids": [[1, 2**60]]}, {"user": "nobody-at-all"}, {"label": "\udcff"}, {"x": 1}]
MAX_GROWTH = 150  # MiB
MAX_OPEN = 100  # connections at a time
LONGEST = 250  # messages that are sent at once, of which 150 fill all buffers with answers


class Fuzz:
    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.random = site, random.Random(seed)
        self.open: list[socket.socket] = []
        self.kinds: list[Callable[[socket.socket], None]] = [
            self.noise, self.mutated, self.unread, self.unread, self.half, self.deep, self.large, self.left_behind,
            self.single,
        ]  # fmt: skip

    def message(self) -> bytes:
        verb = self.random.choice(VERBS)
        known = REQUESTS[verb].__annotations__
        fields = {name: self.random.choice(ODD) for name in known if self.random.random() < 0.7}
        if "select" in known and self.random.random() < 0.8:
            fields["select"] = self.random.choice(SELECTS)
        if verb == "acquire":
            fields |= {"request": {"gpus": self.random.choice([1, 2, 4, 99])}, "kind": "acquire", "wait": 0}
        return _framed(json.dumps({"v": 1, "do": verb, **fields}).encode())

    def noise(self, way: socket.socket) -> None:
        way.send(self.random.randbytes(self.random.randrange(1, 300)))

    def mutated(self, way: socket.socket) -> None:
        data = bytearray(self.message())
        for _ in range(self.random.randrange(1, 6)):
            at = self.random.randrange(len(data))
            data[at : at + self.random.randrange(3)] = self.random.randbytes(self.random.randrange(3))
            if not data:
                return
        way.send(data)

    def unread(self, way: socket.socket) -> None:
        """Much is asked for, nothing is read, and then something is wrong."""
        asked = pack({"v": 1, "do": self.random.choice(["set", "set", "status", "ls"])})
        wrong = self.random.choice([b"\xff\xff\xff\xff", _framed(b"{"), self.message(), b"\0\0"])
        way.send(asked * self.random.randrange(LONGEST) + wrong)

    def half(self, way: socket.socket) -> None:
        data = self.message()
        way.send(data[: self.random.randrange(1, len(data))])

    def deep(self, way: socket.socket) -> None:
        size = self.random.randrange(1, 50_000)
        way.send(_framed(b'{"v":1,"do":' + b"[" * size + b"]" * self.random.choice([size, 0]) + b"}"))

    def large(self, way: socket.socket) -> None:
        way.send(_framed(json.dumps({"v": 1, "do": "ls", "x": ["y" * 100] * self.random.randrange(9000)}).encode()))

    def left_behind(self, way: socket.socket) -> None:
        way.send(b"".join(self.message() for _ in range(50)))
        way.close()

    def single(self, way: socket.socket) -> None:
        for byte in self.message()[:100]:
            way.send(bytes([byte]))

    def go(self, seconds: float) -> int:
        until, done = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            done += 1
            fresh = not self.open or (len(self.open) < MAX_OPEN and self.random.random() < 0.6)
            if fresh:
                self.open.append(self.site.raw().socket)
                self.open[-1].setblocking(False)
            at = -1 if fresh else self.random.randrange(len(self.open))
            try:
                self.random.choice(self.kinds)(self.open[at])
                if self.random.random() < 0.2:
                    self.open[at].recv(1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                self.open.pop(at).close()
                continue
            if self.open[at].fileno() < 0 or self.random.random() < 0.2:
                self.open.pop(at).close()
        self.settle()
        for one in self.open:
            one.close()
        return done

    def settle(self) -> None:
        """One user's connections have a turn each: when one has been answered so often, the others were as well."""
        with self.site.raw() as last:
            last.socket.sendall(pack({"v": 1, "do": "set"}) * LONGEST)
            for _ in range(LONGEST):
                last.receive()


def _framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def check(site: Site, seconds: float) -> None:
    seed = int(os.environ.get("GPULEASE_FUZZ_SEED", "0")) or random.randrange(1, 1 << 31)
    print("GPULEASE_FUZZ_SEED", seed)
    pid = site.ensure_broker()
    site.status()
    memory, descriptors = _memory(pid), _descriptors(pid)
    done = Fuzz(site, seed).go(seconds)
    print(done, "tries")
    assert done > 20 * seconds
    with Raw(site.directory) as other:
        other.socket.settimeout(20)
        assert "ok" in other.ask("ping")
        assert "ok" in other.ask("status")
        other.ask("release", mine=True)
        other.ask("include", what=["0"])
        other.acquire(1, 20, devices=["0"])
    assert site.broker_pid() == pid, site.log()
    assert "Traceback" not in site.log(), site.log()
    # The keeper of claims has a pair of sockets for each device, and a claim is one more.
    wait_until(lambda: _descriptors(pid) <= descriptors + 30)
    assert _memory(pid) - memory < MAX_GROWTH


def test_the_broker_survives_seconds_of_nonsense(site: Site) -> None:
    check(site, 2)


@pytest.mark.long("leases")
@pytest.mark.timeout(900)
def test_the_broker_survives_minutes_of_nonsense(site: Site) -> None:
    check(site, float(os.environ.get("GPULEASE_FUZZ_SECONDS", "180")))
