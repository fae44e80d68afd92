"""Two people, each with a broker of their own: no GPU is ever granted to both, whoever is killed."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from support.people import ADA, BOB, EVE, Village, free_within, village, village_with_one_gpu  # noqa: F401
from support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming other users needs root")


def test_what_one_broker_granted_another_shows_and_does_not_grant(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    began = time.time()
    assert ada.gets("--for", "10m", "--note", "for a \x1b[31mdemo") == "0"
    before = bob.run("status").stdout  # without a broker of his own
    bob.run("events")
    for _ in range(2):
        after, row = bob.run("status").stdout, bob.status()["devices"][0]
        assert row["state"] == "outside"
        assert row["note"] == f"held through {ADA}'s own gpulease: for a [31mdemo"
        holder = row["holder"]
        assert (holder["user"], holder["uid"], holder["kind"], holder["broker"]) == (
            str(ADA),
            ADA,
            "reservation",
            "own",
        )
        assert began - 1 < holder["since"] < time.time() + 1
        assert holder["pid"] == ada.broker()
    for text in (before, after):
        assert f"held through {ADA}'s own gpulease: for a [31mdemo, since " in text
        assert f"Several brokers share these GPUs: also that of {ADA}." in text
        assert "gpulease broker --shared" in text
        assert ", 0 free" in text
    assert bob.run("select").returncode == 75
    assert bob.refused()
    doctor = bob.run("doctor").stdout
    assert f"of {ADA}" in doctor
    assert "gpulease install --system" in doctor
    assert ada.status()["devices"][0]["state"] == "leased"


def test_who_waits_behind_anothers_lease_is_told_so_and_starts_when_it_ends(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    assert ada.gets("--for", "10m") == "0"
    waiting = bob.start("run", "--", "echo", "got it")
    id = wait_until(lambda: [row["id"] for row in bob.status()["line"]])[0]
    assert f"Held through {ADA}'s own gpulease." in bob.run("explain", id).stdout
    time.sleep(0.3)  # so that a connection that ends tells of the claim's end
    assert ada.run("release", "--mine").returncode == 0
    released = time.monotonic()
    assert waiting.communicate(timeout=PATIENCE)[0] == "got it\n"
    assert time.monotonic() - released < 5.0  # a second, on a machine that is not busy


def test_a_share_claims_the_device_whole(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    assert ada.gets("--for", "10m", "--mem", "10G") == "0"
    assert ada.gets("--for", "10m", "--mem", "10G") == "0"
    assert bob.run("get", "--no-wait", "--for", "1m", "--mem", "10G").returncode == 75
    first, second = (lease["id"] for lease in ada.status()["leases"])
    assert ada.run("release", first).returncode == 0
    assert bob.refused()
    assert ada.run("release", second).returncode == 0
    free_within(bob)


def test_the_leases_of_a_killed_broker_stay_claimed_until_their_owners_end(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    owner = ada.stays()
    assert ada.gets("--owner", str(owner.pid)) == "0"
    ada.kill(ada.broker())
    assert bob.refused()
    row = bob.status()["devices"][0]
    assert row["note"] == f"held through {ADA}'s own gpulease"
    keeper = ada.keeper()
    owner.kill()
    owner.wait()
    free_within(bob)
    wait_until(lambda: ada.keeper() is None)
    assert keeper is not None


def test_a_reservation_of_a_killed_broker_stays_claimed_until_its_time_is_over(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    began = time.monotonic()
    assert ada.gets("--for", "6s") == "0"
    ada.kill(ada.broker())
    assert bob.refused() or time.monotonic() - began > 6
    free_within(bob, PATIENCE)
    assert time.monotonic() - began >= 5.9


def test_the_next_broker_gives_back_what_the_killed_one_claimed(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    assert ada.gets("--for", "10m") == "0"
    keeper = ada.keeper()
    for _ in range(2):
        ada.kill(ada.broker())
        assert ada.status()["devices"][0]["note"] is None  # leased, and nobody else has it
        assert bob.refused()
    assert ada.keeper() == keeper
    assert ada.run("release", "--mine").returncode == 0
    free_within(bob)


def test_a_broker_that_was_stopped_leaves_its_leases_claimed(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    assert ada.gets("--for", "10m") == "0"
    assert ada.run("stop").returncode == 0
    assert bob.refused()
    assert ada.run("release", "--mine").returncode == 0
    free_within(bob)


def test_a_killed_keeper_is_replaced(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    assert ada.gets("--for", "10m") == "0"
    first = ada.keeper()
    ada.kill(first)
    wait_until(lambda: ada.keeper() not in (None, first))
    wait_until(lambda: ada.run("events").returncode == 0)  # the broker has had a turn since
    ada.kill(ada.broker())
    assert bob.refused()
    ada.status()
    assert ada.run("release", "--mine").returncode == 0
    free_within(bob)


def test_a_job_is_claimed_until_its_shell_ends(one_gpu: Village) -> None:
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    assert ada.run("add", "--", "sleep", "1000").returncode == 0
    pid = wait_until(lambda: [row["pid"] for row in ada.status()["leases"] if row["pid"]])[0]
    ada.kill(ada.broker())
    assert bob.refused()
    os.killpg(os.getpgid(pid), 9)
    free_within(bob, PATIENCE)


def test_broker_and_keeper_killed_at_once_and_then_the_conflict_is_shown(one_gpu: Village) -> None:
    """The one gap: nobody holds the claim then. What came of it is said by both."""
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    assert ada.gets("--for", "10m") == "0"
    keeper, broker = ada.keeper(), ada.broker()
    assert keeper is not None
    assert broker is not None
    os.kill(keeper, 19)  # SIGSTOP: it cannot see the other's end first
    ada.kill(broker)
    ada.kill(keeper)
    assert bob.gets("--for", "10m") == "0"
    row = ada.status()["devices"][0]
    assert (row["state"], row["note"]) == ("leased", f"held through {BOB}'s own gpulease too")
    assert f"held through {BOB}'s own gpulease too" in ada.run("doctor").stdout
    assert bob.run("release", "--mine").returncode == 0
    wait_until(lambda: ada.status()["devices"][0]["note"] is None)
    assert bob.refused()


HOSTILE = """
import os, socket, sys, threading, time
machine, *uuids = sys.argv[1:]
kept = []
def name(uuid): return f"\\0gpulease/claim/{machine}/{uuid}"
def take(uuid, backlog=8):
    one = socket.socket(socket.AF_UNIX); one.bind(name(uuid)); kept.append(one)
    if backlog is not None: one.listen(backlog)
    return one
def answer(one, say):
    while True:
        guest, _ = one.accept()
        kept.append(guest)
        say(guest)
def flood(guest):
    try:
        while True: guest.sendall(b"x" * 65536)
    except OSError: pass
take(uuids[0], None)                                                          # does not listen
take(uuids[1])                                                                # never answers
full = take(uuids[2], 0)
for _ in range(3):                                                            # lets nobody in
    one = socket.socket(socket.AF_UNIX); one.setblocking(False); kept.append(one)
    try: one.connect(name(uuids[2]))
    except OSError: pass
garbage = b'[' * 500 + b'\\xff\\x00{"note": 5}\\n'
texts = b'{"note": "\\\\u001b[2J' + b"y" * 500 + b'", "broker": ["root"], "user": "a", "since": 1e999, "kind": {}}\\n'
for uuid, say in zip(uuids[3:], (lambda g: g.sendall(garbage), flood, lambda g: g.close(), lambda g: g.sendall(texts))):
    threading.Thread(target=answer, args=(take(uuid), say), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_who_claims_everything_and_lies_is_named_and_stops_nobody() -> None:
    made = village(8)
    home = next(made)
    bob, eve = home.person(BOB), home.person(EVE)
    rows = bob.status()["devices"]
    uuids = [row["uuid"] for row in rows]
    seen = os.stat(home.site.state)
    words = [eve.interpreter, "-c", HOSTILE, f"{seen.st_dev:x}-{seen.st_ino:x}", *uuids[:7]]
    hostile = eve.popen(words)
    assert hostile.stdout is not None
    assert hostile.stdout.readline() == "ready\n"
    assert bob.gets("--for", "10m") == "7"
    assert bob.refused()
    for _ in range(3):
        began = time.monotonic()
        rows = bob.status()["devices"]
        assert time.monotonic() - began < 5.0
        assert [row["state"] for row in rows] == ["outside"] * 7 + ["leased"]
        assert {row["holder"]["uid"] for row in rows[:7]} == {EVE}
        assert {row["note"].partition(":")[0] for row in rows[:7]} == {f"held through {EVE}'s own gpulease"}
        assert all(len(row["note"]) < 200 and row["note"].isprintable() for row in rows[:7])
    assert rows[6]["holder"]["since"] is None
    hostile.kill()
    hostile.wait()
    wait_until(lambda: sum(row["state"] == "free" for row in bob.status()["devices"]) == 7)
    assert len(bob.gets("-n", "7", "--for", "10m").split(",")) == 7
    assert next(made, None) is None


def test_brokers_of_one_user_in_two_folders_do_not_grant_the_same(one_gpu: Village) -> None:
    ada = one_gpu.person(ADA)
    assert ada.gets("--for", "10m") == "0"
    other = {"GPULEASE_DIR": str(ada.home / "other")}
    assert ada.run("get", "--no-wait", "--for", "1m", **other).returncode == 75


def test_simulated_machines_with_the_same_devices_do_not_meet() -> None:
    first, second = village(1), village(1)
    ada, bob = next(first).person(ADA), next(second).person(BOB)
    assert ada.gets("--for", "1m") == bob.gets("--for", "1m") == "0"
    assert ada.status()["devices"][0]["uuid"] == bob.status()["devices"][0]["uuid"]
    assert [next(one, None) for one in (first, second)] == [None, None]


def test_a_network_namespace_of_its_own_sees_no_claims(one_gpu: Village) -> None:
    """As a container has it: documented, and so held here."""
    ada, bob = one_gpu.person(ADA), one_gpu.person(BOB)
    assert ada.gets("--for", "10m") == "0"
    words = ["unshare", "--net", "setpriv", "--reuid", str(BOB), "--regid", str(BOB), "--clear-groups"]
    got = subprocess.run(
        [*words, *bob.words("get", "--no-wait", "--for", "1m")],
        env=bob.environ, cwd="/", capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert got.stdout == "0\n", got.stderr
