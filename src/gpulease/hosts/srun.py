"""The nodes of the Slurm job in which this process runs, reached by srun in the place of ssh.

Each node has a broker of its own for the job. On a node that is reached for the first time a step of Slurm's is started
that stays until the job ends, and the broker lives in it: one that began in a short step would end with that.
"""

from __future__ import annotations

import fcntl
import os
import time

from gpulease.errors import HostUnavailable
from gpulease.slurm import commands, fields
from gpulease.system import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

START = 60.0  # seconds for a step, and a broker in it, to begin
CHECK_INTERVAL = 0.05  # seconds between looks whether it has
READY = "ready"


def nodes(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Their names; none outside of a job."""
    return fields.hosts(environ.get("SLURM_JOB_NODELIST", "")) if environ.get("SLURM_JOB_ID") else []


def command(node: str, remote: str, events: str, terminal: bool = False) -> list[str]:
    """The words that run `remote` there, once a broker serves it; `events` is a call that starts one."""
    _ensure_broker(node, events)
    return [*_step(node), *(["--pty"] if terminal else []), "sh", "-c", remote]


def _step(node: str) -> list[str]:
    return ["srun", "--quiet", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]


def _ensure_broker(node: str, events: str) -> None:
    """The step that stays holds a lock as long as it is there; whoever gets the lock starts it."""
    own = places.own(os.environ)
    places.prepare(own.run, everyone=False)
    path = os.path.join(own.run, f"node-{node}")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        os.ftruncate(lock, 0)
        _start_step(node, events, lock)
    try:
        _wait_until_ready(node, lock)
    finally:
        os.close(lock)


def _start_step(node: str, events: str, lock: int) -> None:
    script = f"({events}) >/dev/null 2>&1; echo {READY}; exec sleep infinity"
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    actions = [(os.POSIX_SPAWN_DUP2, one, number) for number, one in enumerate((null, lock, null))]
    try:
        commands.spawn([*_step(node), "sh", "-c", script], actions, os.environ, apart=True)
    finally:
        os.close(null)


def _wait_until_ready(node: str, lock: int) -> None:
    until = time.monotonic() + START
    while not os.pread(lock, len(READY), 0):
        if time.monotonic() > until:
            raise HostUnavailable(
                f"No step of Slurm's could be started on {node}.",
                f"See what `srun --overlap --nodelist={node} true` says.",
                host=node,
            )
        time.sleep(CHECK_INTERVAL)
