"""Jobs without a GPU: they wait for others and for a slot, see no GPU, and hold none."""

from __future__ import annotations

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.site import devices_of
from support.waiting import wait_until

from gpulease.errors import NotPermitted, UsageError

BLOCK = "while ! [ -e go ]; do sleep 0.05; done"
NONE = {"gpus": 0}


def test_it_sees_no_gpu_and_holds_none_while_all_are_in_use(queue: QueueSite) -> None:
    queue.ask("set", name="limits", value="user:*:gpus=99")
    full = queue.submit_all([["sh", "-c", BLOCK]] * 4)
    for id in full:
        queue.until(id, "running")
    script = f'echo "<$CUDA_VISIBLE_DEVICES><$GPULEASE_DEVICES>"; {BLOCK}'
    id = int(queue.run("add", "-n", "0", "--cwd", str(queue.folder), "--", "sh", "-c", script).stdout)
    assert queue.said(id, ">") == "<><>\n"
    assert len(devices_of(queue, "leased")) == 4
    assert "1 job without a GPU" in queue.run("status").stdout
    assert f"J{id}" in queue.run("status").stdout
    assert "no GPU" in queue.run("show", str(id)).stdout
    behind = queue.submit("true", request=NONE, after=[full[0]])
    assert queue.job(behind)["why_short"] == f"after {full[0]}"
    (queue.folder / "go").touch()
    assert {job["state"] for job in queue.end(id, behind)} == {"complete"}


def test_so_many_run_at_a_time_as_cpu_jobs_says_through_a_restart(queue: QueueSite) -> None:
    queue.ask("set", name="cpu-jobs", value="1")
    first, second, third = queue.submit_all([["sh", "-c", BLOCK]] * 3, request=NONE)
    queue.until(first, "running")
    queue.restart()
    wait_until(lambda: queue.job(second)["why_short"] == "cpu-jobs=1")
    assert queue.job(first)["state"] == "running"
    queue.act("pause", first)
    assert queue.job(first)["state"] == "paused"
    queue.act("resume", first)
    queue.act("kill", first)
    assert queue.end(first)[0]["state"] == "killed"
    queue.until(second, "running")
    queue.act("retry", first)
    wait_until(lambda: queue.job(first)["why_short"] == "cpu-jobs=1")
    (queue.folder / "go").touch()
    assert {job["state"] for job in queue.end(first, second, third)} == {"complete"}


def test_a_quota_of_gpus_does_not_stop_it_and_cpu_jobs_0_does(queue: QueueSite) -> None:
    queue.ask("set", name="limits", value="user:*:gpus=0")
    (job,) = queue.end(queue.submit("true", request=NONE))
    assert (job["state"], job["devices"]) == ("complete", [])
    queue.ask("set", name="cpu-jobs", value="0")
    with pytest.raises(NotPermitted, match="cpu-jobs is 0"):
        queue.submit("true", request=NONE)


def test_only_add_takes_0_and_not_with_what_says_which_gpu(queue: QueueSite) -> None:
    for verb in ("run", "get"):
        done = queue.run(verb, "-n", "0", *(["--", "true"] if verb == "run" else []))
        assert (done.returncode, "Only `gpulease add` takes 0" in done.stderr) == (2, True)
    for request in ({"models": ["A100"]}, {"devices": ["0"]}, {"min_memory": 1}, {"memory": 1 << 30}):
        with pytest.raises(UsageError):
            queue.submit("true", request={**NONE, **request})
    id = queue.submit("true", hold=True)
    assert queue.run("edit", str(id), "-n", "0").returncode == 0
    queue.act("resume", id)
    assert queue.end(id)[0]["devices"] == []
