"""A broker that starts beside a long queue: 100,000 jobs that wait and 100,000 that ended, until it answers.

    python bench/restart.py [ROUNDS]

The broker is killed with -9 and started anew, round after round, and in turn one that has no jobs. The figure
is the time until `ping` is answered, and how many times as long it is as with an empty queue.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable

from interleaved import compile_everything, interleave, medians, own_command, show, to_reach

from gpulease.client import Client
from gpulease.job import Job, stored
from gpulease.model import Request
from gpulease.stores.sqlite import SqliteStore

WAITING = ENDED = 100_000
MOST = 2.0  # seconds
DAY = 86400


def fill(folder: Path) -> None:
    """As a broker would have left it."""
    folder.mkdir(mode=0o700)
    store = SqliteStore(str(folder / "state.db"))
    now, uid = time.time(), os.getuid()
    store.write("environments", "e", {"PATH": "/bin"})
    for id in range(1, WAITING + ENDED + 1):
        over = id <= ENDED
        job = Job(
            id, ("python", "train.py", "--seed", str(id)), uid, "somebody", "/tmp", "e", Request(priority=5 + id % 3),
            now - DAY + id * 1e-3, "complete" if over else "waiting", log=f"/tmp/{id}.log", tries=int(over),
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


def main(rounds: int) -> None:
    compile_everything()
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as folder:  # a killed broker leaves its sampler for a moment
        long, empty = Path(folder) / "long", Path(folder) / "empty"
        fill(long)
        name = f"{WAITING} waiting, {ENDED} ended"
        timings = interleave({"no jobs": restart(empty), name: restart(long)}, rounds)
        show(timings, "no jobs")
        to_reach(f"seconds until a broker with {name} answers", medians(timings)[name], MOST)
        size = sum(one.stat().st_size for one in long.iterdir() if one.name.startswith("state.db"))
        print(f"on disk: {size / 1e6:.0f} MB, {size / (WAITING + ENDED):.0f} bytes a job")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
