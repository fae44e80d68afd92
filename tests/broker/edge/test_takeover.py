"""State of an earlier version is taken over once, and a broker that runs is replaced, with nothing lost on the way."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import landed
from support.island import Island, gpulease
from support.needs import ONLY_ROOT
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.site import HOLD, Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_for_end, wait_until

from gpulease.broker.store.sqlite import SqliteStore

TAKE_OVER = """
import os, signal, sys
from gpulease.system import places
from gpulease.broker import home; from gpulease.broker.edge import takeover
from gpulease.broker.store.sqlite import SqliteStore
place = places.Place("own", sys.argv[1], sys.argv[2])
house, steps = home.Home(place), int(sys.argv[3])

def count(event, arguments):
    global steps
    if event.startswith(("os.", "open", "sqlite3", "fcntl", "socket")):
        steps -= 1
        if steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
takeover.enter(house, False)
print(takeover.take_over(place, False))
SqliteStore(place.kept("state.db")).close()
"""

# The same in a child for each line of the input: the modules are loaded once.
MANY = """
import os, sys
from gpulease.system import places
from gpulease.broker import home; from gpulease.broker.edge import takeover
from gpulease.broker.store.sqlite import SqliteStore
for line in sys.stdin:
    if not (child := os.fork()):
        sys.argv[1:], sys.stdout = line.split(), sys.stderr
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
"""


def take_over(old: Path, new: Path, steps: int = 0) -> subprocess.CompletedProcess[str]:
    """In a process that kills itself at the given step: a system call that Python tells of."""
    environ = {**os.environ, "HOME": str(old.parent)}
    environ.pop("GPULEASE_SIMULATE", None)
    words = [sys.executable, "-c", TAKE_OVER, str(old), str(new), str(steps)]
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)


@contextmanager
def taking_over(old: Path, new: Path) -> Iterator[Callable[[int], int]]:
    """The exit codes of processes that kill themselves at the given step."""
    environ = {**os.environ, "HOME": str(old.parent)}
    environ.pop("GPULEASE_SIMULATE", None)
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", MANY + TAKE_OVER]
    with subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, answers = process.stdin, process.stdout

        def at(steps: int) -> int:
            told.write(f"{old} {new} {steps}\n")
            return int(answers.readline())

        yield at
        told.close()


def known(path: Path) -> dict[str, Any]:
    with closing(SqliteStore(str(path))) as store:
        jobs = {job["id"]: job["state"] for job in store.jobs()}
        leases = {id: lease["until"] for id, lease in store.load("leases").items()}
        settings = {name: document["text"] for name, document in store.load("settings").items()}
        return {"jobs": jobs, "leases": leases, "settings": settings, "excluded": len(store.load("excluded"))}


EVERYTHING = {
    "jobs": {1: "complete", 2: "waiting", 3: "held"},
    "leases": {"L1": 1881252917.7254837},
    "settings": {"keep-memory": "0.5", "quotas": "user:someone:gpus=1"},
    "excluded": 1,
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    landed.write_state(folder / "state.db")
    return folder


def test_state_of_an_earlier_version_is_taken_over_once(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "state"
    assert take_over(old, new).stdout == f"{old}\n"
    assert known(new / "state.db") == EVERYTHING
    with closing(SqliteStore(str(new / "state.db"))) as store:
        moved = store.get("facts", "moved")
    assert moved is not None
    assert (moved["folder"], moved["at"] > 1.7e9) == (f"{old}/jobs", True)
    assert sorted(path.name for path in old.glob("state.db*")) == ["state.db.moved"]
    assert take_over(old, new).stdout == "None\n"
    assert known(new / "state.db") == EVERYTHING
    assert (new / "state.db").stat().st_mode & 0o777 == 0o600


def test_a_kill_at_any_step_leaves_the_old_or_the_new_whole(old: Path, tmp_path: Path) -> None:
    new, steps, seen = tmp_path / "state", 1, set()
    image = {path.name: path.read_bytes() for path in old.iterdir()}
    with taking_over(old, new) as killed_at:
        while (code := killed_at(steps)) == -signal.SIGKILL:
            there = (new / "state.db").exists()
            seen.add(there)
            assert there or (old / "state.db").exists()
            assert killed_at(0) == 0, "a step that never comes"
            assert known(new / "state.db") == EVERYTHING
            assert sorted(path.name for path in old.glob("state.db*")) == ["state.db.moved"]
            for path in [*new.iterdir(), *old.iterdir()]:
                path.unlink()
            for name, data in image.items():
                (old / name).write_bytes(data)
            steps += 1
    assert code == 0
    assert seen == {True, False}
    assert steps > 10


def test_what_is_not_ours_to_take_is_left(old: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(old / "state.db")) as database, database:
        database.execute("UPDATE leases SET body = replace(body, ?, 'elsewhere')", (os.uname().nodename,))
    assert take_over(old, tmp_path / "other").stdout == "None\n"
    assert (old / "state.db").exists()
    (old / "state.db").rename(old / "real")
    (old / "state.db").symlink_to(old / "real")
    assert take_over(old, tmp_path / "linked").stdout == "None\n"
    (old / "state.db").unlink()
    (old / "state.db").write_text("")
    assert take_over(old, tmp_path / "empty").stdout == "None\n"
    (old / "state.db").write_text("notes\n" * 1000)
    damaged = take_over(old, tmp_path / "damaged")
    assert "cannot be taken over" in damaged.stderr
    assert not (tmp_path / "damaged" / "state.db").exists()


# -------------------------------------------------------------------- from a broker that runs


def replacement(queue: QueueSite) -> subprocess.Popen[str]:
    before = queue.broker_pid()
    process = queue.start("broker", "--replace")
    wait_until(lambda: queue.broker_pid() == process.pid)
    assert before != process.pid
    return process


class Load:
    """A holder, a waiter, a running and a waiting job: what must not be lost."""

    def __init__(self, queue: QueueSite, **environ: str) -> None:
        self.queue, self.flag = queue, queue.folder / "flag"
        words = queue.words("run", "-n", "2", "--", sys.executable, "-c", HOLD)
        self.holder = queue.popen(words, environ=environ)
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "ready\n"
        self.running = queue.shell(f"while ! [ -e {self.flag} ]; do sleep 0.05; done; exit 3", {"gpus": 2})
        queue.until(self.running, "running")
        words = queue.words("run", "-n", "4", "--priority", "1", "--", "echo", "granted")
        self.waiter = queue.popen(words, environ=environ)
        wait_until(lambda: len(queue.ask("status")["line"]) == 1)
        self.waiting = queue.submit("true", request={"gpus": 4})

    def goes_on(self) -> None:
        told = self.queue.ask("status")
        assert {lease["pid"] for lease in told["leases"] if lease["kind"] == "run"} == {self.holder.pid}
        assert [len(row["why"]) > 0 for row in told["line"]] == [True, True]
        self.flag.touch()
        assert self.queue.until(self.running, "failed")["exit_code"] == 3
        assert self.waiter.poll() is None
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        assert self.waiter.stdout is not None
        assert self.waiter.stdout.read() == "granted\n"
        assert self.waiter.wait() == 0
        self.queue.until(self.waiting, "complete")


def test_a_broker_is_replaced_and_nothing_is_lost(queue: QueueSite) -> None:
    load = Load(queue)
    replacement(queue)
    load.goes_on()


def test_without_a_broker_to_replace_it_just_starts(site: Site) -> None:
    process = site.start("broker", "--replace")
    wait_until(lambda: site.broker_pid() == process.pid)


def test_a_broker_of_an_earlier_version_is_replaced_with_its_clients_and_jobs() -> None:
    queue = QueueSite()
    try:
        environ = landed.sources(queue.folder / "landed")
        broker = queue.start("broker", environ=environ)
        wait_until(lambda: queue.broker_pid() == broker.pid)
        load = Load(queue, **environ)
        replacement(queue)
        assert broker.wait() == 0
        load.goes_on()
    finally:
        queue.close()


@pytest.mark.parametrize("who", ["the one before", "the one after"])
def test_either_side_may_be_killed_while_it_is_replaced(queue: QueueSite, who: str) -> None:
    load = Load(queue)
    before = queue.broker_pid()
    assert before is not None
    os.kill(before, signal.SIGSTOP)  # it hears of the replacement, and cannot end yet
    after = queue.start("broker", "--replace")
    wait_until(lambda: f"{queue.directory}/socket" in Path("/proc/net/unix").read_text() and _connected(after.pid))
    if who == "the one before":
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: queue.broker_pid() == after.pid)
    else:
        after.kill()
        after.wait()
        os.kill(before, signal.SIGCONT)
        wait_for_end(before)  # it was told to stop
        replacement(queue)
    load.goes_on()


def _connected(pid: int) -> bool:
    """Whether the process has a socket open, which it waits at."""
    try:
        return any(os.readlink(entry).startswith("socket:") for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


# -------------------------------------------------------------------- from a user's place of before


@pytest.fixture
def island() -> Iterator[Island]:
    if os.geteuid() != 0:
        pytest.skip(ONLY_ROOT)
    island = Island()
    try:
        yield island
    finally:
        island.site.close()


@pytest.mark.parametrize("session", ["login", "cron"])
def test_a_users_broker_of_an_earlier_version_is_told_of_and_replaced(island: Island, session: str) -> None:
    """Its state lay in $XDG_RUNTIME_DIR/gpulease, or in ~/.local/state/gpulease where there is no such folder."""
    now = island.login(61001) if session == "login" else island.quietly
    old = landed.sources(island.site.folder / "landed")
    before = {**now, **old, "PYTHONPATH": f"{island.site.folder}:{old['PYTHONPATH']}"}

    def run(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        return island.run(61001, gpulease(*words), **environ)

    taken = run(before, "get", "--for", "5h")
    assert taken.stdout == "0\n", taken.stderr
    held = run(before, "add", "--hold", "--", "true").stdout.strip()
    if session == "cron":
        refused = run(now, "get", "--for", "5h")
        assert (refused.returncode, refused.stdout) == (69, "")
        assert "gpulease broker --replace" in refused.stderr
    environ = {**island.environ, **island.home(61001), **now}
    words = island.words(61001, gpulease("broker", "--replace"))
    broker = island.site.popen(words, cwd="/", env=environ)
    wait_until(lambda: f'"pid": {broker.pid}' in run(now, "status", "--json").stdout)
    got = run(now, "get", "--for", "5h")
    assert got.stdout == "1\n", got.stderr
    assert json.loads(run(now, "show", held, "--json").stdout)["jobs"][0]["state"] == "held"


def test_the_systems_broker_goes_on_with_the_state_of_an_earlier_version(island: Island) -> None:
    """That one was root's; now it is its own user's."""
    image = island.site.folder / "state.db"
    landed.write_state(image)
    island.sh(f"mkdir -m 755 /run/gpulease && cp {image} /run/gpulease/state.db")
    broker = island.broker(0, "--system")
    wait_until(lambda: island.found(61001) == "system /run/gpulease" or broker.poll())
    told = json.loads(island.run(0, gpulease("ls", "--json")).stdout)
    assert {job["id"]: job["state"] for job in told["jobs"]} == {1: "complete", 2: "waiting", 3: "held"}
    (lease,) = json.loads(island.run(0, gpulease("status", "--json")).stdout)["leases"]
    assert (lease["id"], lease["until"]) == ("L1", 1881252917.7254837)
    assert "user:someone:gpus=1" in island.run(0, gpulease("set")).stdout
    assert island.sh("ls /run/gpulease/state.db*") == "/run/gpulease/state.db.moved\n"
