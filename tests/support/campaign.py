"""Random shortages beside random kills, while jobs run and leases come and go; all from one seed.

Everything belongs to one user that is not root, since root has no limit of processes. The broker's folder and that of
its jobs are small disks in a mount namespace of their own.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from gpulease.errors import GpuleaseError
from support.accounts import Namespace
from support.campaign_crew import code_of
from support.faults import Faults
from support.queue_site import ENDS, QueueSite
from support.site import MARK
from support.users import User, becoming
from support.waiting import wait_for_end, wait_until

HERE = Path(__file__).parent
DISKS = {"": "size=12m,nr_inodes=100", "jobs": "size=4m,nr_inodes=1500"}
CREW = 6
FINISH = 150.0  # seconds for what is left when the last shortage is over


class Campaign:
    def __init__(self, seed: int, uid: int) -> None:
        self.dice = random.Random(seed)
        self.site = QueueSite(shared=True)
        self.proof = self.site.folder / "proof"
        self.proof.mkdir()
        self.proof.chmod(0o777)
        self._folder = self.site.directory
        Path(self._folder).mkdir()
        mounts = [
            f"mkdir -p {self._disk(name)} && {_mount(options, uid, self._disk(name))}"
            for name, options in DISKS.items()
        ]
        self._namespace = Namespace(self.site, " && ".join(mounts))
        self.site.directory = f"/proc/{self._namespace.keeper.pid}/root{self._folder}"
        self._user = User(self.site, uid)
        self.faults = Faults(self.site.folder, self._folder, seed)
        self.crew: list[subprocess.Popen[str]] = []
        self._adder = self._start("add")
        self.asked = 0  # jobs
        self.said: list[str] = []  # what was done, and when
        self._began = time.monotonic()
        for _ in range(CREW):
            self._recruit()
        wait_until(self.counts)

    def _disk(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _start(self, *words: str) -> subprocess.Popen[str]:
        role, *more = words
        script = [self._user.interpreter, str(HERE / "campaign_crew.py"), role, str(self.proof), *more]
        environ = {**self._user.environ, **self.faults.environ}
        words_ = self._namespace.words(*becoming(self._user.uid), *script)
        return self.site.popen(words_, environ=environ, cwd="/", stderr=None)

    def _recruit(self) -> None:
        self.crew.append(self._start("lease", str(self.dice.getrandbits(32))))

    def say(self, text: str) -> None:
        self.said.append(f"{time.monotonic() - self._began:6.2f} {text}")

    def story(self) -> str:
        wrong = self.proof / "wrong"
        return "\n".join([*self.said, wrong.read_text() if wrong.exists() else "", self.site.log()[-20000:]])

    # ---------------------------------------------------------------- who is there

    def pid_of(self, role: str) -> int | None:
        """Of the broker, the agent or the sampler that is there now."""
        broker = self.site.broker_pid()
        if broker is None or role == "broker":
            return broker
        with suppress(OSError):
            for pid in map(int, Path(f"/proc/{broker}/task/{broker}/children").read_text().split()):
                with suppress(OSError):
                    if f"gpulease.broker.{role}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
        return None

    def _victim(self) -> tuple[str, int | None]:
        role = self.dice.choice(("broker", "agent", "sampler", "crew", "crew"))
        if role != "crew":
            return role, self.pid_of(role)
        chosen = self.dice.choice(self.crew)
        return role, chosen.pid if chosen.poll() is None else None

    def _signal(self, pid: int, number: int) -> None:
        """To a process of this campaign, and to no other that has its number by now."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if f"{MARK}={self.site.folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    signal.pidfd_send_signal(descriptor, number)
            except FileNotFoundError:
                pass
            finally:
                os.close(descriptor)

    # ---------------------------------------------------------------- what happens to them

    def pause(self, longest: float) -> None:
        time.sleep(self.dice.random() * longest)  # a random instant

    def hit(self) -> None:
        """Kill somebody, or stop it for a moment."""
        kill = self.dice.random() < 0.6
        role, pid = self._victim()
        self.say(f"{'kill' if kill else 'stop'} {role} {pid}")
        if pid is None:
            return
        if kill:
            self._signal(pid, signal.SIGKILL)
            wait_for_end(pid)
            self._replace_killed()
            return
        self._signal(pid, signal.SIGSTOP)
        try:
            self.pause(0.3)
        finally:
            self._signal(pid, signal.SIGCONT)

    def _replace_killed(self) -> None:
        for one in [one for one in self.crew if one.poll() == -signal.SIGKILL]:
            self.crew.remove(one)
            self._recruit()

    @contextmanager
    def full(self, disk: str) -> Iterator[None]:
        path = Path(self.site.directory, disk, "fill")
        for size in (1 << 16, 1 << 12):
            with suppress(OSError), open(path, "ab", buffering=0) as file:
                while True:
                    file.write(bytes(size))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def without_inodes(self, disk: str) -> Iterator[None]:
        folder = Path(self.site.directory, disk)
        with suppress(OSError):
            for number in count():
                (folder / f"fill{number}").touch()
        try:
            yield
        finally:
            for path in folder.glob("fill[0-9]*"):
                path.unlink()

    @contextmanager
    def limited(self, role: str, which: str, most: int) -> Iterator[None]:
        """By the user itself, who may: root without all of its privileges may not."""
        pid = self.pid_of(role)
        words = ["prlimit", f"--pid={pid}", f"--{which}"]
        before = self._user.execute([*words, "-o", "SOFT", "--noheadings"]).stdout.strip()
        self._user.execute([*words[:2], f"{words[2]}={most}:"])
        try:
            yield
        finally:
            self._user.execute([*words[:2], f"{words[2]}={before}:"])

    @contextmanager
    def failing(self, error: int, one_in: int) -> Iterator[None]:
        self.faults.set(error, one_in)
        try:
            yield
        finally:
            self.faults.set(0, 0)

    def shortages(self) -> dict[str, Callable[[], Any]]:
        """Of each kind one. A job gets the limits of its agent: with less than all descriptors none begins."""
        dice = self.dice
        return {
            "full state": lambda: self.full(""),
            "full jobs": lambda: self.full("jobs"),
            "state without inodes": lambda: self.without_inodes(""),
            "jobs without inodes": lambda: self.without_inodes("jobs"),
            "broker without descriptors": lambda: self.limited("broker", "nofile", dice.randrange(3, 40)),
            "agent without descriptors": lambda: self.limited("agent", "nofile", 3),
            "broker without processes": lambda: self.limited("broker", "nproc", 1),
            "agent without processes": lambda: self.limited("agent", "nproc", 1),
            "input and output errors": lambda: self.failing(errno.EIO, dice.choice((3, 10, 40))),
            "no space now and then": lambda: self.failing(errno.ENOSPC, dice.choice((1, 10, 40))),
        }

    # ---------------------------------------------------------------- the work

    def add(self, jobs: int) -> None:
        assert self._adder.stdin is not None
        self._adder.stdin.write(f"{self.asked + 1} {self.asked + jobs} {self.dice.getrandbits(32)}\n")
        self._adder.stdin.flush()
        self.asked += jobs

    @property
    def leases(self) -> int:
        """How many came and went."""
        path = self.proof / "leases"
        return path.stat().st_size if path.exists() else 0

    def counts(self) -> dict[str, int]:
        """Jobs by state; nothing while the broker cannot tell."""
        try:
            return {"asked": self.asked, **self.site.ask("ls", most=1, all=True)["counts"]}
        except (OSError, GpuleaseError):
            return {}

    def ended(self) -> int:
        return sum(number for state, number in self.counts().items() if state in ENDS)

    def round(self, shortages: list[str], jobs: int, longest: float) -> None:
        """Shortages with hits in them, and afterwards work that shows that they are over."""
        self.say(", ".join(shortages))
        self.add(jobs)
        with ExitStack() as together:
            for name in shortages:
                together.enter_context(self.shortages()[name]())
            for _ in range(self.dice.randrange(1, 4)):
                self.pause(longest)
                self.hit()
            self.pause(longest)
        self.say(f"over: {self.leases} leases, {self.faults.failed} faults, {self.counts()}")
        before = self.leases
        wait_until(lambda: self.leases >= before + CREW, 90)

    def finish(self, leases: int) -> None:
        wait_until(lambda: self.ended() == self.asked and self.leases >= leases, FINISH, 0.05)
        self.say(f"done: {self.leases} leases, {self.counts()}")
        (self.proof / "stop").touch()
        self._adder.stdin and self._adder.stdin.close()
        assert [one.wait(60) for one in (*self.crew, self._adder)] == [0] * (len(self.crew) + 1)

    def judge(self) -> None:
        """Each job ran once and ended with its own code; nobody was two on a device, nor refused without need."""
        assert not (self.proof / "wrong").exists()
        assert "could not be handled" not in self.site.log()
        ran = sorted(map(int, (self.proof / "ran").read_text().split()))
        assert ran == list(range(1, self.asked + 1))
        jobs = self.site.jobs()
        odd = [job for job in jobs if (job["state"], job["exit_code"]) != _expected(int(job["command"][4]))]
        assert odd == []
        wait_until(lambda: [self.site.ask("status")[what] for what in ("leases", "line")] == [[], []])
        assert {device["state"] for device in self.site.ask("status")["devices"]} == {"free"}


def _expected(number: int) -> tuple[str, int]:
    code = code_of(number)
    return "failed" if code else "complete", code


def _mount(options: str, uid: int, folder: str) -> str:
    return f"mount -t tmpfs -o mode=700,uid={uid},gid={uid},{options} none {folder}"
