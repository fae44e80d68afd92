"""Several brokers on one machine, several clients each, everybody killed at random: no GPU is ever held twice."""

from __future__ import annotations

import os
import random
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from support.people import Person, Village, village
from support.waiting import wait_until

CONTENDER = (Path(__file__).parents[2] / "support" / "contender.py").read_text()
# What is taken is no name, and nobody is found at any.
WITHOUT_CLAIMS = """
import socket
from gpulease.system import claims
claims.take = lambda name: socket.socket(socket.AF_UNIX)
claims.ask = lambda name: None
"""
# The broker alone holds its claims.
WITHOUT_KEEPER = """
import sys
if "gpulease.broker" in sys.orig_argv:
    from gpulease.broker.neighbours.claim_shelves import Shelves
    Shelves.put = lambda *more: None
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming other users needs root")


class Contest:
    def __init__(self, home: Village, people: list[Person]) -> None:
        self.folder, self.people = home.site.folder / "observer", people
        self.folder.mkdir()
        self.folder.chmod(0o777)
        self.seed = 0
        self.processes: list[tuple[Person, subprocess.Popen[str]]] = []

    def join(self, person: Person) -> None:
        self.seed += 1
        words = [person.interpreter, "-c", CONTENDER, str(self.folder), "1000000", str(self.seed), "share", "pause"]
        options = {"stdin": subprocess.DEVNULL, "stderr": None}
        self.processes.append((person, person.popen(words, **options)))

    def has_taken(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    def kill_owner(self, dice: random.Random) -> None:
        person, process = self.processes.pop(dice.randrange(len(self.processes)))
        process.kill()
        assert "DOUBLE" not in process.communicate()[0]
        self.join(person)

    def end(self) -> list[str]:
        (self.folder / "stop").touch()
        return [process.communicate(timeout=300)[0] for _, process in self.processes]


def kill(person: Person, what: str, dice: random.Random) -> None:
    """One of the two at a time, and the other once the first is replaced: see the decision on what is left."""
    pid = getattr(person, what)()
    time.sleep(dice.random() ** 3 * 0.2)  # a random instant, more often soon
    if pid is None or getattr(person, what)() != pid:
        return
    person.kill(pid)
    if what == "keeper":
        again = time.monotonic() + 6.0  # if several ended at once, the next comes after a pause
        wait_until(lambda: person.keeper() not in (None, pid) or time.monotonic() > again)
        person.run("events")
        person.run("events")  # the broker has had a turn in which it gave all its claims to the new one
    else:
        wait_until(person.broker)


def all_free(person: Person) -> bool:
    return {row["state"] for row in person.status()["devices"]} == {"free"}


def through_kills(brokers: int, contenders: int, kills: int) -> None:
    made = village(4)
    home = next(made)
    people = [home.person(61201 + number) for number in range(brokers)]
    contest, dice = Contest(home, people), random.Random(kills)
    for person in people:
        for _ in range(contenders):
            contest.join(person)
    for _, process in contest.processes:
        assert "DOUBLE" not in contest.has_taken(process)
    for number in range(kills):
        what = ("broker", "keeper", "broker", "owner")[number % 4]
        if what == "owner":
            contest.kill_owner(dice)
        else:
            kill(dice.choice(people), what, dice)
    outputs = contest.end()
    assert [output for output in outputs if "DOUBLE" in output] == []
    assert {process.returncode for _, process in contest.processes} == {0}
    for person in people:
        wait_until(partial(all_free, person))
    assert next(made, None) is None


@pytest.mark.timeout(300)
def test_two_brokers_contend_while_brokers_keepers_and_owners_are_killed() -> None:
    through_kills(brokers=2, contenders=2, kills=8)


@pytest.mark.long("neighbours")
@pytest.mark.timeout(3000)
def test_three_brokers_contend_through_two_hundred_kills() -> None:
    through_kills(brokers=3, contenders=3, kills=200)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "mutant",
    [WITHOUT_CLAIMS, pytest.param(WITHOUT_KEEPER, marks=pytest.mark.long("neighbours"))],
    ids=["claims", "keeper"],
)
def test_without_it_the_same_contest_finds_a_gpu_that_is_held_twice(mutant: str) -> None:
    made = village(4)
    home = next(made)
    people = [home.person(61201 + number) for number in range(2)]
    folder = home.site.folder / "mutant"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(mutant)
    contest = Contest(home, people)
    for person in people:
        person.environ["PYTHONPATH"] = str(folder)
        for _ in range(3):
            contest.join(person)

    def found() -> bool:
        """One broker is killed again and again, while the other has somebody who waits."""
        if (broker := people[0].broker()) is not None and mutant == WITHOUT_KEEPER:
            people[0].kill(broker)
        return any(process.poll() == 99 for _, process in contest.processes)

    said = "".join(contest.has_taken(process) for _, process in contest.processes)
    wait_until(found, 120, pause=1.0 if mutant == WITHOUT_KEEPER else 0.01)
    assert "DOUBLE" in said + "".join(contest.end())
    home.site.close()
