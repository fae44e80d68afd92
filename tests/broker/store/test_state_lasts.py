"""What a logout and a reboot leave: everything but the processes that they end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.accounts import USERS
from support.island import Island, fresh_island, gpulease  # noqa: F401  # pytest finds the fixture here
from support.needs import needs_root
from support.waiting import wait_until

FIRST = 61001

pytestmark = needs_root


class Session:
    """A user's commands, in one login after the other."""

    def __init__(self, island: Island, uid: int, variables: dict[str, str]) -> None:
        self.island, self.uid, self.variables = island, uid, variables

    def run(self, *words: str, code: int = 0) -> str:
        done = self.island.run(self.uid, gpulease(*words), **self.variables)
        assert done.returncode == code, done.stderr
        return done.stdout

    def job(self, id: str) -> Any:
        return json.loads(self.run("show", id, "--json"))["jobs"][0]

    def until(self, id: str, state: str) -> Any:
        return wait_until(lambda: job if (job := self.job(id))["state"] == state else None)


def test_after_a_logout_jobs_go_on_and_the_next_login_finds_them(island: Island) -> None:
    """Before, the next login started a second broker beside the first, which granted what a job still held."""
    session = Session(island, FIRST, island.login(FIRST))
    flag = f"{island.home(FIRST)['HOME']}/flag"
    running = session.run("add", "-n", "4", "--", "sh", "-c", f"while ! [ -e {flag} ]; do sleep 0.05; done").strip()
    waiting = session.run("add", "-n", "4", "--", "true").strip()
    before = wait_until(lambda: job if (job := session.job(running))["pid"] else None)
    pid = json.loads(session.run("status", "--json"))["broker"]["pid"]
    island.logout(FIRST)
    cron = Session(island, FIRST, island.quietly)
    assert cron.job(waiting)["state"] == "waiting"
    island.login(FIRST)
    assert session.job(running)["pid"] == before["pid"]
    assert session.run("get", "--for", "1h", "--no-wait", code=75) == ""
    reply = json.loads(session.run("status", "--json"))["broker"]
    assert reply["pid"] == pid
    island.sh(f"touch {flag}")
    assert session.until(running, "complete")["exit_code"] == 0
    session.until(waiting, "complete")


def test_sessions_of_one_user_with_other_run_folders_meet_one_broker(island: Island) -> None:
    login, cron = Session(island, FIRST, island.login(FIRST)), Session(island, FIRST, island.quietly)
    other = f"{island.home(FIRST)['HOME']}/other"
    island.sh(f"mkdir -m 700 {other} && chown {FIRST} {other}")
    elsewhere = Session(island, FIRST, {**island.quietly, "XDG_RUNTIME_DIR": other})
    taken = [session.run("get", "--for", "1h").strip() for session in (elsewhere, login, cron)]
    assert taken == ["0", "1", "2"]


def test_after_a_reboot_what_waited_waits_what_ran_is_lost_and_reservations_keep_their_time(island: Island) -> None:
    """Before, all state lay in /run, which a reboot empties."""
    island.broker(0, "--system")
    alice = USERS["alice"]
    root, user = Session(island, 0, {}), Session(island, alice, {})
    wait_until(lambda: island.found(alice) == "system /run/gpulease")
    reserved = json.loads(user.run("get", "--devices", "0", "--for", "5h", "--json"))
    root.run("set", "limits", "user:someone:gpus=1")
    ended = user.run("add", "--", "sh", "-c", "echo before").strip()
    user.until(ended, "complete")
    running = user.run("add", "-n", "3", "--", "sh", "-c", "echo halfway; exec sleep 600").strip()
    wait_until(lambda: "halfway" in user.run("log", running))
    waiting = user.run("add", "-n", "2", "--", "true").strip()
    held = user.run("add", "--hold", "--", "true").strip()
    island.reboot()
    assert "No broker" in island.found(alice)
    island.broker(0, "--system")
    wait_until(lambda: island.found(alice) == "system /run/gpulease")
    assert user.until(running, "lost")["exit_code"] is None
    assert user.run("log", running) == "halfway\n"
    assert user.job(ended)["state"] == "complete"
    assert user.job(held)["state"] == "held"
    user.until(waiting, "complete")
    assert "user:someone:gpus=1" in root.run("set")
    reply = json.loads(user.run("status", "--json"))
    (lease,) = reply["leases"]
    assert (lease["id"], lease["until"]) == (reserved["id"], pytest.approx(reserved["until"], abs=1))
