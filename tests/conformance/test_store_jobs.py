"""Jobs in every store: the same answers to the same questions, and an older state is still read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.memory_store import MemoryStore

from gpulease.broker.store.sqlite import SqliteStore
from gpulease.errors import StateError
from gpulease.model import jobs
from gpulease.model.jobs import Job, JobSpec
from gpulease.model.store import SOME, Document, Store, Which
from gpulease.model.values import Request


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / "state.db"))
    yield made
    made.close()


def job(id: int, state: str = "waiting", uid: int = 1, label: str | None = None, environment: str = "e") -> Document:
    spec = JobSpec(("true",), "/", environment, Request(), label=label)
    return jobs.stored(Job(id, uid, "ada", spec, float(id), state=state))


def put(store: Store, rows: list[Document], durable: bool = False) -> None:
    for row in rows:
        store.write("jobs", str(row["id"]), row)
    store.commit(durable)


def fill(store: Store) -> None:
    rows = [job(1), job(2, "running"), job(3, "failed", 2, "x"), job(10, "waiting", 2), job(11, "failed", 1, "x")]
    put(store, rows)


def ids(found: list[Document]) -> list[int]:
    return [row["id"] for row in found]


def test_jobs_are_chosen_by_state_user_label_and_range(store: Store) -> None:
    fill(store)
    assert ids(store.jobs()) == [1, 2, 3, 10, 11]
    assert ids(store.jobs(Which(("failed", "running")))) == [2, 3, 11]
    assert ids(store.jobs(Which(uid=2))) == [3, 10]
    assert ids(store.jobs(Which(label="x", uid=1))) == [11]
    assert ids(store.jobs(Which(ids=[(2, 3), (11, 99)]))) == [2, 3, 11]
    assert ids(store.jobs(most=2, newest=True)) == [11, 10]
    assert ids(store.jobs(Which(("failed",)), most=1)) == [3]
    assert store.jobs(Which(("lost",))) == []
    assert store.count_jobs() == {
        (1, "waiting"): 1, (1, "running"): 1, (2, "failed"): 1, (2, "waiting"): 1, (1, "failed"): 1,
    }  # fmt: skip
    assert store.count_jobs(Which(("failed",), ids=[(1, 5), (11, 11)])) == {(2, "failed"): 1, (1, "failed"): 1}
    assert store.job_rows(Which(("failed", "running"), 1)) == [(2, "running", 1, None), (11, "failed", 1, None)]
    assert [row.id for row in store.job_rows(Which(ids=[(2, 10)]), 2)] == [2, 3]


def test_some_jobs_are_as_many_as_were_asked_for(store: Store) -> None:
    fill(store)
    found, more = store.some_jobs(Which(ids=[(1, 10)]), 3)
    assert (ids(found), more) == ([1, 2, 3], True)
    found, more = store.some_jobs(Which(ids=[(4, 99)]), 3)
    assert (ids(found), more) == ([10, 11], False)


def test_jobs_that_are_large_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "state.db"))
    put(store, [{**job(id), "command": ["x" * (SOME // 2)]} for id in range(1, 10)])
    found, more = store.some_jobs(Which(ids=[(1, 99)]), 100)
    assert (ids(found), more) == ([1, 2], True)
    store.close()


def test_a_changed_job_replaces_the_old_one_and_a_removed_one_is_gone(store: Store) -> None:
    fill(store)
    store.write("jobs", "2", None)
    put(store, [job(1, "complete")])
    assert (store.get("jobs", "1") or {})["state"] == "complete"
    assert store.get("jobs", "2") is None
    assert ids(store.jobs(Which(("waiting",)))) == [10]


def test_a_commit_is_whole_or_not_at_all(store: Store) -> None:
    fill(store)
    with pytest.raises((TypeError, StateError)):
        put(store, [job(1, "complete"), {**job(2), "note": object()}])
    store.rollback()
    assert (store.get("jobs", "1") or {})["state"] == "waiting"
    put(store, [job(1, "killed")])
    assert (store.get("jobs", "1") or {})["state"] == "killed"


def test_environments_that_no_job_has_are_forgotten(store: Store) -> None:
    for name in ("one", "two"):
        store.write("environments", name, {"A": name})
    put(store, [job(1, environment="two")])
    assert store.forget_environments(["one", "two", "three"]) == {"one": {"A": "one"}}
    store.commit()
    assert store.get("environments", "one") is None
    assert store.get("environments", "two") == {"A": "two"}


def test_ten_thousand_jobs_are_one_commit(store: Store) -> None:
    put(store, [job(id) for id in range(1, 10_001)], durable=True)
    assert store.count_jobs() == {(1, "waiting"): 10_000}
    assert ids(store.jobs(Which(ids=[(9_999, 1 << 62)]))) == [9_999, 10_000]


def test_a_state_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version=99")
    with pytest.raises(StateError, match="newer"):
        SqliteStore(path)


def test_an_environment_is_in_use_while_a_job_that_has_it_is_open_or_ended_lately(store: Store) -> None:
    for key in ("1.a", "1.b", "1.c", "1.d"):
        store.write("environments", key, {"of": key})
    rows = [
        {**job(1, "killed", environment="1.a"), "ended": 50.0},
        {**job(2, "killed", environment="1.b"), "ended": 150.0},
        {**job(3, "killed", environment="1.c"), "ended": 50.0},
        {**job(4, "waiting", environment="1.c"), "ended": None},
    ]
    put(store, rows)
    assert store.environments_in_use(100.0, "", 9) == {"1.a": False, "1.b": True, "1.c": True, "1.d": False}
    assert store.environments_in_use(100.0, "1.a", 2) == {"1.b": True, "1.c": True}


def test_nothing_of_what_was_removed_is_left_in_the_files(tmp_path: Path) -> None:
    """Short and long values: in a page with others, and in pages of their own that become free."""
    store = SqliteStore(str(tmp_path / "state.db"))
    for number in range(30):
        store.write("environments", f"1.{number}", {"KEY": f"S3CRET-{number}-" * (1 if number % 2 else 3000)})
        store.write("jobs", str(number + 1), {**job(number + 1), "name": f"S3CRET-name-{number}"})
        store.commit()
    for number in range(30):
        store.write("environments", f"1.{number}", None)
        store.write("jobs", str(number + 1), None)
        store.commit()
    store.shrink()
    assert not [path.name for path in tmp_path.iterdir() if b"S3CRET" in path.read_bytes()]
    store.close()
