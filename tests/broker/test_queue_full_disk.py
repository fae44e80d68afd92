"""A job that fills the disk can be ended and removed, and then there is room again."""

from __future__ import annotations

from support.queue_site import QueueSite, alive, on_a_small_disk  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

from gpulease.errors import StateError


def refused(queue: QueueSite) -> bool:
    try:
        queue.submit("true", hold=True)
    except StateError:
        return True
    return False


def test_the_job_that_fills_the_disk_is_ended_and_removed(small: QueueSite) -> None:
    filler = small.submit("sh", "-c", "cat /dev/zero; sleep 600")
    limited = small.submit("sleep", "600", time_limit=2)
    pids = [small.until(id, "running")["pid"] for id in (filler, limited)]
    wait_until(lambda: refused(small))
    for verb in ("ls", "status", "doctor"):
        assert "could not be written" in " ".join(small.run(verb).stdout.split()), verb
    wait_until(lambda: not alive(pids[1]))  # its time limit
    assert small.run("kill", str(filler)).stdout == f"ending {filler}\n"
    wait_until(lambda: not alive(pids[0]))
    assert small.run("rm", str(filler)).returncode == 0
    wait_until(lambda: not refused(small))
    assert small.json("status")["broker"]["state_trouble"] is None
    (job,) = small.end(limited)
    assert (job["state"], job["why"]) == ("killed", "its time limit of 2 s was over")
    wait_until(lambda: filler not in [job["id"] for job in small.jobs()])
