"""Ends an allocation's broker, with the jobs that it runs, when the task of Slurm's that began it has ended.

Slurm ends all that a job started, if it follows it by control groups; where it follows it by parents only, a broker
escapes. `python -m gpulease.api.allocation_keeper PID`, started beside such a broker.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import sys
import time

from gpulease.api import jobs
from gpulease.client import connection
from gpulease.errors import GpuleaseError
from gpulease.system import places

PAUSE = 0.05  # seconds between looks
PATIENCE = 30.0  # seconds for what it runs to end
OPEN = ("running", "paused", "waiting", "held")


def main(pid: int) -> int:
    place = places.own(os.environ)
    with open(os.path.join(place.run, "keeper.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0  # there is one already
        _until_gone(pid)
        with contextlib.suppress(GpuleaseError, ConnectionError):
            _end_everything()
    remove(place)
    return 0


def _until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()


def _end_everything() -> None:
    """Jobs first: a broker that ends kills nothing."""
    connection.ask("pause", start=False, queue=True)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        counts = jobs.ls(all=True)["counts"]
        if not any(counts.get(state) for state in OPEN):
            break
        with contextlib.suppress(GpuleaseError):
            jobs.kill("all")
        time.sleep(0.2)
    connection.ask("stop")


def remove(place: places.Place) -> None:
    """The folder, once the broker has ended; and again, while somebody still writes into it."""
    until = time.monotonic() + PATIENCE
    while is_served(place) and time.monotonic() < until:
        time.sleep(PAUSE)
    while os.path.exists(place.run):
        shutil.rmtree(place.run, ignore_errors=True)
        if time.monotonic() > until:
            break
        time.sleep(PAUSE)


def is_served(place: places.Place) -> bool:
    """Whether a broker holds its lock, which the kernel takes from it when it ends."""
    try:
        with open(place.kept(places.LOCK), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
