"""Jobs share a GPU by the memory that they were seen to use; and a share beside outside use, for who asks for it."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.site import Site, fresh_site  # noqa: F401
from support.waiting import wait_until

PACK = {"pack": True}
# Has so much memory of its GPU until the file $1 is there.
USE = """exec "$PYTHON" -m gpulease simulate use --memory "$2" -- sh -c 'until [ -e "$0" ]; do sleep 0.05; done' "$1"
"""
# The second of two at once finds too little memory; alone it finds enough.
TIGHT = """mkdir running 2>/dev/null || { echo 'torch.OutOfMemoryError: CUDA out of memory.'; touch short; exit 1; }
until [ -e short ]; do sleep 0.05; done
rmdir running
"""


@pytest.fixture(name="one")
def one_gpu(queue: QueueSite) -> QueueSite:
    """A queue with one GPU, on which a packed job is alone until it is seen to use memory."""
    queue.environ["PYTHON"] = sys.executable
    (queue.folder / "use.sh").write_text(USE)
    (queue.folder / "tight.sh").write_text(TIGHT)
    assert queue.run("exclude", "1,2,3").returncode == 0
    assert queue.run("set", "pack-after", "0").returncode == 0
    return queue


def _use(queue: QueueSite, until: str, memory: str, request: dict[str, Any]) -> int:
    return queue.submit("sh", "use.sh", until, memory, request=request)


def test_jobs_join_one_another_by_what_they_were_seen_to_use(one: QueueSite) -> None:
    jobs = [_use(one, "go", "24G", PACK) for _ in range(4)]
    assert one.job(jobs[3])["packed"] == "alone until its memory use is known"
    for job in jobs[:3]:  # 72 of 80 G
        one.until(job, "running")
    last = wait_until(lambda: row if "24G" in (row := one.job(jobs[3]))["why_waiting"] else None)
    assert "as similar jobs used" in last["why_waiting"]
    assert (last["packed"], one.job(jobs[0])["packed"]) == ("seen 24.0G", "seen 24.0G")
    assert "packed       seen 24.0G" in one.run("show", str(jobs[1])).stdout
    assert "[packed: seen 24.0G]" in one.run("ls").stdout
    declared = one.submit("true", request={"memory": 8 << 30})
    assert one.until(declared, "waiting")["why_waiting"]
    one.restart()
    assert one.until(jobs[3], "waiting")["packed"] == "seen 24.0G"
    (one.folder / "go").touch()
    assert {job["state"] for job in one.end(*jobs, declared)} == {"complete"}


def test_what_was_learnt_survives_and_a_machine_may_pack_by_default(one: QueueSite) -> None:
    assert one.run("set", "pack", "measured").returncode == 0
    first = _use(one, "go", "9G", {})
    wait_until(lambda: one.job(first)["packed"] == "seen 9.0G")
    (one.folder / "go").touch()
    one.end(first)
    assert one.run("stop").returncode == 0
    wait_until(lambda: one.broker_pid() is None)
    one.ensure_broker()
    later = [_use(one, "later", "9G", {}) for _ in range(2)]
    assert [one.until(job, "running")["packed"] for job in later] == ["seen 9.0G", "seen 9.0G"]
    alone = _use(one, "later", "9G", {"pack": False})
    assert (one.until(alone, "waiting")["packed"], one.job(alone)["devices"]) == (None, [])
    (one.folder / "later").touch()
    one.end(*later, alone)


def test_one_that_runs_out_of_memory_goes_on_alone_once_and_it_costs_no_try(one: QueueSite) -> None:
    _teach(one)
    jobs = [one.submit("sh", "tight.sh", request=PACK) for _ in range(2)]
    done = one.end(*jobs)
    assert [(job["state"], job["tries"]) for job in done] == [("complete", 1), ("complete", 1)]
    assert sorted((job["runs"], job["request"]["pack"]) for job in done) == [(1, True), (2, False)]


def _teach(one: QueueSite) -> None:
    """That a job of tight.sh uses 5 G: it is seen to once."""
    (one.folder / "tight.sh").write_text(USE)
    job = one.submit("sh", "tight.sh", "taught", "5G", request=PACK)
    wait_until(lambda: one.job(job)["packed"] == "seen 5.0G")
    (one.folder / "taught").touch()
    one.end(job)
    (one.folder / "tight.sh").write_text(TIGHT)


def test_a_share_is_granted_beside_outside_use_where_that_was_asked_for(site: Site) -> None:
    owner = ("--owner", str(os.getpid()), "--no-wait")
    with site.occupied("0,1,2,3", "2G") as outsider:
        assert site.run("get", "--mem", "6G", *owner).returncode == 75
        refused = site.run("get", "--beside-outside", *owner)
        assert (refused.returncode, "--mem" in refused.stderr) == (2, True)
        assert site.run("get", "--mem", "75G", "--beside-outside", *owner).returncode == 75  # 74 G but for the reserve
        assert site.run("get", "-d", "0", "--mem", "50G", "--beside-outside", *owner).stdout == "0\n"
        device = site.status()["devices"][0]
        assert (device["state"], device["outside"]) == ("shared", [outsider.pid])
        # What was leased is not in use yet, and counts beside what the stranger has.
        assert site.run("get", "-d", "0", "--mem", "25G", "--beside-outside", *owner).returncode == 75
        assert site.run("get", "-d", "0", "--mem", "6G", *owner).returncode == 75
        assert site.run("exclude", "1").returncode == 0
        assert site.run("get", "-d", "1", "--mem", "6G", "--beside-outside", *owner).returncode == 75
        assert site.run("release", "--mine").returncode == 0
        # The stranger is of our own user, and was there before: it did not outlive the lease.
        assert site.status()["devices"][0]["state"] == "outside"
        assert site.run("get", "-d", "0", "--mem", "60G", "--beside-outside", *owner).stdout == "0\n"
