"""One user does what it can to the broker, and another wants to work: `get`, `release`, `run` and `ls`.

    python bench/hostile.py [ROUNDS [LOAD]]     as root: it makes two other users, in a namespace

The hostile user has 200 connections and 100,000 jobs, and each kind of load is tried by itself: floods of `ls` and
`explain`, the largest batches there are that are never finished, subscriptions, waits for all jobs, answers that are
not read, and verbs about all 100,000 jobs. The load goes on and rests in turn, and the other user works in both. The
figure is how much longer the other's commands take: the 95th of 100 beside the load, over the same alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import ctypes
import os
import pwd
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from statistics import median, quantiles
from typing import Any

from interleaved import Timings, compile_everything, to_reach
from support.accounts import SystemSite
from support.users import PATHS

from gpulease import PROTOCOL
from gpulease.client import Client, connect
from gpulease.wire import pack

CONNECTIONS = 200
JOBS = 100_000
MOST = 5.0  # times as long as alone
MOST_MEMORY = 1024.0  # MiB
EACH = 4  # of each command in a round
READ = 1 << 20
PR_SET_DUMPABLE = 4


def message(verb: str, **fields: Any) -> bytes:
    return pack({"v": PROTOCOL, "do": verb, **fields})


ALL = {"all": True}
OPTIONS = {"cwd": "/tmp", "environment": {"PATH": "/bin"}}
EMPTY_WORDS = message("add", request={}, options={}, commands=[["x", *[""] * 9_000]] * 38, more=True)
EMPTY_TEXTS = message("add", request={}, options={}, commands=[], each=[{}] * 300_000, more=True)
LONG_WORDS = message("add", request={}, options={}, commands=[["x" * 100_000]] * 10, more=True)
HELD = message("add", request={}, options={**OPTIONS, "hold": True, "label": "b"}, commands=[["true"]] * 20_000)
NOTE = {"changes": {"note": "x"}}
LOADS: dict[str, tuple[bytes, ...]] = {
    "ls of 5,000 jobs": (message("ls", select={"state": "waiting"}, most=5000),),
    "ls of all kinds": (message("ls", all=True, most=5000),),
    "ids of all jobs": (message("ls", select=ALL, ids=True),),
    "show of all jobs": (message("show", select=ALL, environment=True),),
    "explain": (message("explain", id="5"),),
    "status": (message("status"),),
    "parts of batches that are never finished": (EMPTY_WORDS, EMPTY_TEXTS, LONG_WORDS),
    "subscriptions to all, and waits for all jobs": (
        message("subscribe", topics=["devices", "leases", "line", "jobs"]),
        message("subscribe", topics=["jobs"], select=ALL),
    ),
    "batches, and their removal": (HELD, message("rm", select={"label": "b"})),
    "edit of all jobs": (message("edit", select={"state": "waiting"}, **NOTE),),
    "kill and retry of all jobs": (message("kill", select=ALL), message("retry", select=ALL)),
}


class Hostile:
    """All of the load, in a process of its own user: each connection has a question under way at any time."""

    def __init__(self, user: pwd.struct_passwd, namespace: int, messages: tuple[bytes, ...], reads: bool) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            try:
                become(user, namespace)
                ask_for_ever(messages, reads)
            finally:
                os._exit(0)

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def become(user: pwd.struct_passwd, namespace: int) -> None:
    """That user, in the mount namespace of a process: one from elsewhere may have no jobs."""
    with open(f"/proc/{namespace}/ns/mnt") as mounts:
        if ctypes.CDLL(None).setns(mounts.fileno(), 0):
            sys.exit("The namespace cannot be entered.")
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # as after an exec


def ask_for_ever(messages: tuple[bytes, ...], reads: bool) -> None:
    """A connection that was refused or cut off is made anew."""
    poll, waiting = select.epoll(), {}
    turns = cycle(messages)

    def join() -> None:
        connected, _ = connect(start=False)
        connected.setblocking(False)
        waiting[connected.fileno()] = (connected, bytearray(next(turns)))
        poll.register(connected.fileno(), select.EPOLLOUT | (select.EPOLLIN if reads else 0))

    for _ in range(CONNECTIONS):
        join()
    while True:
        for descriptor, flags in poll.poll():
            connected, rest = waiting[descriptor]
            try:
                if flags & select.EPOLLIN and not connected.recv(READ):
                    raise ConnectionResetError
                if flags & select.EPOLLIN and not rest:
                    rest += next(turns)
                if rest:
                    del rest[: connected.send(rest)]
                if not rest and not reads:
                    rest += next(turns)
                poll.modify(descriptor, (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if rest else 0))
            except BlockingIOError:
                continue
            except OSError:
                del waiting[descriptor]
                connected.close()
                join()


class Worker:
    """The other user, who types commands."""

    def __init__(self, user: pwd.struct_passwd, python: str) -> None:
        self._user, self._command = user, [python, "-m", "gpulease"]

    def work(self, timings: Timings) -> None:
        for _ in range(EACH):
            taken = self._timed(timings, "get", "get", "--for", "1h")
            self._timed(timings, "release", "release", taken.strip())
            self._timed(timings, "run", "run", "--", "true")
            self._timed(timings, "ls", "ls")

    def _timed(self, timings: Timings, name: str, *words: str) -> str:
        begin = time.perf_counter()
        done = self._run([*self._command, *words])
        timings.setdefault(name, []).append(time.perf_counter() - begin)
        if done.returncode:
            sys.exit(f"{words} failed: {done.stderr}")
        return done.stdout

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        user, group = self._user.pw_uid, self._user.pw_gid
        return subprocess.run(words, user=user, group=group, extra_groups=[], cwd="/", capture_output=True, text=True)


def memory(pid: int) -> float:
    """MiB that are in use now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@contextmanager
def machine() -> Iterator[SystemSite]:
    """With a system broker, and accounts that are not this machine's."""
    site = SystemSite()
    try:
        site.start_broker()
        os.environ.update({**site.environ, **PATHS})
        yield site
    finally:
        site.close()


def fill(user: pwd.struct_passwd, namespace: int) -> None:
    """The hostile user's jobs."""
    pid = os.fork()
    if pid == 0:
        try:
            become(user, namespace)
            client, rest = Client(start=False), JOBS
            while rest:
                part = [["python", "train.py", "--seed", str(rest - at)] for at in range(min(10_000, rest))]
                client.ask("add", request={"gpus": 4}, options=OPTIONS, commands=part, token=str(rest))
                rest -= len(part)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def measure(worker: Worker, load: Callable[[], Hostile], rounds: int, pid: int) -> tuple[float, float, float]:
    alone: Timings = {}
    beside: Timings = {}
    most = 0.0
    for _ in range(rounds):
        worker.work(alone)
        hostile = load()
        time.sleep(1.0)  # until it is under way; not what is measured
        worker.work(beside)
        most = max(most, memory(pid))
        hostile.end()
    late = {name: quantiles(values, n=20)[-1] / quantiles(alone[name], n=20)[-1] for name, values in beside.items()}
    middle = max(median(values) / median(alone[name]) for name, values in beside.items())
    return max(late.values()), middle, most


def main(rounds: int, part: str) -> None:
    if os.geteuid() != 0:
        sys.exit("Only root can be two other users.")
    compile_everything()
    worst, most = 0.0, 0.0
    with machine() as site:
        one, other, pid = site.alice, site.bob, site.ask("ping")["pid"]
        site.ask("pause", queue=True)
        begin = memory(pid)
        inside = site.namespace.keeper.pid
        fill(one, inside)
        print(f"memory of the broker: {begin:.0f} MiB, with {JOBS} jobs {memory(pid):.0f} MiB")
        worker = Worker(other, site.python_of_all)
        loads = {name: (messages, True) for name, messages in LOADS.items()}
        loads["ls that is not read"] = (LOADS["ls of 5,000 jobs"], False)
        print(f"{'':<46} {'p95':>6} {'median':>7}   memory")
        for name, (messages, reads) in ((name, load) for name, load in loads.items() if part in name):
            load = partial(Hostile, one, inside, messages, reads)
            late, middle, used = measure(worker, load, rounds, pid)
            worst, most = max(worst, late), max(most, used)
            print(f"{name:<46} {late:>5.1f}x {middle:>6.1f}x {used:>5.0f} MiB", flush=True)
    to_reach("p95 beside a hostile user / alone", worst, MOST)
    to_reach("memory of the broker, in MiB", most, MOST_MEMORY)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2] if len(sys.argv) > 2 else "")
