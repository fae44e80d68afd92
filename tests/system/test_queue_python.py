"""The queue from Python: submit, wait, look, kill; the same errors."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

import gpulease
from gpulease import leases
from gpulease.errors import NotEnoughDevices, NotFound, NotGranted, UsageError


@pytest.fixture(autouse=True)
def _here(queue: QueueSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GPULEASE_DIR", "GPULEASE_SIMULATION"):
        monkeypatch.setenv(name, queue.environ[name])
    monkeypatch.chdir(queue.folder)
    leases._kept.client = None
    yield
    leases._kept.client = None


def test_a_job_is_submitted_waited_for_and_read(queue: QueueSite) -> None:
    job = gpulease.submit(["sh", "-c", "echo $WORD $GPULEASE_DEVICES; exit 3"], gpus=2, env={"WORD": "hello"})
    assert job.wait() == "failed"
    assert (job.state, job.exit_code) == ("failed", 3)
    assert job.log().split()[0] == "hello"
    assert job.info["cwd"] == str(queue.folder)
    assert repr(job) == f"<job {job.id}>"


def test_every_argument_reaches_the_job(queue: QueueSite) -> None:
    first = gpulease.submit(["true"], hold=True)
    job = gpulease.submit(
        ["true"], mem="6G", name="A100", devices=[0, 1], min_memory="10G", priority=2, duration="1h", cwd="/",
        log=f"{queue.folder}/log", retry=2, time_limit="4h", after=[first], after_any=True, job_name="n", label="l",
        note="o",
    )  # fmt: skip
    info = job.info
    assert (info["request"]["memory"], info["request"]["names"], info["request"]["priority"]) == (6 << 30, ["A100"], 2)
    assert (len(info["request"]["devices"]), info["request"]["min_memory"]) == (2, 10 << 30)
    assert (info["request"]["duration"], info["time_limit"], info["retry"]) == (3600, 14400, 2)
    assert (info["cwd"], info["log"], info["after"], info["after_any"]) == (
        "/",
        f"{queue.folder}/log",
        [first.id],
        True,
    )
    assert (info["name"], info["label"], info["note"]) == ("n", "l", "o")


def test_jobs_are_listed_killed_and_waited_for(queue: QueueSite) -> None:
    made = [gpulease.submit(["sleep", "600"], label="many") for _ in range(3)]
    other = gpulease.submit(["true"])
    assert other.wait() == "complete"
    assert [job.id for job in gpulease.jobs()] == [1, 2, 3, 4]
    assert [job.id for job in gpulease.jobs(label="many")] == [1, 2, 3]
    assert [job.id for job in gpulease.jobs(state="complete")] == [other.id]
    assert gpulease.jobs(state="lost") == []
    with pytest.raises(NotGranted):
        made[0].wait(0.05)
    for job in made:
        job.kill()
    assert {job.wait("30s") for job in made} == {"killed"}


def test_a_job_goes_on_through_a_new_broker(queue: QueueSite) -> None:
    job = gpulease.submit(["sh", "-c", "while ! [ -e go ]; do sleep 0.05; done"])
    wait_until(lambda: job.state == "running")
    queue.kill_broker()
    assert job.state == "running"
    (queue.folder / "go").touch()
    assert job.wait() == "complete"


def test_errors_are_the_same(queue: QueueSite) -> None:
    with pytest.raises(NotEnoughDevices):
        gpulease.submit(["true"], gpus=5)
    with pytest.raises(UsageError):
        gpulease.submit("true")
    with pytest.raises(UsageError):
        gpulease.submit([])
    with pytest.raises(UsageError):
        gpulease.submit(["true"], time_limit=0)
    with pytest.raises(NotFound):
        gpulease.submit(["true"], after=[99])
    job = gpulease.submit(["true"])
    job.wait()
    queue.act("rm", job.id)
    with pytest.raises(NotFound):
        job.state  # noqa: B018
    assert os.path.isdir(queue.directory)
