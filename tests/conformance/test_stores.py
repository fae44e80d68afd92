"""One suite, every store: what is committed is there, whole or not at all, and in any order of changes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.kept_events import kept_events
from support.memory_store import MemoryStore

from gpulease.broker.store import database_file
from gpulease.broker.store.sqlite import SqliteStore
from gpulease.errors import StateError
from gpulease.model.store import TABLES as EVERY_TABLE
from gpulease.model.store import Document, HistoryEvent, Store

EXAMPLES = 40 if os.environ.get("GPULEASE_LONG") else 12
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(TEXT, VALUES, max_size=4)
TABLES = tuple(table for table in EVERY_TABLE if table != "jobs")  # which have columns of their own: test_store_jobs
Change = tuple[str, str, Document | None]
CHANGES: st.SearchStrategy[Change] = st.tuples(st.sampled_from(TABLES), TEXT, st.none() | DOCUMENTS)


def put(store: Store, *changes: Change, durable: bool = False) -> None:
    for change in changes:
        store.write(*change)
    store.commit(durable)


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """A function that makes a fresh store."""
    made: list[Store] = []

    def fresh() -> Store:
        store: Store = MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / f"{len(made)}.db"))
        made.append(store)
        return store

    yield fresh
    for store in made:
        store.close()


def test_a_new_store_is_empty(make: Callable[[], Store]) -> None:
    store = make()
    assert [store.load(table) for table in TABLES] == [{}] * len(TABLES)
    assert kept_events(store, 0, 10) == []


@pytest.mark.longer("properties")
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commits=st.lists(st.lists(CHANGES, max_size=5), max_size=5))
def test_it_holds_what_a_dictionary_would(make: Callable[[], Store], commits: list[list[Change]]) -> None:
    store = make()
    expected: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for changes in commits:
        put(store, *changes)
        for table, key, document in changes:
            if document is None:
                expected[table].pop(key, None)
            else:
                expected[table][key] = document
    assert {table: store.load(table) for table in TABLES} == expected


def test_what_was_loaded_can_be_changed_without_changing_the_store(make: Callable[[], Store]) -> None:
    store = make()
    document = {"devices": ["a"]}
    put(store, ("leases", "L1", document))
    document["devices"].append("b")
    store.load("leases")["L1"]["devices"].append("c")
    assert store.load("leases") == {"L1": {"devices": ["a"]}}


@pytest.mark.parametrize("durable", [False, True])
def test_a_commit_that_fails_changes_nothing(make: Callable[[], Store], durable: bool) -> None:
    store = make()
    put(store, ("leases", "L1", {"a": 1}))
    store.write("leases", "L2", {"a": 2})
    store.write("leases", "L1", None)
    store.append(HistoryEvent(1.0, "granted", {}))
    assert set(store.load("leases")) == {"L2"}, "what was written is seen"
    with pytest.raises((TypeError, StateError)):
        put(store, ("leases", "L3", {"a": object()}), durable=durable)
    store.rollback()
    assert store.load("leases") == {"L1": {"a": 1}}
    assert kept_events(store, 0, 10) == []
    put(store, ("leases", "L4", {}))
    assert set(store.load("leases")) == {"L1", "L4"}


def test_removing_what_is_not_there_is_no_error(make: Callable[[], Store]) -> None:
    store = make()
    put(store, ("line", "nobody", None))
    assert store.load("line") == {}


def test_events_come_in_order_the_last_ones_first_to_stay(make: Callable[[], Store]) -> None:
    store = make()
    for number in range(10):
        store.append(HistoryEvent(float(number), "granted", {"id": f"L{number}"}))
        store.commit()
    assert [event.fields["id"] for event in kept_events(store, 0, 3)] == ["L7", "L8", "L9"]
    assert [event.time for event in kept_events(store, 6.0, 100)] == [6.0, 7.0, 8.0, 9.0]
    assert store.forget_events(8.0, 100, 3) == 3
    assert [event.time for event in kept_events(store, 0, 100)] == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert store.forget_events(8.0, 100, 100) == 5
    assert store.forget_events(8.0, 100, 100) == 0
    assert store.forget_events(0.0, 2, 100) == 0
    store.commit()
    assert [event.time for event in kept_events(store, 0, 100)] == [8.0, 9.0]


# -------------------------------------------------------------------- what only a store on disk promises


def test_what_was_committed_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    store = SqliteStore(path)
    store.append(HistoryEvent(1.0, "granted", {"id": "L1"}))
    put(store, ("leases", "L1", {"a": 1}), durable=True)
    store.close()
    again = SqliteStore(path)
    assert again.load("leases") == {"L1": {"a": 1}}
    assert kept_events(again, 0, 10) == [HistoryEvent(1.0, "granted", {"id": "L1"})]
    again.close()


KILLED = """
import os, sys
from gpulease.broker.store import database_file
from gpulease.broker.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
number = 0
while True:
    store.write("leases", f"L{number}", {"n": number})
    store.write("line", f"L{number}", {"n": number})
    store.commit()
    os.write(1, b"%d\\n" % number)
    number += 1
"""


def test_what_was_acknowledged_survives_kill_9_and_nothing_is_half_there(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    with subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(200)]
        process.kill()
        last = int([*lines, *process.stdout.read().splitlines()][-1])
    store = SqliteStore(path)
    leases, line = store.load("leases"), store.load("line")
    store.close()
    assert leases == line
    assert len(leases) in (last + 1, last + 2)


def test_a_file_that_is_no_database_and_one_that_is_newer_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("not a database, but somebody's notes\n" * 100)
    with pytest.raises(StateError, match=r"text\.db"):
        SqliteStore(str(text))
    newer = tmp_path / "newer.db"
    database = sqlite3.connect(newer)
    database.execute("PRAGMA user_version=77")
    database.close()
    with pytest.raises(StateError, match="version 77"):
        SqliteStore(str(newer))


def test_an_older_file_is_brought_up_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "old.db")
    store = SqliteStore(path)
    put(store, ("leases", "L1", {"a": 1}))
    store.close()
    (newest,) = database_file.steps()
    later = {newest + 1: "CREATE TABLE more (a)", newest + 2: "INSERT INTO more VALUES (3)"}
    monkeypatch.setattr(database_file, "steps", lambda: {newest: "no such statement", **later})
    store = SqliteStore(path)
    assert store.load("leases") == {"L1": {"a": 1}}
    store.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT a FROM more").fetchall() == [(3,)]
        assert database.execute("PRAGMA user_version").fetchone() == (newest + 2,)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in the first page": lambda data: data[:50],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "no header": lambda data: b"x" * 100 + data[100:],
    "no schema": lambda data: data[:100] + b"\0" * 3996 + data[4096:],
    "noise in the schema": lambda data: data[:1000] + b"\xff" * 3000 + data[4000:],
    "noise in the tables": lambda data: data[:8192] + b"\xff" * (len(data) - 8192),
    "another version": lambda data: data[:60] + b"\x7f" * 4 + data[64:],
    "no document": lambda data: data.replace(b'{"n":', b"?????"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_whatever_is_wrong_with_a_file_it_is_called_damaged(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.db"
    store = SqliteStore(str(path))
    for number in range(500):
        store.write("leases", f"L{number}", {"n": number, "text": "x" * 100})
    store.commit()
    store.close()
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(StateError, match="is damaged"):
        SqliteStore(str(path)).load("leases")
    assert path.read_bytes() == before or damage in ("cut in the middle", "noise in the tables", "no document")


def test_a_file_shrinks_when_most_of_it_is_free(tmp_path: Path) -> None:
    """A million jobs that were removed left a file of half a gigabyte for good."""
    path = tmp_path / "state.db"
    store = SqliteStore(str(path))
    for number in range(3000):
        store.write("environments", str(number), {"text": "x" * 4000})
    store.commit()
    for number in range(3000):
        store.write("environments", str(number), None)
    store.write("leases", "L1", {"a": 1})
    store.commit()
    for _ in range(12):
        store.shrink()
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert store.load("leases") == {"L1": {"a": 1}}
    store.close()
    assert size < 7 << 20, size  # the log beside it too
    assert path.stat().st_size < 3 << 20


def test_a_store_whose_file_is_removed_writes_it_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "state.db"
    store = SqliteStore(str(path))
    put(store, ("leases", "L1", {"a": 1}))
    shutil.rmtree(folder)
    with pytest.raises(StateError, match="cannot be put back"):
        store.write("leases", "L2", {"a": 2})
    store.rollback()
    folder.mkdir()
    put(store, ("leases", "L2", {"a": 2}), durable=True)
    assert path.stat().st_mode & 0o777 == 0o600
    store.close()
    again = SqliteStore(str(path))
    assert set(again.load("leases")) == {"L1", "L2"}
    again.close()
