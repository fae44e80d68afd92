"""The history at the edge: a file that is damaged or cannot be written costs nobody anything; a restart adds to it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpulease.broker.core.instructions import AnswerHistory, DevicesSampled, JobEnded, LeaseEnded, LeaseStarted
from gpulease.broker.edge.history import UNWRITTEN, History
from gpulease.broker.store.history import HistoryFile
from gpulease.errors import HistoryError
from gpulease.model.peer import Account, Peer
from gpulease.model.spans import KEPT, DeviceName, asked
from gpulease.model.values import Device, Lease, Owner

NOW = 1_800_000_000.0  # the beginning of a minute, and of an hour
UUID = "GPU-1"
LEASE = Lease("L1", "get", (UUID,), Owner(1000, "ada", "host", "boot", groups=("lab",)), NOW)
PLACES = (DeviceName(UUID, "0", "A100"),)


class Kept:
    """A history in a folder, and what it logged."""

    def __init__(self, folder: Path) -> None:
        self.path, self.said = folder / "history.db", []  # type: tuple[Path, list[str]]
        self.open()

    def open(self) -> None:
        self.history = History(str(self.path), False, self.said.append)

    def rows(self, now: float, step: float = 60, since: float = NOW - 3600) -> list[Any]:
        found: list[Any] = answer(self.history, since, now, step)["rows"]
        return found

    def kill(self) -> None:
        """All that is in memory is lost."""
        self.history._close_file()
        self.open()

    def held(self, now: float, step: float = 60) -> float:
        return float(sum(row["held"] for row in self.rows(now, step)))


def answer(
    history: History, since: float, now: float, step: float, verb: str = "history", user: str | None = None
) -> dict[str, Any]:
    one = AnswerHistory(Peer(1, 1000, Account("ada")), verb, now, asked(since, now, step, now), user)
    return dict(history.answer(one))


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def sample(now: float, utilization: int | None = 50) -> DevicesSampled:
    device = Device(0, UUID, "A100", utilization=utilization, memory_used=4 << 30, power=200_000)
    return DevicesSampled(now, (device,), {})


def test_minutes_are_written_and_the_current_one_is_shown_too(kept: Kept) -> None:
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    for second in range(0, 100, 10):
        kept.history.devices_sampled(sample(NOW + second))
        kept.history.keep(NOW + second)
    first, second_row = kept.rows(NOW + 100)
    assert (first["held"], second_row["held"], first["busy"], second_row["busy"]) == (60, 40, 30, 20)
    assert (first["utilization"], first["memory"], first["power"]) == (50.0, 4 << 30, 200_000)
    assert first["holders"] == [
        {"user": "ada", "label": None, "outside": False, "held": 60.0, "known": 60.0, "busy": 30.0, "idle": 0.0}
    ]
    [hour] = kept.rows(NOW + 100, 3600)
    assert (hour["held"], hour["busy"]) == (100, 50)


def test_a_broker_that_ended_in_the_middle_of_a_minute_goes_on_with_it(kept: Kept) -> None:
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    kept.history.close(NOW + 10)
    kept.open()
    kept.history.lease_started(LeaseStarted(NOW + 30, LEASE, PLACES, None, since=NOW))
    assert kept.held(NOW + 90) == pytest.approx(90, abs=0.01)
    kept.history.close(NOW + 90)
    kept.open()
    assert kept.held(NOW + 90) == kept.held(NOW + 90, 3600) == pytest.approx(90, abs=0.01)


def test_a_lease_was_held_while_there_was_no_broker(kept: Kept) -> None:
    """Killed with a minute in memory: its file knows of no minute after the first."""
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    kept.history.keep(NOW + 70)
    kept.kill()
    kept.history.lease_started(LeaseStarted(NOW + 600, LEASE, PLACES, None, since=NOW))
    kept.history.lease_ended(LeaseEnded(NOW + 620, "L1"))
    assert kept.held(NOW + 700) == 620


@pytest.mark.parametrize(
    "damage", [b"not a database at all, and long enough to be looked at", b"SQLite format 3\0junk"]
)
def test_a_damaged_file_is_put_aside(kept: Kept, damage: bytes) -> None:
    kept.path.write_bytes(damage * 100)
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    kept.history.keep(NOW + 60)
    assert kept.held(NOW + 60) == 60
    assert Path(f"{kept.path}.damaged").read_bytes() == damage * 100
    assert "damaged" in kept.said[0]


def test_damage_that_shows_later_costs_what_was_there(kept: Kept) -> None:
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    kept.history.close(NOW + 3600)
    kept.path.write_bytes(kept.path.read_bytes()[:4096])  # all but its first page
    kept.open()
    assert kept.rows(NOW + 3600) == []
    kept.history.lease_started(LeaseStarted(NOW + 3600, LEASE._replace(since=NOW + 3600), PLACES, None, 0.0))
    kept.history.keep(NOW + 3660)
    assert kept.held(NOW + 3660) == 60


def test_names_that_are_missing_are_damage(kept: Kept) -> None:
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    kept.history.close(NOW + 60)
    with closing(sqlite3.connect(kept.path)) as database, database:
        database.execute("DELETE FROM holders")
    kept.open()
    assert kept.rows(NOW + 60) == []
    assert os.path.exists(f"{kept.path}.damaged")


def test_what_cannot_be_written_is_written_later_and_has_a_bound(kept: Kept) -> None:
    kept.path.mkdir()
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    for minute in range(1, 2 * UNWRITTEN):
        kept.history.keep(NOW + 60 * minute)
    assert len(kept.said) == 1
    with pytest.raises(HistoryError, match="history cannot be read: Is a directory"):
        kept.rows(NOW + 60)
    kept.path.rmdir()
    end = NOW + 60 * 2 * UNWRITTEN
    kept.history.keep(end)
    assert UNWRITTEN - 1 <= kept.held(end) / 60 <= UNWRITTEN + 1


WRITER = """
import sys
from gpulease.model.spans import Activity, DeviceName, Span, SpanHolder, SpanUse
from gpulease.broker.store.history import HistoryFile
file = HistoryFile(sys.argv[1])
for at in range(100_000):
    span = Span(Activity(60_000, 60_000, 30_000), {SpanHolder("ada", (), f"sweep-{at % 40}"): SpanUse(60_000)})
    file.write({1_800_000_000 + 60 * (at % 90): {"GPU-1": span}}, {}, [DeviceName("GPU-1", "0", "A100")], at)
    print(at, flush=True)
"""


def test_a_broker_that_is_killed_while_it_writes_leaves_all_of_a_minute_or_nothing(kept: Kept) -> None:
    for lines in (1, 40, 90):
        words = [sys.executable, "-c", WRITER, str(kept.path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(lines):
                assert writer.stdout.readline()
            writer.kill()
        with closing(HistoryFile(str(kept.path))) as file:
            held = [
                sum(use.held for _, _, span in file.read(step, 0, 2_000_000_000)[0] for use in span.uses.values())
                for step in KEPT
            ]
        assert len(set(held)) == 1
        assert held[0] >= lines * 60_000


def test_on_a_network_it_has_no_log_beside_it(tmp_path: Path) -> None:
    history = History(str(tmp_path / "history.db"), True, lambda text: None)
    history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    history.keep(NOW + 60)
    assert not (tmp_path / "history.db-wal").exists()
    assert answer(history, NOW, NOW + 60, 60)["rows"][0]["held"] == 60


def test_a_file_that_is_removed_is_begun_anew(kept: Kept) -> None:
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    kept.history.keep(NOW + 60)
    kept.path.unlink()
    kept.history.keep(NOW + 120)
    kept.kill()
    assert kept.held(NOW + 120) == 60


def test_a_link_in_its_place_is_not_followed(kept: Kept, tmp_path: Path) -> None:
    kept.path.symlink_to(tmp_path / "elsewhere")
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    kept.history.keep(NOW + 60)
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_old_is_forgotten_by_step(kept: Kept) -> None:
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    kept.history.lease_ended(LeaseEnded(NOW + 60, "L1"))
    kept.history.job_ended(JobEnded(NOW + 60, "ada", ("lab",), "sweep", ("0",), "failed"))
    kept.history.keep(NOW + 120)
    for step, age in KEPT.items():
        for days, there in ((-1, True), (1, False)):
            now = NOW + age + days * 86400
            kept.history.devices_sampled(sample(now))
            kept.history.keep(now + 60)
            kept.history.close(now + 60)
            with closing(sqlite3.connect(kept.path)) as found:
                assert bool(found.execute(f"SELECT count(*) FROM uses_{step}").fetchone()[0]) == there
            kept.open()
    kept.history.devices_sampled(sample(now + 86400))
    kept.history.close(now + 86500)
    with closing(sqlite3.connect(kept.path)) as database:
        assert database.execute("SELECT count(*) FROM holders").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM counts_3600").fetchone() == (0,)


def test_an_answer_is_bounded_and_says_where_to_go_on(kept: Kept) -> None:
    devices = tuple(Device(at, f"GPU-{at}", "A100", utilization=7, memory_used=0, power=1) for at in range(8))
    for minute in range(600):
        kept.history.devices_sampled(DevicesSampled(NOW + 60 * minute, devices, {}))
        kept.history.keep(NOW + 60 * minute)
    end = NOW + 36_000
    since, pieces, times = NOW, 0, []
    while since is not None:
        reply = answer(kept.history, since, end, 300)
        times += [(row["time"], row["device"]) for row in reply["rows"]]
        assert len(reply["rows"]) <= 1000 / 5
        since, pieces = reply["next"], pieces + 1
    assert pieces > 2
    assert times == [(NOW + 300 * at, str(device)) for at in range(120) for device in range(8)]


def test_jobs_and_waits_are_counted(kept: Kept) -> None:
    kept.history.lease_started(LeaseStarted(NOW, LEASE, PLACES, None, 5.0))
    kept.history.lease_started(LeaseStarted(NOW + 1, LEASE._replace(id="J2"), PLACES, "sweep", 15.0))
    kept.history.job_ended(JobEnded(NOW + 60, "ada", ("lab",), "sweep", ("0",), "out_of_memory"))
    kept.history.job_ended(JobEnded(NOW + 61, "grace", (), None, (), "killed"))
    kept.history.keep(NOW + 120)
    now = NOW + 121
    reply = answer(kept.history, NOW, now, 3600, "usage", "ada")
    assert {row["user"] for row in reply["rows"]} == {"ada"}
    assert sum(row["granted"] for row in reply["counts"]) == 2
    assert sum(row["waited"] for row in reply["counts"]) == 20
    assert [row["jobs"] for row in reply["counts"] if row["jobs"]] == [{"out-of-memory": 1}]
    assert not reply["everybody"]
    held = [row["held"] for row in reply["rows"]]
    assert sum(held) == pytest.approx(121)  # the device's time is divided among its two leases


def test_what_was_counted_is_bounded_in_an_answer_too(kept: Kept) -> None:
    """Jobs without a GPU are counted where no device has a row."""
    for minute in range(1100):
        for user in ("ada", "grace"):
            kept.history.job_ended(JobEnded(NOW + 60 * minute, user, (), f"sweep-{minute}", (), "complete"))
    end = NOW + 66_000
    kept.history.keep(end)
    since, jobs, pieces = NOW, 0, 0
    while since is not None:
        reply = answer(kept.history, since, end, 60, "usage")
        assert len(reply["counts"]) <= 1000
        jobs += sum(row["jobs"]["complete"] for row in reply["counts"])
        since, pieces = reply["next"], pieces + 1
    assert (jobs, pieces) == (2200, 3)
