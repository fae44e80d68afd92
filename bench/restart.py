"""A broker that starts beside a long queue: as many jobs that wait as have ended, until it answers.

    python bench/restart.py [--rounds N] [--jobs N]

The broker is killed with -9 and started anew, round after round, and in turn one that has no jobs. The figure
is the time until `ping` is answered, and how many times as long it is as with an empty queue.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import os
import signal
import subprocess
import time
from collections.abc import Callable

from interleaved import compile_everything, interleave, own_command, show
from report import Report, Size, bench
from scratch import scratch

from gpulease.broker.store.sqlite import SqliteStore
from gpulease.client.connection import Client
from gpulease.model.jobs import Job, JobSpec, stored
from gpulease.model.values import Request

MOST = 2.0  # seconds
DAY = 86400


def fill(folder: Path, jobs: int) -> None:
    """As a broker would have left it."""
    folder.mkdir(mode=0o700)
    store = SqliteStore(str(folder / "state.db"))
    now, uid = time.time(), os.getuid()
    store.write("environments", "e", {"PATH": "/bin"})
    for id in range(1, 2 * jobs + 1):
        over = id <= jobs
        words = ("python", "train.py", "--seed", str(id))
        spec = JobSpec(words, "/tmp", "e", Request(priority=5 + id % 3), log=f"/tmp/{id}.log")
        job = Job(
            id, uid, "somebody", spec, now - DAY + id * 1e-3, "complete" if over else "waiting", tries=int(over),
            started=now - DAY if over else None, ended=now - 1 if over else None, exit_code=0 if over else None,
        )  # fmt: skip
        store.write("jobs", str(id), stored(job))
    store.write("settings", "paused", {"text": "on"})
    store.commit(durable=True)
    store.close()


def restart(folder: Path) -> Callable[[], object]:
    environ = {**os.environ, "GPULEASE_DIR": str(folder), "GPULEASE_SIMULATE": "8"}

    def action() -> None:
        os.environ.update(GPULEASE_DIR=str(folder))
        broker = subprocess.Popen([own_command(), "broker"], env=environ, stderr=subprocess.DEVNULL)
        while True:
            try:
                client = Client(start=False)
                client.ask("ping")
                break
            except Exception:
                time.sleep(0.005)
        client.close()
        broker.send_signal(signal.SIGKILL)
        broker.wait()

    return action


def main(report: Report, rounds: int, jobs: int) -> None:
    compile_everything(report.quick)
    with scratch() as folder:
        long, empty = folder / "long", folder / "empty"
        fill(long, jobs)
        name = f"{jobs:,} jobs that wait and {jobs:,} that ended"
        timings = interleave({"no jobs": restart(empty), name: restart(long)}, rounds)
        show(timings, "no jobs")
        report.value(f"start of a broker with {name}, until it answers", timings[name], "s", MOST)
        report.ratio("start of a broker with these jobs / with none", timings, name, ["no jobs"])
        size = sum(one.stat().st_size for one in long.iterdir() if one.name.startswith("state.db"))
        report.value("a job on disk", [size / (2 * jobs)], "bytes")


if __name__ == "__main__":
    bench(__doc__, main, rounds=Size(5, 1, "rounds"), jobs=Size(100_000, 300, "jobs that wait, and that ended"))
