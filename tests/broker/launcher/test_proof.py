"""Nothing is run for whom the launcher has not proven, nor for a process whose sandbox its jobs would leave."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

import pytest
from support.accounts import SystemSite, system_site  # noqa: F401  # pytest finds the fixture here
from support.other_users import as_user, needs_root
from support.queue_site import pick
from support.raw import Raw

pytestmark = needs_root
PR_SET_NO_NEW_PRIVS = 38
JOB: dict[str, Any] = {"request": {}, "options": {"cwd": "/", "environment": {}}, "commands": [["true"]]}


def add_of_a_process_that_is_gone(site: SystemSite) -> Any:
    """What is told at a connection whose maker has ended: its child asks there."""
    heard, tell = os.pipe()
    gone, ended = os.pipe()
    maker = os.fork()
    if maker == 0:
        raw = site.raw()
        if os.fork() == 0:
            os.close(ended)
            os.read(gone, 1)
            os.write(tell, json.dumps(raw.ask("add", **JOB)).encode())
        os._exit(0)
    os.waitpid(maker, 0)
    os.close(ended)
    os.close(tell)
    with open(heard) as answer:
        return json.load(answer)


def in_a_sandbox(site: SystemSite, verb: str, **fields: Any) -> Any:
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    with site.raw() as raw:
        return raw.ask(verb, **fields)


def test_a_client_that_is_gone_is_refused_and_no_other_gets_its_answer(system: SystemSite) -> None:
    """Its proof failed without an answer, so that each answer after it was taken for that of the one before."""
    for _ in range(2):
        reply = system.as_user(system.alice, lambda: add_of_a_process_that_is_gone(system))
        assert reply["error"]["code"] == "not-permitted"
    refused = system.as_user(system.alice, lambda: in_a_sandbox(system, "add", **JOB))
    assert refused["error"]["code"] == "not-permitted"
    assert system.add(system.bob, "true")["ok"]


def test_from_a_sandbox_a_job_that_waits_is_given_no_other_command(system: SystemSite) -> None:
    id = system.add(system.alice, "true", hold=True)["ok"]["first"]
    changes = {"command": ["sh", "-c", "id"]}
    reply = system.as_user(system.alice, lambda: in_a_sandbox(system, "edit", select=pick(id), changes=changes))
    assert reply["error"]["code"] == "not-permitted"
    assert system.job(id)["command"] == ["sh", "-c", "true"]
    assert system.told(system.alice, "edit", select=pick(id), changes=changes)["ok"]["ids"] == [id]


def test_from_another_root_folder_nothing_is_added(system: SystemSite) -> None:
    """A job would have the whole machine before it."""
    above = str(system.folder.parent)

    def enter() -> None:
        with open(f"/proc/{system.namespace.keeper.pid}/ns/mnt") as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
        os.chroot(above)

    def add() -> Any:
        with Raw(system.directory.removeprefix(above)) as raw:
            return raw.ask("add", **JOB)

    assert as_user(system.alice, add, enter)["error"]["code"] == "not-permitted"


@pytest.mark.parametrize("verb", ["retry", "start", "resume"])
def test_from_a_sandbox_no_job_is_run_again(system: SystemSite, verb: str) -> None:
    """It may be a script that the sandbox has written anew."""
    id = system.add(system.alice, "true", hold=verb != "retry")["ok"]["first"]
    if verb == "retry":
        system.end(id)
    reply = system.as_user(system.alice, lambda: in_a_sandbox(system, verb, select=pick(id)))
    assert reply["error"]["code"] == "not-permitted"


def test_from_a_sandbox_no_address_for_notices_is_chosen(system: SystemSite) -> None:
    """A process outside of it would send what the sandbox wrote."""
    file = f"{system.alice.pw_dir}/notify.json"
    reply = system.as_user(system.alice, lambda: in_a_sandbox(system, "notify", file=file))
    assert reply["error"]["code"] == "not-permitted"
    assert system.as_user(system.alice, lambda: in_a_sandbox(system, "notify"))["ok"]["file"] is None
    assert system.told(system.alice, "notify", file=file)["ok"]["file"] == file
