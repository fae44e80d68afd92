"""People with a broker each, on one machine: what two users have who install gpulease for themselves."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.machine import listener_at
from support.site import Site
from support.users import User
from support.waiting import wait_for_end, wait_until

ADA, BOB, EVE = 61101, 61102, 61666
STAY = "import sys; print('ready', flush=True); sys.stdin.read()"
KEEPER = b"gpulease.broker.neighbours.claim_keeper"


class Person(User):
    def __init__(self, site: Site, uid: int) -> None:
        super().__init__(site, uid)
        self.directory = str(self.home / "dir")
        self.environ["GPULEASE_DIR"] = self.directory
        # Safe-gpu's lock is one for the machine, and a test beside this one may hold it.
        folder = self.folder(Path(self.directory), 0o700)
        (folder / "config.toml").write_text('neighbours.safe-gpu = "off"\n')
        (folder / "config.toml").chmod(0o644)

    def broker(self) -> int | None:
        return listener_at(self.directory)

    def keeper(self) -> int | None:
        """The process that holds the broker's claims with it."""
        for folder in Path("/proc").iterdir():
            try:
                ours = folder.name.isdigit() and folder.stat().st_uid == self.uid
                words = (folder / "cmdline").read_bytes().split(b"\0") if ours else []
                if KEEPER in words and words[6] == str(self.site.state).encode():
                    return int(folder.name)
            except (OSError, IndexError):
                continue
        return None

    def kill(self, pid: int | None) -> None:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)

    def status(self) -> Any:
        import json

        done = self.run("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stays(self) -> subprocess.Popen[str]:
        """A process that can own a lease, until its input ends."""
        process = self.popen([self.interpreter, "-c", STAY])
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def gets(self, *words: str) -> str:
        done = self.run("get", "--no-wait", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refused(self) -> bool:
        """Nothing is free for this user."""
        done = self.run("get", "--no-wait", "--for", "1m")
        assert done.returncode in (0, 75), done.stderr
        return done.returncode == 75

    def log(self) -> str:
        path = Path(self.directory, "broker.log")
        return path.read_text() if path.exists() else ""


class Village:
    def __init__(self, count: int) -> None:
        self.site = Site(count, shared=True)
        self.people: list[Person] = []

    def person(self, uid: int) -> Person:
        self.people.append(Person(self.site, uid))
        return self.people[-1]


def village(count: int) -> Iterator[Village]:
    made = Village(count)
    try:
        yield made
        for person in made.people:
            assert "Traceback" not in person.log(), person.log()
    finally:
        made.site.close()


@pytest.fixture(name="one_gpu")
def village_with_one_gpu() -> Iterator[Village]:
    yield from village(1)


def free_within(person: Person, seconds: float = 10.0) -> None:
    """The GPU can be had."""
    wait_until(lambda: not person.refused(), seconds, pause=0.1)
