"""Whose jobs a verb is about: one's own, unless root names others."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.accounts import SystemSite
from support.other_users import needs_root

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
    assert system.run("rm", "last").stdout == f"removed {own}\n"
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
