"""What people type by mistake is said to be one, and what a lease does to a program is undone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.machine import Machine
from support.site import Site


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    """One broker for all who make a mistake."""
    site = Site()
    yield site
    site.close()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["get", "--for", "0"], 2, "above 0"),
        (["get", "--for", "1h", "--owner", "1"], 2, "both given"),
        (["get", "--export", "--json"], 2, "both given"),
        (["get", "--max-leases", "1"], 2, "--mem was not given"),
        (["release", "0", "--mine"], 2, "mine` was given too"),
        (["get", "--model", ","], 2, "--model is empty"),
        (["get", "--mem", "6"], 2, "as 6G"),
        (["get", "--devices", ""], 2, "unset variable"),
        (["get", "--model", "H100", "--no-wait"], 1, "There is no H100 here"),
        (["get", "--priority", "99999999999999999999"], 2, "whole number"),
        (["events", "--most", "0"], 2, "1 or more"),
        (["run", "--", "/tmp"], 1, "is a folder"),
    ],
)
def test_mistakes_have_their_code_and_two_sentences(shared: Site, words: list[str], code: int, said: str) -> None:
    done = shared.run(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout == (f"(exit {code})\n" if "--export" in words else "")  # so that `eval` fails too
    assert done.stderr.count("\n") == 2


def test_a_closed_output_takes_no_lease(machine: Machine) -> None:
    line = f"{shlex.join(machine.words('get'))} >&-"
    done = subprocess.run(["bash", "-c", line], env=machine.environ, capture_output=True, text=True)
    assert done.returncode == 2
    assert machine.json("status")["leases"] == []


def test_a_shell_that_only_asks_is_not_the_owner(machine: Machine) -> None:
    program = (
        "import subprocess, sys, json\n"
        f"line = {shlex.join(machine.words('get'))!r}\n"
        "assert subprocess.check_output(['sh', '-c', line], text=True) == '0\\n'\n"
        f"told = json.loads(subprocess.check_output({machine.words('status', '--json')!r}))\n"
        "print([lease['pid'] for lease in told['leases']])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env=machine.environ, stdout=subprocess.PIPE, text=True
    ) as process:
        text = process.communicate(timeout=60)[0]
    machine.run("stop")
    assert text == f"[{process.pid}]\n"


def test_excluding_again_keeps_the_note(machine: Machine) -> None:
    machine.run("exclude", "3", "--note", "fan broken")
    machine.run("exclude", "3")
    assert machine.json("status")["devices"][3]["note"] == "fan broken"
    machine.run("stop")


def test_a_state_file_that_was_removed_is_put_back_whole(machine: Machine) -> None:
    folder = machine.environ["GPULEASE_DIR"]
    assert machine.run("get", "--for", "1h").stdout == "0\n"
    for name in os.listdir(folder):
        if name.startswith("state.db"):
            os.unlink(os.path.join(folder, name))
    assert machine.run("get", "--for", "1h", "--no-wait").stdout == "1\n"
    machine.run("stop")
    assert [device["state"] for device in machine.json("status")["devices"]] == ["leased", "leased", "free", "free"]
    machine.run("stop")


def test_a_state_file_that_was_replaced_is_not_written_to(machine: Machine) -> None:
    path = os.path.join(machine.environ["GPULEASE_DIR"], "state.db")
    assert machine.run("get", "--for", "1h").stdout == "0\n"
    os.rename(path, f"{path}.away")
    with open(path, "w") as other:
        other.write("somebody's notes")
    done = machine.run("get", "--for", "1h", "--no-wait")
    assert (done.returncode, done.stdout) == (1, "")
    assert "was replaced" in done.stderr
    os.unlink(path)
    assert machine.run("get", "--for", "1h", "--no-wait").stdout == "1\n"
    machine.run("stop")


def test_a_broker_that_does_not_answer_is_named(machine: Machine) -> None:
    pid = machine.json("get", "--for", "1h") and machine.json("status")["broker"]["pid"]
    os.kill(pid, 19)
    try:
        done = subprocess.run(
            [sys.executable, "-c", SILENT], env=machine.environ, capture_output=True, text=True, timeout=60
        )
    finally:
        os.kill(pid, 18)
    machine.run("stop")
    assert "does not answer" in done.stdout


SILENT = """
from gpulease.client import connection
connection.ANSWER = connection.READ_ONLY = 1.0
take = {"request": {}, "kind": "acquire", "wait": 0}
for act in (lambda: connection.Client().ask("ping"), lambda: connection.acquire(take)):
    try:
        act()
    except Exception as error:
        print(error)
"""
