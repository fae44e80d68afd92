"""What is acknowledged survives; what is dead is proven dead; a full disk refuses and loses nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.needs import NAMESPACES, ONLY_ROOT
from support.site import Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

from gpulease.broker.edge.clock import Clock
from gpulease.system.identity import boot_id, start_time

ALL = [0, 1, 2, 3]


@contextmanager
def state_file(site: Site) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{site.directory}/state.db")) as database, database:
        yield database


def change_row(site: Site, table: str, change: dict[str, Any]) -> None:
    """As another life of the machine would have left it; no broker runs."""
    with state_file(site) as database:
        for key, body in database.execute(f"SELECT key, body FROM {table}").fetchall():
            document = json.loads(body)
            document["owner"].update(change)
            database.execute(f"UPDATE {table} SET body = ? WHERE key = ?", (json.dumps(document), key))


def test_a_pid_that_belongs_to_another_process_now_holds_nothing(site: Site) -> None:
    site.holder()
    site.kill_broker()
    impostor = site.popen(["sleep", "600"])
    change_row(site, "leases", {"pid": impostor.pid, "start_time": (start_time(impostor.pid) or 0) - 100})
    assert devices_of(site, "free") == ALL
    assert site.json("events")["events"][-1]["why"] == "its process ended while no broker ran"


def test_the_same_pid_and_start_time_of_another_boot_hold_nothing(site: Site) -> None:
    site.holder()
    site.kill_broker()
    change_row(site, "leases", {"boot_id": "another boot"})
    assert devices_of(site, "free") == ALL


def test_a_reservation_outlives_a_boot_and_a_request_of_the_last_boot_is_gone(site: Site) -> None:
    site.run("get", "-n", "4", "--for", "1h")
    waiting = site.start("run", "--", "true")
    wait_until(lambda: site.status()["line"])
    waiting.kill()
    waiting.wait()
    site.kill_broker()
    change_row(site, "leases", {"boot_id": "another boot"})
    change_row(site, "line", {"boot_id": "another boot"})
    shown = site.status()
    assert [lease["kind"] for lease in shown["leases"]] == ["reservation"]
    assert shown["line"] == []


def test_an_owner_that_ended_while_no_broker_ran_holds_nothing(site: Site) -> None:
    holder = site.holder("-n", "4")
    site.kill_broker()
    holder.kill()
    holder.wait()
    assert devices_of(site, "free") == ALL


def test_an_owner_that_lives_keeps_its_lease_through_ten_brokers(site: Site) -> None:
    holder = site.holder("-n", "2", "--note", "mine")
    before = site.status()["leases"]
    for _ in range(10):
        site.kill_broker()
        assert site.status()["leases"] == before
    assert holder.poll() is None


def test_ids_are_never_used_twice(site: Site) -> None:
    seen = set()
    for _ in range(3):
        seen.add(site.json("get", "--owner", str(os.getpid()))["id"])
        site.run("release", "--mine")
        site.kill_broker()
    assert len(seen) == 3


# -------------------------------------------------------------------- the clock


def test_the_clock_goes_on_when_the_wall_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    first = clock.now()
    monkeypatch.setattr(time, "time", lambda: first - 86400)
    assert clock.now() >= first
    assert Clock(clock.offset).now() >= first


def test_a_broker_started_after_the_clock_was_set_back_ends_a_reservation_in_time(site: Site) -> None:
    """The wall clock cannot be set here, so what the last broker wrote down is moved on by a day instead.

    And the end is brought near there too, since no reservation of seconds is sure to last until the broker is killed.
    """
    site.run("get", "--for", "1h")
    since = site.status()["leases"][0]["since"]
    site.kill_broker()
    with state_file(site) as database:
        ((body,),) = database.execute("SELECT body FROM facts WHERE key = 'clock'").fetchall()
        clock = json.loads(body)
        assert clock["boot_id"] == boot_id()
        clock["offset"] += 86400
        database.execute("UPDATE facts SET body = ? WHERE key = 'clock'", (json.dumps(clock),))
        ((key, body),) = database.execute("SELECT key, body FROM leases").fetchall()
        lease = json.loads(body)
        lease["until"], lease["since"] = time.time() + 86400 + 2, since + 86400
        database.execute("UPDATE leases SET body = ? WHERE key = ?", (json.dumps(lease), key))
    wait_until(lambda: devices_of(site, "free") == ALL)


def test_a_job_that_starts_at_a_time_means_the_wall_clock_that_was_set_since(site: Site) -> None:
    """As above: the wall clock is an hour ahead of what the last broker wrote down. Before, the job waited an hour."""
    site.ensure_broker()
    site.kill_broker()
    with state_file(site) as database:
        ((body,),) = database.execute("SELECT body FROM facts WHERE key = 'clock'").fetchall()
        clock = json.loads(body)
        clock["offset"] -= 3600
        database.execute("UPDATE facts SET body = ? WHERE key = 'clock'", (json.dumps(clock),))
    id = site.run("add", "--at", "in 1s", "--", "true").stdout.strip()
    assert site.run("wait", id).returncode == 0


# -------------------------------------------------------------------- the disk


@pytest.fixture
def small(site: Site) -> Iterator[Path]:
    """GPULEASE_DIR on a file system of its own that a test can fill."""
    if os.geteuid() != 0:
        pytest.skip(ONLY_ROOT)
    folder = Path(site.directory)
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "none", str(folder)])
    if mounted.returncode:
        pytest.skip(NAMESPACES)
    try:
        yield folder
    finally:
        site.kill_broker()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with open(ballast, "ab", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return ballast


def use_up(site: Site) -> Any:
    """What the log of the database has room for is still granted; gives back the refusal after that."""
    with site.raw() as client:
        for _ in range(2000):
            client.send("acquire", request={"memory": 1 << 20, "devices": ["2"]}, kind="acquire", wait=0)
            answer = client.receive()
            if "error" in answer:
                return answer["error"]
    raise AssertionError("the disk is not full")


def test_a_full_disk_refuses_with_a_clear_error_and_loses_nothing(site: Site, small: Path) -> None:
    holder = site.holder("--note", "kept")
    ballast = fill(small)
    refusal = None
    for _ in range(200):  # what the log of the database has room for is still granted
        done = site.run("get", "--owner", str(holder.pid), "--mem", "1M")
        if done.returncode:
            refusal = done
            break
    assert refusal is not None
    assert refusal.returncode == 1
    assert "could not be written" in refusal.stderr
    assert "disk is not full" in refusal.stderr
    assert refusal.stdout == ""
    leases = site.status()["leases"]
    assert leases[0]["note"] == "kept"
    waiting = site.run("run", "-n", "4", "--wait", "1s", "--", "true")
    assert waiting.returncode in (1, 75)
    ballast.unlink()
    wait_until(lambda: site.run("get", "--owner", str(holder.pid), "--mem", "1M").returncode == 0)
    assert {lease["id"] for lease in leases} <= {lease["id"] for lease in site.status()["leases"]}


def test_owners_that_end_and_reservations_that_run_out_on_a_full_disk_are_ended_later(site: Site, small: Path) -> None:
    holder = site.holder("--devices", "0")
    assert site.run("get", "--devices", "1", "--for", "4s").returncode == 0
    ballast = fill(small)
    assert "could not be written" in use_up(site)["what"]
    holder.kill()
    holder.wait()
    until = next(lease["until"] for lease in site.status()["leases"] if lease["until"])
    wait_until(lambda: time.time() > until + 0.5)
    ballast.unlink()
    wait_until(lambda: {0, 1} <= set(devices_of(site, "free")))


RELEASES = """
import os, sys, gpulease
lease = gpulease.acquire()
print(lease.id, flush=True)
sys.stdin.readline()
while True:
    try:
        lease.release()
        break
    except gpulease.errors.StateError:
        print("full", "CUDA_VISIBLE_DEVICES" in os.environ, flush=True)
        sys.stdin.readline()
print("released", "CUDA_VISIBLE_DEVICES" in os.environ, flush=True)
"""


def test_a_release_that_fails_on_a_full_disk_can_be_repeated(site: Site, small: Path) -> None:
    program = site.python(RELEASES)
    assert program.stdin is not None
    assert program.stdout is not None
    id = program.stdout.readline().strip()
    ballast = fill(small)
    use_up(site)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "full True\n"  # it is still held
    ballast.unlink()
    wait_until(lambda: site.run("get", "--owner", str(os.getpid()), "--mem", "1M").returncode == 0)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "released False\n"
    assert id not in [lease["id"] for lease in site.status()["leases"]]


def test_a_broker_that_finds_the_disk_full_says_so_and_starts_later(site: Site, small: Path) -> None:
    ballast = fill(small)
    done = site.run("get", "--owner", str(os.getpid()))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "disk" in done.stderr.lower()
    ballast.unlink()
    assert site.run("get", "--owner", str(os.getpid())).stdout == "0\n"


# -------------------------------------------------------------------- versions


def test_the_state_of_a_version_before_the_first_release_is_refused_and_left_alone(site: Site) -> None:
    os.makedirs(site.directory, 0o700)
    with state_file(site) as database:
        database.execute("PRAGMA user_version=4")
    done = site.run("get", "--owner", str(os.getpid()))
    assert (done.returncode, done.stdout) == (1, "")
    assert "written before gpulease 0.1.0 (version 4)" in done.stderr
    assert "Move the file away" in done.stderr
    with state_file(site) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (4,)


def test_the_state_of_a_newer_version_is_refused_and_left_alone(site: Site) -> None:
    os.makedirs(site.directory, 0o700)
    with state_file(site) as database:
        database.execute("PRAGMA user_version=99")
    for words in (("get", "--owner", str(os.getpid())), ("broker",)):
        done = site.run(*words)
        assert done.returncode == 1
        assert "newer gpulease (version 99" in done.stderr
        assert "Traceback" not in done.stderr
    with state_file(site) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (99,)


def test_a_state_that_is_no_database_is_refused_and_left_alone(site: Site) -> None:
    os.makedirs(site.directory, 0o700)
    Path(f"{site.directory}/state.db").write_text("my precious notes\n" * 1000)
    done = site.run("get", "--owner", str(os.getpid()))
    assert done.returncode == 1
    assert "state.db' is damaged: file is not a database" in done.stderr
    assert "Move the file away" in done.stderr
    assert Path(f"{site.directory}/state.db").read_text().startswith("my precious notes")


NONSENSE = {
    "jobs": """INSERT INTO jobs VALUES (1, 'waiting', 0, NULL, '{"id":1}')""",
    "leases": """INSERT INTO leases VALUES ('L1', '{"id":7}')""",
    "line": """INSERT INTO line VALUES ('L1', '[]')""",
    "facts": """INSERT OR REPLACE INTO facts VALUES ('number', '{"value":"x"}')""",
}


@pytest.mark.parametrize("table", NONSENSE)
def test_a_state_whose_documents_make_no_sense_is_called_damaged(site: Site, table: str) -> None:
    """Before, some of what is damaged ended in a traceback, or in `could not be started`."""
    site.ensure_broker()
    site.run("stop")
    with state_file(site) as database:
        database.execute(NONSENSE[table])
    done = site.run("get", "--owner", str(os.getpid()))
    assert done.returncode == 1
    assert "state.db' is damaged" in done.stderr
    assert "Traceback" not in done.stderr
    Path(site.directory, "broker.log").unlink()  # the traceback is there, for whoever mends it


def test_a_broker_with_few_descriptors_keeps_every_lease_of_a_living_owner(site: Site) -> None:
    """Started anew under a low limit, it cannot watch all owners: those count as alive, and their ends are noticed."""
    site.ensure_broker()
    owners = [site.popen(["sleep", "600"]) for _ in range(60)]
    with site.raw() as raw:
        for owner in owners:
            raw.send("acquire", request={"memory": 1 << 30}, kind="get", owner=owner.pid, wait=None)
            lease = raw.granted()["id"]
            assert raw.ask("taken", id=lease)["ok"]["taken"]
    site.kill_broker()
    site.popen(["prlimit", "--nofile=48:48", *site.words("broker")])
    wait_until(site.broker_pid)
    assert len(site.status()["leases"]) == 60
    owners[-1].kill()
    owners[-1].wait()
    wait_until(lambda: len(site.status()["leases"]) == 59)


def test_the_state_file_shrinks_while_the_broker_runs(site: Site) -> None:
    """Before, it kept the size that it had with the most jobs in it."""
    site.ensure_broker()
    path = Path(site.directory, "state.db")
    with site.raw() as raw:
        for number in range(20):
            options = {"cwd": "/", "hold": True, "environment": {"TEXT": f"{number}" + "x" * 500_000}}
            assert "ok" in raw.ask("add", request={}, options=options, commands=[["true"]])
        largest = path.stat().st_size
        assert largest > 4 << 20
        assert "ok" in raw.ask("rm", select={"ids": [[1, 20]]})
    wait_until(lambda: path.stat().st_size < largest / 2)
