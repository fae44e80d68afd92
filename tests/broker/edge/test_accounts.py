"""One source of users and groups: it follows changes, and a directory that hangs keeps nobody else waiting."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from typing import Any

from support.accounts import GROUP, SystemSite, system_site  # noqa: F401  # pytest finds the fixture here
from support.other_users import needs_root
from support.waiting import wait_until

from gpulease.broker.edge.accounts import Accounts
from gpulease.model.peer import Account

pytestmark = needs_root
SOON = 5.0  # seconds


JOB: dict[str, Any] = {"request": {"gpus": 2}, "options": {"cwd": "/tmp", "environment": {}}, "commands": [["true"]]}


def asked(system: SystemSite, verb: str, groups: tuple[int, ...] = ()) -> str:
    """What becomes of bob's request for two GPUs: the key of the answer, or the error's text."""

    def ask() -> Any:
        with system.raw() as raw:
            if verb == "add":
                return raw.ask("add", **JOB)
            raw.acquire(2, SOON)
            while "waiting" in (reply := raw.receive()):
                continue
            return reply

    reply = system.namespace.as_user(system.bob, ask, groups)
    return str(reply["error"]["what"]) if "error" in reply else next(iter(reply))


def test_run_and_add_follow_a_users_new_group_alike(system: SystemSite) -> None:
    """After usermod, `run` obeyed the new limits and `add` the old ones for as long as the broker lived."""
    system.ask("set", name="limits", value="user:*:gpus=1 user:@team:gpus=2")
    assert "limit" in asked(system, "run")
    assert "limit" in asked(system, "add")
    system.accounts.change("group", f"team:x:{GROUP}:alice", f"team:x:{GROUP}:alice,bob")
    launcher = system.broker_pid()
    assert launcher is not None
    os.kill(launcher, signal.SIGHUP)
    wait_until(lambda: asked(system, "run") == "granted")
    assert asked(system, "add", (GROUP,)) == "ok"


def test_a_directory_that_hangs_keeps_nobody_waiting_who_is_known(system: SystemSite) -> None:
    """The loop looked users up itself, and whoever was new kept everybody waiting for the directory."""
    assert "ok" in system.told(system.alice, "ping")
    hanging = system.folder / "hanging"
    os.mkfifo(hanging)
    mount = system.namespace.words("mount", "--bind", str(hanging), "/etc/passwd")
    subprocess.run(mount, check=True, timeout=30)
    with system.raw() as known:
        pid = os.fork()
        if pid == 0:  # bob, of whom nothing is known yet
            os.setuid(system.bob.pw_uid)
            with system.raw() as new:
                os._exit("The directory of users does not answer" not in str(new.ask("ping")))
        begin = time.monotonic()
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            assert "ok" in known.ask("ping")
            assert time.monotonic() - begin < 30
            time.sleep(0.05)
        assert "ok" in known.ask("ping")
    begin = time.monotonic()
    assert "ok" in system.told(system.alice, "ping")
    assert time.monotonic() - begin < SOON


class Looked:
    """Accounts without a broker around them."""

    def __init__(self, **more: float) -> None:
        self.poll, self.lines = select.epoll(), list[str]()
        self.accounts = Accounts(self.poll, self.lines.append, **more)
        self.accounts.starting = False

    def wait(self, question: tuple[str, Any]) -> None:
        known: list[bool] = []
        self.accounts.when_known(question, lambda: known.append(True))
        while not known:
            if self.poll.poll(0.05):
                self.accounts.read()
            if self.accounts.due is not None and self.accounts.due <= time.monotonic():
                self.accounts.overdue()


def test_what_is_known_is_asked_for_again_after_a_while_and_serves_meanwhile() -> None:
    looked = Looked(fresh=0.2)
    assert looked.accounts.account(0) is None
    looked.wait(("uid", 0))
    account = looked.accounts.account(0)
    assert isinstance(account, Account)
    assert (account.name, account.exists, "root" in account.groups) == ("root", True, True)
    account.groups = ("stale",)
    time.sleep(0.25)
    assert looked.accounts.groups_of(0) == ("stale",)  # and is asked for now
    while looked.accounts.groups_of(0) == ("stale",):
        if looked.poll.poll(0.05):
            looked.accounts.read()
    assert "root" in account.groups
    looked.accounts.close()


def test_a_child_that_is_silent_or_ends_is_no_end_of_anything() -> None:
    looked = Looked(patience=2.0)
    looked.wait(("uid", 0))
    os.kill(looked.accounts._child.key[0], signal.SIGSTOP)
    looked.wait(("uid", 12345))
    assert looked.accounts.account(12345) is None
    assert len(looked.lines) == 1
    looked.wait(("user", "root"))
    assert looked.accounts.uid_of("root") == 0
    looked.accounts.close()


def test_names_that_a_stranger_asks_for_keep_nobody_waiting_and_are_not_kept_for_ever() -> None:
    looked = Looked()
    assert looked.accounts.uid_of("x" * (1 << 20)) is None
    for number in range(1500):
        looked.accounts.when_known(("user", f"name{number}"), lambda: None)
    looked.wait(("uid", 0))
    assert len(looked.accounts._names) > 1400, "who somebody is was asked for before them"
    looked.wait(("user", "name1499"))
    assert len(looked.accounts._answers) <= 1001
    assert looked.accounts.uid_of("name1499") is None
    looked.accounts.close()
