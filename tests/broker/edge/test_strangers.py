"""No stranger's process keeps the broker waiting: not its command line, not the processes above it.

Any user can lock the memory map of a process of their own for good, and whoever reads its command line then waits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from support.apart import Apart, opened
from support.frozen import frozen
from support.other_users import needs_root
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.users import becoming
from support.waiting import wait_until

from gpulease.broker.neighbours.safe_gpu import NAME

STRANGER = 62111
SHARES = 800  # of one GPU: looking at each for each name took more than a second
SOON = 5.0  # seconds: an answer comes in milliseconds, also on a busy machine


def served(site: Site) -> None:
    """Somebody else is granted a GPU, and gives it back, in time."""
    begin = time.monotonic()
    with site.raw() as other:
        other.acquire(1, SOON)
        reply = other.receive(SOON)
        while "waiting" in reply:  # for a broker elsewhere on this machine that is choosing
            reply = other.receive(SOON)
        assert "granted" in reply, reply
        id = reply["granted"]["id"]
        assert "ok" in other.ask("release", what=[id])
        assert "ok" in other.ask("ping")
    assert time.monotonic() - begin < SOON


@needs_root
def test_a_frozen_process_on_a_gpu_is_shown_and_the_other_gpus_are_granted(site: Site) -> None:
    """The sampler waited for it: the driver was said to hang, and nobody was granted any GPU."""
    site.ensure_broker()
    place = site.folder / "frozen"
    place.mkdir()
    place.chmod(0o777)
    uses = site.words("simulate", "use", "0", "--memory", "8G", "--")
    allowed = not os.path.exists("/dev/fuse") or os.stat("/dev/fuse").st_mode & 0o006 == 0o006
    user = str(STRANGER) if allowed else "root"  # where only root has FUSE, root's own process shows the same
    with frozen(place, before=(*uses, *(becoming(STRANGER) if allowed else ())), environ=site.environ) as one:
        served(site)
        first, *others = wait_until(lambda: rows if (rows := site.status()["devices"])[0]["processes"] else None)
        (process,) = first["processes"]
        assert (process["pid"], process["user"], process["command"]) == (one.pid, user, None)
        assert (first["state"], {row["state"] for row in others}) == ("outside", {"free"})
        table = site.run("status")
        assert (table.returncode, "(unknown command)" in table.stdout) == (0, True), table.stdout
        served(site)


def test_a_frozen_process_above_a_client_keeps_nobody_waiting(site: Site, tmp_path: Path) -> None:
    """The broker read its command line at `release`, and answered nobody any more."""
    site.holder()
    command = [sys.executable, "-m", "gpulease", "release", "L1"]
    with frozen(tmp_path / "over", *command, environ=site.environ) as one:
        assert one.process.stdout is not None
        served(site)
        assert one.process.stdout.readline() == "released L1: GPU 0\n"
    ended = site.json("events")["events"]
    assert [event["releaser_pid"] for event in ended if event["what"] == "ended" and event["id"] == "L1"] == [one.pid]


def test_a_frozen_process_with_safe_gpus_lock_keeps_nobody_waiting(tmp_path: Path) -> None:
    """At its next housekeeping the broker read its command line. Who holds the lock need never have come to it."""
    for site in opened(2):
        _beside_frozen_lock(site, tmp_path)


def _beside_frozen_lock(site: Apart, folder: Path) -> None:
    site.ensure_broker()
    assert site.run("set", "safe-gpu-patience", "0.2s").returncode == 0
    lock = site.lock_folder / NAME
    lock.write_text("x")
    with frozen(folder / "over", lock=str(lock)) as one:
        done = subprocess.run(site.words("run", "--", "echo", "mine"), env=site.environ, capture_output=True, text=True)
        assert done.stdout == "mine\n", done.stderr
        wait_until(lambda: f"by process {one.pid}" in site.log())
        assert "ok" in site.raw().ask("ping")


def test_one_release_of_many_shares_by_many_names_holds_nobody_up(site: Site) -> None:
    """Each share was looked at once for each name, and the processes above its owner each time: half a minute."""
    site.ensure_broker()
    site.status()
    with site.raw() as greedy, site.raw() as other:
        for _ in range(SHARES):
            greedy.send("acquire", request={"gpus": 1, "memory": 1 << 26, "devices": ["0"]}, kind="acquire", wait=SOON)
        granted = 0
        while granted < SHARES:
            granted += "granted" in greedy.receive(SOON)
        begin = time.monotonic()
        greedy.send("release", what=["0"] * 1024)
        assert "ok" in other.ask("ping")
        assert time.monotonic() - begin < 0.5
        assert len(greedy.receive(SOON)["ok"]["released"]) == SHARES
