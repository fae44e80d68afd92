"""State on a network file system: a rollback journal instead of shared memory, and nothing lost by a kill -9."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.needs import needs, needs_root
from support.queue_site import QueueSite

pytestmark = [needs_root, needs("bindfs")]


@pytest.fixture
def queue() -> Iterator[QueueSite]:
    """A site whose state folder looks as one of sshfs does, and is one of FUSE."""
    site = QueueSite()
    disk, home = site.folder / "disk", site.folder / "home"
    disk.mkdir()
    home.mkdir()
    mounted = subprocess.run(["bindfs", "-o", "subtype=sshfs", str(disk), str(home)], capture_output=True)
    if mounted.returncode != 0:
        site.close()
        pytest.skip("FUSE does not work here")
    state = home / "dir"
    site.directory = site.environ["GPULEASE_DIR"] = str(state)
    try:
        yield site
        assert "Traceback" not in site.log(), site.log()
    finally:
        for process in site.started:
            process.kill()
        site.kill_broker()
        subprocess.run(["umount", "--lazy", str(home)], check=True)
        site.close()


def test_a_network_file_system_gets_a_rollback_journal_and_loses_nothing(queue: QueueSite) -> None:
    queue.ensure_broker()
    assert "fuse.sshfs" in queue.log()
    waiting = queue.submit("true", hold=True)
    queue.end(ended := queue.submit("true"))
    assert queue.run("get", "--for", "1h").stdout == "0\n"
    assert {path.name for path in Path(queue.directory).glob("state.db*")} == {"state.db", "state.db-journal"}
    queue.restart()
    assert [queue.job(id)["state"] for id in (waiting, ended)] == ["held", "complete"]
    assert [device["state"] for device in queue.status()["devices"]][:2] == ["leased", "free"]
    reply = queue.json("doctor")["findings"]
    assert any(row["subject"] == "state" and "fuse.sshfs" in row["text"] for row in reply)


def test_a_state_that_was_made_on_a_local_disk_is_gone_on_with(queue: QueueSite) -> None:
    """A home that was moved to a file server has a database with a write-ahead log."""
    network = queue.directory
    queue.directory = queue.environ["GPULEASE_DIR"] = str(queue.folder / "local")
    queue.ensure_broker()
    held = queue.submit("true", hold=True)
    queue.kill_broker()
    shutil.copytree(queue.directory, network, ignore=shutil.ignore_patterns("socket*"))
    queue.directory = queue.environ["GPULEASE_DIR"] = network
    os.chmod(network, 0o700)
    queue.ensure_broker()
    assert queue.job(held)["state"] == "held"
