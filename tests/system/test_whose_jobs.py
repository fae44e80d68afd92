"""Whose jobs a verb is about: one's own, unless root names others."""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from typing import Any

import pytest
from support.other_users import as_user, needs_root, two_users
from support.queue_site import QueueSite
from support.waiting import wait_until

pytestmark = needs_root


@pytest.fixture(name="system")
def system_site() -> Iterator[QueueSite]:
    site = QueueSite(shared=True)
    try:
        site.start("broker", "--system")
        wait_until(site.broker_pid)
        yield site
    finally:
        site.close()


def told(site: QueueSite, user: pwd.struct_passwd, verb: str, **fields: Any) -> Any:
    def ask() -> Any:
        with site.raw() as raw:
            return raw.ask(verb, **fields)

    return as_user(user, ask)


def hold(site: QueueSite, user: pwd.struct_passwd) -> int:
    options = {"cwd": "/tmp", "environment": {"PATH": "/usr/bin:/bin"}, "hold": True}
    found: int = told(site, user, "add", request={}, options=options, commands=[["true"]])["ok"]["first"]
    return found


def test_all_of_root_is_roots_own_unless_others_are_named(system: QueueSite) -> None:
    """`kill all` as root killed the jobs of every user."""
    one, other = two_users()
    own = system.submit("true", hold=True)
    ones, others = hold(system, one), hold(system, other)
    assert system.run("kill", "all").stdout == f"killed {own}\n"
    assert system.run("retry", "--state", "killed").returncode == 0
    assert system.run("rm", "last").stdout == f"removed {own}\n"
    assert system.run("kill", "--user", one.pw_name).stdout == f"killed {ones}\n"
    assert system.run("kill", "all", "--all-users").stdout == f"killed {others}\n"
    assert system.run("clean").stdout == "nothing to do\n"
    assert system.run("rm", str(ones)).stdout == f"removed {ones}\n"
    assert system.run("clean", "all", "--all-users").stdout == f"forgot {others}\n"


def test_others_change_nobody_elses_however_they_are_named(system: QueueSite) -> None:
    one, other = two_users()
    mine = hold(system, one)
    for select in ({"user": one.pw_name}, {"all": True, "user": "*"}, {"ids": [[mine, mine]]}):
        assert told(system, other, "kill", select=select)["error"]["code"] == "not-permitted"
    assert told(system, other, "kill", select={"user": "no-such-user"})["error"]["code"] == "not-found"
    assert told(system, other, "kill", select={"user": 5})["error"]["code"] == "usage"
    assert system.job(mine)["state"] == "held"


def test_everybody_may_look_by_user(system: QueueSite) -> None:
    one, other = two_users()
    ones, others = hold(system, one), hold(system, other)
    own = system.submit("true", hold=True)
    seen = told(system, other, "ls", select={"user": one.pw_name})["ok"]["jobs"]
    assert [job["id"] for job in seen] == [ones]
    assert [job["id"] for job in told(system, other, "ls", select={"mine": True})["ok"]["jobs"]] == [others]
    assert [job["id"] for job in system.json("ls", "--mine")["jobs"]] == [own]
    assert [job["id"] for job in system.json("ls", "--user", str(one.pw_uid))["jobs"]] == [ones]


def test_a_user_and_all_users_do_not_go_together(system: QueueSite) -> None:
    assert system.run("kill", "--user", "root", "--all-users").returncode == 2
    assert system.run("kill", "--all-users").returncode == 2
    assert system.run("kill", "--user", "").returncode == 2
