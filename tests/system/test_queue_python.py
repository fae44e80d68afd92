"""The queue from Python: submit, wait, look, kill; the same errors."""

from __future__ import annotations

import datetime
import math
import os
from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

import gpulease
from gpulease.errors import NotEnoughDevices, NotFound, NotGranted, UsageError

pytestmark = pytest.mark.usefixtures("inside")


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
        ["true"], mem="6G", model="A100", devices=[0, 1], min_memory="10G", priority=2, duration="1h", cwd="/",
        log=f"{queue.folder}/log", retry=2, time_limit="4h", after=[first], after_any=True, name="n", label="l",
        note="o",
    )  # fmt: skip
    info = job.info
    assert (info["request"]["memory"], info["request"]["models"], info["request"]["priority"]) == (6 << 30, ["A100"], 2)
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


def test_a_job_comes_after_a_job_an_id_or_a_list_of_them() -> None:
    first = gpulease.submit(["true"], hold=True)
    second = gpulease.submit(["true"], hold=True)
    forms: list[Any] = [first, first.id, str(first.id), [first], [first.id], (first, first.id)]
    for form in forms:
        job = gpulease.submit(["true"], after=form)
        assert (job.info["after"], job.info["after_any"]) == ([first.id], False)
        job = gpulease.submit(["true"], after_any=form)
        assert (job.info["after"], job.info["after_any"]) == ([first.id], True)
        job = gpulease.submit(["true"], after=form, after_any=True)
        assert (job.info["after"], job.info["after_any"]) == ([first.id], True)
    assert gpulease.submit(["true"], after=[first, second]).info["after"] == [first.id, second.id]
    assert gpulease.submit(["true"], after=[], after_any=[], hold=True).info["after"] == []


@pytest.mark.parametrize("name", ["after", "after_any"])
@pytest.mark.parametrize("value", ["", "x", None, [None], [True], 1.5, [[1]]])
def test_what_is_no_job_to_come_after_is_refused(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(UsageError):
        gpulease.submit(["true"], **arguments)
    assert gpulease.jobs() == []


def test_a_job_starts_at_a_time_that_is_written_in_any_way() -> None:
    moment = datetime.datetime(2100, 1, 2, 3, 4)
    for at in (moment, moment.timestamp(), "2100-01-02T03:04", moment.astimezone(datetime.UTC)):
        assert gpulease.submit(["true"], at=at).info["request"]["not_before"] == moment.timestamp()
    assert gpulease.submit(["true"], at="in 1h").state == "waiting"
    wrong: list[Any] = ["whenever", math.nan, math.inf, True, [], "9999999-01-01"]
    for at in wrong:
        with pytest.raises(UsageError):
            gpulease.submit(["true"], at=at)


WRONG: list[dict[str, Any]] = [
    {"cwd": "/no/such/folder"},
    {"cwd": ""},
    {"log": "/no/such/folder/log"},
    {"log": ""},
    {"env": {"A=B": "c"}},
    {"env": {"": "c"}},
    {"env": {"A\0": "c"}},
    {"env": {"A": "c\0"}},
    {"env": {"A": 1}},
    {"time_limit": math.nan},
    {"time_limit": math.inf},
    {"duration": math.nan},
    {"command": [""]},
    {"command": ["a\0b"]},
    {"command": ["echo", "x" * 131_072]},
]


@pytest.mark.parametrize("arguments", WRONG, ids=lambda arguments: str(arguments)[:30])
def test_what_the_command_line_refuses_is_refused_here(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        gpulease.submit(**{"command": ["true"], **arguments})
    assert gpulease.jobs() == []


def test_states_and_times_are_checked(queue: QueueSite) -> None:
    with pytest.raises(UsageError, match="zzz"):
        gpulease.jobs(state="zzz")
    job = gpulease.submit(["true"], hold=True)
    for timeout in (math.nan, math.inf, -1):
        with pytest.raises(UsageError):
            job.wait(timeout)


def test_errors_speak_of_arguments_and_name_the_job(queue: QueueSite) -> None:
    with pytest.raises(NotEnoughDevices, match="hold=True"):
        gpulease.submit(["true"], gpus=5)
    job = gpulease.submit(["true"], hold=True)
    with pytest.raises(NotGranted) as late:
        job.wait(0)
    assert "--" not in str(late.value).replace("`gpulease ls", "")
    queue.act("rm", job.id)
    with pytest.raises(NotFound, match=str(job.id)):
        job.state  # noqa: B018


def test_a_folder_that_was_removed_is_told(queue: QueueSite, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = queue.folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="was removed"):
        gpulease.submit(["true"])
    assert gpulease.submit(["true"], cwd="/").wait() == "complete"


def test_a_log_that_is_no_file_is_not_waited_for(queue: QueueSite) -> None:
    job = gpulease.submit(["true"])
    job.wait()
    os.unlink(job.info["log"])
    assert job.log() == ""
    os.mkfifo(job.info["log"])
    with pytest.raises(NotFound, match="no ordinary file"):
        job.log()


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
