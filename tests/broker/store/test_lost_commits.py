"""A state whose newest commits are missing is noticed: nobody goes on without acknowledged jobs and leases unsaid."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

from gpulease.broker.store.sqlite import SqliteStore
from gpulease.errors import StateError
from gpulease.model.store import HistoryEvent


def kept(queue: QueueSite, name: str) -> Path:
    return Path(queue.directory, name)


def flip(path: Path) -> None:
    """One bit of the second half, where the last commits are."""
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 16
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "flipped": flip,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_that_is_damaged_or_missing_is_told_of_and_can_be_accepted(queue: QueueSite, damage: str) -> None:
    queue.ensure_broker()
    for _ in range(9):
        assert queue.run("get", "-d", "0", "--mem", "1G", "--for", "1h").returncode == 0
    queue.kill_broker()
    DAMAGES[damage](kept(queue, "state.db-wal"))
    refused = queue.run("ls")
    assert refused.returncode == 1, refused.stdout
    assert "is not whole" in refused.stderr
    assert "accept-loss" in refused.stderr
    kept(queue, "state.accept-loss").touch()
    assert queue.run("ls").returncode == 0
    assert not kept(queue, "state.accept-loss").exists(), "it is said once"


def test_a_copy_without_its_log_is_told_of(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "state.db"))
    store.write("leases", "L1", {"id": "L1"})
    store.commit()
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "state.db", copy)
    with pytest.raises(StateError, match="is missing or empty"):
        SqliteStore(str(copy / "state.db"))
    store.close()


def test_a_state_that_was_closed_or_killed_and_left_alone_is_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    for number in range(3):
        store = SqliteStore(path)
        store.write("leases", f"L{number}", {"id": number})
        store.commit(durable=number != 1)
        store.close()
    assert len(SqliteStore(path).load("leases")) == 3


def test_events_that_are_forgotten_are_not_missed(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    store = SqliteStore(path)
    for number in range(3):
        store.append(HistoryEvent(float(number), "granted", {}))
    store.commit()
    assert store.forget_events(1e9, 0, 99) == 3
    store.commit()
    store.close()
    SqliteStore(path).close()


def test_a_state_that_begins_anew_knows_of_no_commits(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SqliteStore(str(path))
    store.write("leases", "L1", {"id": "L1"})
    store.commit(durable=True)
    store.close()
    path.unlink()
    assert SqliteStore(str(path)).load("leases") == {}


def test_a_disk_that_is_full_when_it_is_closed_is_no_loss(tmp_path: Path) -> None:
    """The mark in the database stays, though SQLite removes the log."""
    path = str(tmp_path / "state.db")
    store = SqliteStore(path)

    store._database.execute("PRAGMA query_only=ON")
    store.close()
    assert not os.path.exists(f"{path}-wal")
    SqliteStore(path).close()


def test_a_broker_that_is_killed_loses_nothing_and_is_not_accused(queue: QueueSite) -> None:
    for _ in range(3):
        queue.ensure_broker()
        queue.kill_broker()
    queue.ensure_broker()
    job = queue.submit("true")
    queue.kill_broker()
    queue.ensure_broker()
    assert queue.end(job)[0]["state"] == "complete"


def test_who_looks_into_the_file_with_sqlite_after_a_kill_is_not_accused(queue: QueueSite) -> None:
    """That puts all of the log into the file, and removes it."""
    assert queue.run("get", "-d", "0", "--for", "1h").returncode == 0
    queue.kill_broker()
    with closing(sqlite3.connect(kept(queue, "state.db"))) as database:
        assert database.execute("SELECT count(*) FROM leases").fetchall() == [(1,)]
    assert len(queue.status()["leases"]) == 1
