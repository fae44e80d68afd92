"""One user does what it can to the broker, and another wants to work: `get`, `release`, `run` and `ls`.

    python bench/hostile.py [--rounds N] [--load NAME]     as root: it makes two other users, in a namespace

The hostile user has many connections and jobs, and each kind of load is tried by itself: floods of `ls` and
`explain`, the largest batches there are that are never finished, subscriptions, waits for all jobs, answers that are
not read, verbs about all of its jobs, a process on a GPU whose memory map is locked for good, releases of many shares
by many names from below many processes, floods whose clients are gone, connections that are closed at once,
subscriptions that are not read. The load goes on and rests in turn, and the other user works in both. The figure is
how much longer the other's work takes: the 95th of 100 beside the load, over the same alone. It is printed for
commands, and for a program that takes a GPU and gives it back over one connection.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent / "common"), str(Path(__file__).parents[1] / "tests")]

import ctypes
import json
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
from statistics import median
from typing import Any, NamedTuple

from interleaved import Timings, compile_everything
from processes import resident, seconds
from report import TIMES, Report, Size, bench, percentile
from support.accounts import SystemSite
from support.frozen import frozen_program

import gpulease
from gpulease import PROTOCOL
from gpulease.client.connection import Client
from gpulease.client.discovery import connect
from gpulease.protocol.wire import Unpacker, pack

MOST = 5.0  # times as long as alone
MAX_MEMORY = 1024.0  # MiB
READ = 1 << 20
PAIR = "acquire + release"
REST = 600  # fifths of a second
PAIRS = 20  # of these in a round, for each command
WARM = 5  # of them that are not counted
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
    """All of the load, in a process group of its own user."""

    def __init__(self, user: pwd.struct_passwd, namespace: int, deed: Callable[[], None]) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setpgid(0, 0)
                become(user, namespace)
                deed()
            finally:
                os._exit(0)
        os.setpgid(self._pid, self._pid)

    def end(self) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def become(user: pwd.struct_passwd, namespace: int) -> None:
    """That user, in the mount namespace of a process: one from elsewhere may have no jobs."""
    with open(f"/proc/{namespace}/ns/mnt") as mounts:
        if ctypes.CDLL(None).setns(mounts.fileno(), 0):
            sys.exit("The namespace cannot be entered.")
    os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))  # who lacks some may have no jobs
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # as after an exec


def ask_for_ever(connections: int, messages: tuple[bytes, ...], reads: bool) -> None:
    """Each connection has a question under way at any time. One that was refused or cut off is made anew."""
    poll, waiting = select.epoll(), {}
    turns = cycle(messages)

    def join() -> None:
        connected, _ = connect(start=False)
        connected.setblocking(False)
        waiting[connected.fileno()] = (connected, bytearray(next(turns)))
        poll.register(connected.fileno(), select.EPOLLOUT | (select.EPOLLIN if reads else 0))

    for _ in range(connections):
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


def freeze(program: str, folder: str) -> None:
    """A process on GPU 0 whose command line nobody can read."""
    words = [sys.executable, "-m", "gpulease", "simulate", "use", "0", "--", "unshare", "-Urm", program, folder, ""]
    while True:
        subprocess.run(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, check=False)  # it ends after a while


def release_shares(levels: int = 300, shares: int = 100) -> None:
    """From below many processes called `env`: hold many shares, and give them back by the same name many times."""
    for _ in range(levels):
        Path("/proc/self/comm").write_text("env")
        if os.fork():
            signal.pause()
    share = message("acquire", request={"gpus": 1, "memory": 1 << 28, "devices": ["3"]}, kind="acquire", wait=0)
    names = message("release", what=["3"] * 1024, if_held=True)
    connected, _ = connect(start=False)
    unpacker = Unpacker(16 << 20)
    while True:
        connected.sendall(share * shares + names)
        answers = 0
        while answers <= shares:
            answers += len(unpacker.feed(connected.recv(READ)))


def leave_behind(connections: int = 300) -> None:
    """Fill connections with questions, and be gone: again and again."""
    question = message("history") * 5000
    while True:
        pid = os.fork()
        if pid == 0:
            for connected in [connect(start=False)[0] for _ in range(connections)]:
                connected.setblocking(False)
                connected.send(question)
            os._exit(0)
        os.waitpid(pid, 0)


def end_wrongly() -> None:
    """Ask for much, read nothing, and end with what is no message."""
    data = message("set") * 200 + b"\xff\xff\xff\xff"
    while True:
        held = [connect(start=False)[0] for _ in range(50)]
        for connected in held:
            connected.sendall(data)
        time.sleep(0.5)


def connect_and_close() -> None:
    while True:
        connect(start=False)[0].close()


def subscribe_and_add(connections: int) -> None:
    """Subscriptions that nobody reads, and something new for each of them all the time."""
    held = [connect(start=False)[0] for _ in range(connections)]
    for connected in held:
        connected.sendall(message("subscribe", topics=["devices", "leases", "line", "jobs"]))
        if connected.fileno() % 2:
            connected.sendall(message("subscribe", topics=["jobs"]))
    adder = Client(start=False)
    while True:
        options = {**OPTIONS, "hold": True, "label": "news"}
        adder.ask("add", request={}, options=options, commands=[["true"]] * 100)
        adder.ask("rm", select={"label": "news"})


class Worker:
    """The other user, who types commands."""

    def __init__(self, user: pwd.struct_passwd, python: str) -> None:
        self._user, self._command = user, [python, "-m", "gpulease"]

    def work(self, timings: Timings, each: int) -> None:
        for _ in range(each):
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


class Program:
    """The other user's program, which takes a GPU and gives it back."""

    def __init__(self, user: pwd.struct_passwd, namespace: int) -> None:
        self._user, self._namespace = user, namespace

    def work(self, timings: Timings, each: int) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                become(self._user, self._namespace)
                os.write(writing, json.dumps([self._pair() for _ in range(PAIRS * each + WARM)]).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading) as answer:
            timings.setdefault(PAIR, []).extend(json.load(answer)[WARM:])
        os.waitpid(pid, 0)

    @staticmethod
    def _pair() -> float:
        begin = time.perf_counter()
        gpulease.acquire(wait=60).release()
        return time.perf_counter() - begin


@contextmanager
def machine() -> Iterator[SystemSite]:
    """With a system broker, and accounts that are not this machine's."""
    site = SystemSite()
    try:
        site.start_broker()
        os.environ.update(site.environ)
        yield site
    finally:
        site.close()


def fill(user: pwd.struct_passwd, namespace: int, jobs: int) -> None:
    """The hostile user's jobs."""
    pid = os.fork()
    if pid == 0:
        try:
            become(user, namespace)
            client, rest = Client(start=False), jobs
            while rest:
                part = [["python", "train.py", "--seed", str(rest - at)] for at in range(min(10_000, rest))]
                client.ask("add", request={"gpus": 4}, options=OPTIONS, commands=part, token=str(rest))
                rest -= len(part)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


class Beside(NamedTuple):
    """How much longer the worst of the other's commands took beside the load, and its program's leases."""

    late: float  # 95 of 100
    middle: float
    pair_late: float
    pair: float
    memory: float  # of the broker, MiB


def rest(pid: int) -> None:
    """Until the broker has done what an earlier load left it to do."""
    for _ in range(REST):
        before = seconds([pid])
        time.sleep(0.2)
        if seconds([pid]) - before < 0.02:
            return
    sys.exit(f"The broker is busy {REST // 5} seconds after a load has ended.")


def measure(
    workers: tuple[Worker, Program], load: Callable[[], Hostile], rounds: int, each: int, settle: float, pid: int
) -> Beside:
    alone: Timings = {}
    beside: Timings = {}
    most = 0.0
    for _ in range(rounds):
        rest(pid)
        for worker in workers:
            worker.work(alone, each)
        hostile = load()
        time.sleep(settle)  # until it is under way; not what is measured
        for worker in workers:
            worker.work(beside, each)
        most = max(most, resident(pid))
        hostile.end()
    pair = percentile(beside[PAIR], 95) / percentile(alone[PAIR], 95), median(beside.pop(PAIR)) / median(alone[PAIR])
    late = max(percentile(values, 95) / percentile(alone[name], 95) for name, values in beside.items())
    middle = max(median(values) / median(alone[name]) for name, values in beside.items())
    return Beside(late, middle, *pair, most)


def main(report: Report, load: str, rounds: int, each: int, settle: float, connections: int, jobs: int) -> None:
    if os.geteuid() != 0:
        sys.exit("This bench needs root, to be two other users.")
    compile_everything(report.quick)
    found = {}
    with machine() as site:
        alice, other, pid = site.alice, site.bob, site.ask("ping")["pid"]
        site.ask("pause", queue=True)
        begin = resident(pid)
        inside = site.namespace.keeper.pid
        fill(alice, inside, jobs)
        print(f"memory of the broker: {begin:.0f} MiB, with {jobs:,} jobs {resident(pid):.0f} MiB")
        workers = Worker(other, site.python_of_all), Program(other, inside)
        place = site.folder / "frozen"
        place.mkdir()
        os.chown(place, alice.pw_uid, alice.pw_gid)
        loads: dict[str, Callable[[], None]] = {
            name: partial(ask_for_ever, connections, asked, True) for name, asked in LOADS.items()
        }
        loads |= {
            "ls that is not read": partial(ask_for_ever, connections, LOADS["ls of 5,000 jobs"], False),
            "a process that cannot be read on a GPU": partial(freeze, frozen_program(), str(place)),
            "releases from far below, by many names": release_shares,
            "300 connections of questions left behind": leave_behind,
            "unread answers, then no message": end_wrongly,
            "connections that are closed at once": connect_and_close,
            "subscriptions that are not read, and news": partial(subscribe_and_add, connections // 2),
        }
        print(f"{'':<46} {'commands, p95':>14} {'median':>7} {'leases, p95':>12} {'median':>7}   memory")
        for name, deed in ((name, deed) for name, deed in loads.items() if load in name):
            start = partial(Hostile, alice, inside, deed)
            one = found[name] = measure(workers, start, rounds, each, settle, pid)
            print(
                f"{name:<46} {one.late:>13.1f}x {one.middle:>6.1f}x {one.pair_late:>11.1f}x {one.pair:>6.1f}x"
                f" {one.memory:>5.0f} MiB",
                flush=True,
            )
    report.value(
        "commands beside the worst load of a hostile user / alone, 95 of 100",
        [max(one.late for one in found.values())],
        TIMES,
        MOST,
    )
    report.value(
        "acquire + release beside the worst load of a hostile user / alone, 95 of 100",
        [max(one.pair_late for one in found.values())],
        TIMES,
        MOST,
    )
    report.value(
        "memory of the broker under these loads", [max(one.memory for one in found.values())], "MiB", MAX_MEMORY
    )


if __name__ == "__main__":
    bench(
        __doc__,
        main,
        load=Size("", "explain", "only the loads that have this in their name"),
        rounds=Size(2, 1, "rounds"),
        each=Size(5, 1, "of each command in a round"),
        settle=Size(1.0, 0.1, "seconds until a load is under way"),
        connections=Size(200, 20, "connections of the hostile user"),
        jobs=Size(100_000, 300, "its jobs"),
    )
