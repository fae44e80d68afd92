"""Whose jobs a verb is about: one's own, unless root names others."""

from __future__ import annotations

import os
import pty
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.accounts import SystemSite
from support.other_users import needs_root
from support.waiting import read_terminal

pytestmark = needs_root


@pytest.fixture(name="system")
def site_with_jobs_of_root() -> Iterator[SystemSite]:
    site = SystemSite()
    try:
        os.mkdir(site.directory, 0o755)
        Path(site.directory, "config.toml").write_text("root-jobs = true\n")
        site.start_broker()
        yield site
    finally:
        site.close()


def hold(site: SystemSite, user: pwd.struct_passwd) -> int:
    found: int = site.add(user, "true", hold=True)["ok"]["first"]
    return found


def test_all_of_root_is_roots_own_unless_others_are_named(system: SystemSite) -> None:
    """`kill all` as root killed the jobs of every user."""
    one, other = system.alice, system.bob
    own = hold(system, pwd.getpwuid(0))
    ones, others = hold(system, one), hold(system, other)
    assert system.run("kill", "all").stdout == f"killed {own}\n"
    assert system.run("retry", "--state", "killed").returncode == 0
    assert system.run("rm", "last", "--wait").stdout.endswith(f"removed {own}\n")
    assert system.run("kill", "--user", one.pw_name).stdout == f"killed {ones}\n"
    assert system.run("kill", "all", "--all-users").stdout == f"killed {others}\n"
    assert system.run("clean").stdout == "nothing to do\n"
    assert system.run("rm", str(ones)).stdout == f"removed {ones}\n"
    assert system.run("clean", "all", "--all-users").stdout == f"forgot {others}\n"


def test_others_change_nobody_elses_however_they_are_named(system: SystemSite) -> None:
    one, other = system.alice, system.bob
    mine = hold(system, one)
    for select in ({"user": one.pw_name}, {"all": True, "user": "*"}, {"ids": [[mine, mine]]}):
        assert system.told(other, "kill", select=select)["error"]["code"] == "not-permitted"
    assert system.told(other, "kill", select={"user": "no-such-user"})["error"]["code"] == "not-found"
    assert system.told(other, "kill", select={"user": 5})["error"]["code"] == "usage"
    assert system.job(mine)["state"] == "held"


def test_everybody_may_look_by_user(system: SystemSite) -> None:
    one, other = system.alice, system.bob
    ones, others = hold(system, one), hold(system, other)
    own = hold(system, pwd.getpwuid(0))
    seen = system.told(other, "ls", select={"user": one.pw_name})["ok"]["jobs"]
    assert [job["id"] for job in seen] == [ones]
    assert [job["id"] for job in system.told(other, "ls", select={"mine": True})["ok"]["jobs"]] == [others]
    assert [job["id"] for job in system.json("ls", "--mine")["jobs"]] == [own]
    assert [job["id"] for job in system.json("ls", "--user", str(one.pw_uid))["jobs"]] == [ones]


def test_a_user_and_all_users_do_not_go_together(system: SystemSite) -> None:
    assert system.run("kill", "--user", "root", "--all-users").returncode == 2
    assert system.run("kill", "--all-users").returncode == 2
    assert system.run("kill", "--user", "").returncode == 2


def asked(site: SystemSite, answer: str, *words: str) -> tuple[str, int | None, str]:
    """The question at a terminal, the exit code and what was printed after this answer."""
    ours, theirs = pty.openpty()
    process = site.start(*words, stdin=theirs, stderr=theirs)
    os.close(theirs)
    question = read_terminal(ours, b"[y/N] ").decode()
    os.write(ours, answer.encode())
    printed = process.communicate(timeout=60)[0]
    os.close(ours)
    return question, process.returncode, printed


def test_root_is_asked_before_all_users_jobs_are_changed(system: SystemSite) -> None:
    ids = [hold(system, user) for user in (system.alice, system.alice, system.bob)]
    question, code, printed = asked(system, "\n", "kill", "all", "--all-users")
    assert "kill 3 jobs of 2 users (" in question
    assert (code, printed) == (1, "nothing done\n")
    assert [system.job(id)["state"] for id in ids] == ["held"] * 3
    question, code, printed = asked(system, "y\n", "rm", "2-3", "--all-users")
    assert "rm 2 jobs of 2 users (" in question
    assert (code, printed) == (0, "removed 2-3\n")
    assert system.run("kill", "all").returncode == 1
    assert "--user" in system.run("kill", "all").stderr


def test_root_gives_a_users_newest_job_another_place(system: SystemSite) -> None:
    system.ask("pause", queue=True)
    for user in (system.alice, system.bob):
        system.add(user, "true")
    assert system.run("move", "last", "--user", system.alice.pw_name).stdout == "moved 1\n"
    assert system.run("move", "1", "--user", system.bob.pw_name).returncode == 1
