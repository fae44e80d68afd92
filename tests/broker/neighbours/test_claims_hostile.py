"""Users who want to stop others' brokers, keepers that hang or lack something: what is held stays so, and no longer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.people import ADA, BOB, EVE, Person, Village, free_within, village_with_one_gpu  # noqa: F401
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming other users needs root")

LINGERING = (Path(__file__).parents[2] / "support" / "lingering.py").read_text()
# `python -c … holder|guest NAME`: it sends a descriptor that keeps whoever drops its last copy; a holder to who asks.
SENDS = """
import sys, time
what, name = sys.argv[1], sys.argv[2].replace("@", chr(0))
one = socket.socket(socket.AF_UNIX)
kept = []
def send(to):
    passed, deaf = lingering(60)
    socket.send_fds(to, [b"{}\\n"], [passed.fileno()])
    passed.close()
    kept.append(deaf)
if what == "holder":
    one.bind(name)
    one.listen(8)
    print("ready", flush=True)
    one, _ = one.accept()
    print("asked", flush=True)
    sys.stdin.readline()
else:
    one.connect(name)
send(one)
print("ready", flush=True)
sys.stdin.read()
"""


def sends(eve: Person, what: str, name: str) -> subprocess.Popen[str]:
    process = eve.popen([eve.interpreter, "-c", LINGERING + SENDS, what, name])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
    return process


@contextmanager
def stopped(pid: int | None) -> Iterator[None]:
    """So that what is sent is read only when the sender has no copy of it any more."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


def claim(home: Village, uuid: str) -> str:
    seen = os.stat(home.site.state)
    return f"@gpulease/claim/{seen.st_dev:x}-{seen.st_ino:x}/{uuid}"


def answers(person: Person) -> None:
    began = time.monotonic()
    assert person.run("events").returncode == 0
    assert time.monotonic() - began < 10.0


def test_who_holds_a_claim_and_sends_a_descriptor_that_lingers_stops_no_broker(one_gpu: Village) -> None:
    bob, eve = one_gpu.person(BOB), one_gpu.person(EVE)
    answers(bob)
    hostile = sends(eve, "holder", claim(one_gpu, bob.status()["devices"][0]["uuid"]))
    assert hostile.stdout is not None
    assert hostile.stdin is not None
    waiting = bob.start("run", "--", "true")
    assert hostile.stdout.readline() == "asked\n"
    with stopped(bob.broker()):
        print(file=hostile.stdin, flush=True)
        assert hostile.stdout.readline() == "ready\n"
    answers(bob)
    assert bob.status()["devices"][0]["holder"]["uid"] == EVE
    assert waiting.poll() is None


@pytest.mark.parametrize("accepted", [True, False])
def test_who_asks_about_a_claim_and_sends_a_descriptor_that_lingers_stops_no_broker(
    one_gpu: Village, accepted: bool
) -> None:
    """Accepted or not when the claim is given back."""
    ada, bob, eve = one_gpu.person(ADA), one_gpu.person(BOB), one_gpu.person(EVE)
    assert ada.gets("--for", "10m") == "0"
    name = claim(one_gpu, ada.status()["devices"][0]["uuid"])
    if accepted:
        sends(eve, "guest", name)
        assert ada.run("release", "--mine").returncode == 0
    else:
        with stopped(ada.broker()):
            releasing = ada.start("release", "--mine")
            sends(eve, "guest", name)
        assert releasing.wait(20) == 0
    answers(ada)
    free_within(bob)


def test_who_asks_about_a_claim_and_sends_a_descriptor_that_lingers_stops_no_keeper(one_gpu: Village) -> None:
    ada, bob, eve = one_gpu.person(ADA), one_gpu.person(BOB), one_gpu.person(EVE)
    owner = ada.stays()
    assert ada.gets("--owner", str(owner.pid)) == "0"
    name = claim(one_gpu, ada.status()["devices"][0]["uuid"])
    ada.kill(ada.broker())
    sends(eve, "guest", name)
    keeper = ada.keeper()
    owner.kill()
    owner.wait()
    free_within(bob)
    wait_until(lambda: ada.keeper() is None, 20)
    assert keeper is not None


def test_a_client_that_sends_a_descriptor_that_lingers_stops_no_broker(one_gpu: Village) -> None:
    """As anybody can do to a system broker."""
    bob = one_gpu.person(BOB)
    answers(bob)
    with stopped(bob.broker()):
        sends(bob, "guest", f"{bob.directory}/socket")
    answers(bob)


def test_nobody_else_comes_to_a_keeper(one_gpu: Village) -> None:
    """Whoever filled its queue would have the next broker go on without the claims, which then outlast their leases."""
    ada, eve = one_gpu.person(ADA), one_gpu.person(EVE)
    assert ada.gets("--for", "10m") == "0"
    path = f"{ada.directory}/keeper"
    os.chmod(ada.directory, 0o755)
    os.chmod(ada.home, 0o755)
    code = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"
    assert "PermissionError" in eve.python(code, path).stderr
    assert ada.python(code, path).returncode == 0


def test_a_keeper_that_hangs_is_waited_for_and_not_replaced(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    assert ada.gets("--for", "10m") == "0"
    keeper = ada.keeper()
    assert keeper is not None
    os.kill(keeper, signal.SIGSTOP)
    ada.kill(ada.broker())
    row = ada.status()["devices"][0]
    assert (row["state"], row["note"]) == ("leased", f"held through {ADA}'s own gpulease too")
    assert "does not answer" in ada.run("doctor").stdout
    assert bob.refused()
    os.kill(keeper, signal.SIGCONT)
    wait_until(lambda: ada.status()["devices"][0]["note"] is None)
    assert ada.keeper() == keeper
    assert ada.run("release", "--mine").returncode == 0
    free_within(bob)


def sockets_of(pid: int | None) -> int:
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found += os.readlink(one).startswith("socket:")
    return found


def test_a_keeper_that_has_no_descriptor_left_holds_on(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    owner = ada.stays()
    assert ada.gets("--owner", str(owner.pid)) == "0"
    keeper = ada.keeper()
    wait_until(lambda: sockets_of(keeper) == 4)  # it has the shelf
    limit = ["prlimit", "--pid", str(keeper)]
    assert ada.execute([*limit, "--nofile=3:"]).returncode == 0
    ada.kill(ada.broker())
    assert bob.refused()
    assert ada.keeper() == keeper
    assert ada.execute([*limit, "--nofile=1000:"]).returncode == 0
    wait_until(lambda: ada.status()["devices"][0]["note"] is None)
    assert ada.run("release", "--mine").returncode == 0
    free_within(bob)
