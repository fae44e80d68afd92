"""A copy of the state that is made while the broker works is whole, and can be put back as the docs say."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.raw import Raw
from support.waiting import wait_until

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "install.md"


def jobs_in(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [id for (id,) in database.execute("SELECT id FROM jobs ORDER BY id")]


def test_copies_under_load_are_whole_and_have_all_that_was_acknowledged(queue: QueueSite) -> None:
    """Of five copies with `cp` one was malformed, and sqlite3 finds the database locked."""
    done, acknowledged = threading.Event(), [0]

    def load() -> None:
        while not done.is_set():
            acknowledged[0] = queue.submit_all([["true"]] * 50, hold=True, name="x" * 500)[-1]

    worker = threading.Thread(target=load)
    worker.start()
    try:
        for number in range(4):
            before = acknowledged[0]
            wait_until(lambda before=before: acknowledged[0] > before)  # type: ignore[misc]
            least, copy = acknowledged[0], queue.folder / f"copy{number}.db"
            made = queue.run("backup", str(copy))
            assert made.returncode == 0, made.stderr
            assert jobs_in(copy)[:least] == list(range(1, least + 1))
            assert copy.stat().st_mode & 0o777 == 0o600
    finally:
        done.set()
        worker.join()
    assert sorted(path.name for path in queue.folder.glob("copy*")) == [f"copy{number}.db" for number in range(4)]
    again = queue.run("backup", str(queue.folder / "copy0.db"))
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert queue.run("backup", "/proc/none").returncode == 1


def log_size(queue: QueueSite) -> int:
    return Path(queue.directory, "state.db-wal").stat().st_size


def test_one_copy_at_a_time_and_who_leaves_holds_nothing_up(queue: QueueSite) -> None:
    first = Raw(queue.directory)
    state = Path(first.ask("backup")["ok"]["file"])
    before = state.read_bytes()
    queue.submit_all([["true"]] * 20_000, hold=True, name="x" * 500)  # far more than the log is left with
    assert state.read_bytes() == before
    with queue.raw() as other:
        assert other.ask("backup")["error"]["code"] == "too-much"
        first.close()
        wait_until(lambda: "ok" in other.ask("backup"))
        assert other.ask("backup", done=True)["ok"]["held"] is True
        assert other.ask("backup", done=True)["ok"]["held"] is False
    assert state.read_bytes() != before
    queue.submit_all([["true"]] * 2000, hold=True)
    wait_until(lambda: log_size(queue) < 8 << 20)


def test_it_is_put_back_as_the_page_says(queue: QueueSite) -> None:
    id = queue.submit("true", hold=True)
    queue.act("resume", id)
    queue.end(id)
    waits = queue.submit("true", request={"gpus": 4}, hold=True)
    copy = queue.folder / "gpulease-2026-11-18.db"
    assert queue.run("backup", str(copy)).stdout == f"{copy}: 2 jobs\n"
    queue.act("rm", id, waits)
    assert queue.run("stop").returncode == 0
    (block,) = re.findall(r"To put it back:\n\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = block.replace("/var/lib/gpulease", queue.directory).replace("/var/backups", str(queue.folder))
    script = script.replace("-o gpulease -g gpulease ", "")
    lines = [line for line in script.splitlines() if "systemctl" not in line]
    if shutil.which("sqlite3") is None:
        made = lines.pop()
        with closing(sqlite3.connect(copy)) as database, database:
            database.execute(made.partition('"')[2].rpartition('"')[0].replace("\\", ""))
    subprocess.run(["sh", "-ec", "\n".join(lines)], check=True)
    queue.ensure_broker()
    assert [job["state"] for job in queue.jobs()] == ["held", "complete"]
    assert queue.ask("ls")["paused"] is True
