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
from gpulease.api import jobs
from gpulease.client.subscriptions import Subscription
from gpulease.errors import NotEnoughDevices, NotFound, NotGranted, UsageError

pytestmark = pytest.mark.usefixtures("inside")


def test_a_job_is_submitted_waited_for_and_read(queue: QueueSite) -> None:
    job = gpulease.submit(["sh", "-c", "echo $WORD $GPULEASE_DEVICES; exit 3"], gpus=2, env={"WORD": "hello"})
    assert job.wait() == "failed"
    assert (job.state, job.exit_code) == ("failed", 3)
    assert job.log().split()[0] == "hello"
    assert job.info["cwd"] == str(queue.folder)


def test_a_job_is_shown_as_it_was_last_seen(queue: QueueSite) -> None:
    job = gpulease.submit(["echo", "two words"])
    assert repr(job) == "<job 1: echo 'two words'>"
    job.wait()
    assert repr(job) == "<job 1 complete: echo 'two words'>"
    assert len(repr(gpulease.submit(["echo", "x" * 500], hold=True))) < 80


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


def test_a_sweep_queues_each_combination_at_once_and_all_are_waited_for(queue: QueueSite) -> None:
    command = ["sh", "-c", "exit {code}", "{lr}", "{name}"]
    made = gpulease.sweep(
        command, code=[0, 3], lr="0.1:0.3:0.1", values={"name": ["x"]}, name="lr {lr}", label="s", note="n", gpus=2
    )
    assert [job.id for job in made] == [1, 2, 3, 4, 5, 6]
    assert [job["id"] for job in gpulease.wait(made, timeout=60)] == [1, 2, 3, 4, 5, 6]
    ended = gpulease.wait(reversed(made))
    assert [(job["state"], job["exit_code"]) for job in ended] == [("complete", 0)] * 3 + [("failed", 3)] * 3
    rows = gpulease.show(made)
    assert [row["command"][2:] for row in rows[:2]] == [["exit 0", "0.1", "x"], ["exit 0", "0.2", "x"]]
    assert [row["name"] for row in rows[:2]] == ["lr 0.1", "lr 0.2"]
    assert {(row["label"], row["note"], row["request"]["gpus"]) for row in rows} == {("s", "n", 2)}


def test_a_hundred_jobs_are_waited_for_on_one_connection(queue: QueueSite, monkeypatch: pytest.MonkeyPatch) -> None:
    made = gpulease.sweep(["true", "{n}"], n=range(120), hold=True)
    opened: list[str] = []

    class Counted(Subscription):
        def __init__(self, *topics: str, **options: Any) -> None:
            opened.extend(topics)
            super().__init__(*topics, **options)

    monkeypatch.setattr(jobs, "Subscription", Counted)
    with pytest.raises(NotGranted):
        gpulease.wait(made, timeout=0)
    gpulease.kill(made)
    assert [job["state"] for job in gpulease.wait(made, timeout="30s")] == ["killed"] * 120
    assert opened == ["jobs", "jobs"]
    assert gpulease.wait([]) == []


SWEEPS: list[tuple[str, dict[str, Any]]] = [
    ("Nothing to sweep", {}),
    ("no {lables}", {"lr": [1], "lables": ["x"]}),
    ("values of lr", {"lr": 5}),
    ("no value of lr", {"lr": []}),
    ("does not exist", {"lr": ["true", "nosuchcmd"]}),
    ("more than 1000000", {"lr": range(2_000_000)}),
    ("one text", {"lr": [1], "shell": True}),
]


@pytest.mark.parametrize(("said", "arguments"), SWEEPS, ids=[said for said, _ in SWEEPS])
def test_a_sweep_that_is_not_right_queues_nothing(said: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=said):
        gpulease.sweep(["{lr}"], **arguments)
    assert gpulease.jobs() == []


def test_a_sweep_may_be_run_by_a_shell(queue: QueueSite) -> None:
    made = gpulease.sweep("echo {n} > out{n}", shell=True, n=range(2), cwd=queue.folder)
    assert {job["state"] for job in gpulease.wait(made)} == {"complete"}
    assert (queue.folder / "out1").read_text() == "1\n"


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
    assert gpulease.submit(["true"], after=[], after_any=None, hold=True).info["after"] == []


@pytest.mark.parametrize("name", ["after", "after_any"])
@pytest.mark.parametrize("value", ["", "x", [None], [True], 1.5, [[1]]])
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


def test_errors_name_no_options_and_name_the_job(queue: QueueSite) -> None:
    with pytest.raises(NotEnoughDevices, match="hold=True"):
        gpulease.submit(["true"], gpus=5)
    job = gpulease.submit(["true"], hold=True)
    with pytest.raises(NotGranted) as late:
        job.wait(0)
    assert "--" not in str(late.value).replace("`gpulease ls", "")
    with pytest.raises(NotGranted, match="Wait longer"), gpulease.acquire(4), gpulease.acquire(wait=0):
        pass
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
    with pytest.raises(NotFound, match="not a regular file"):
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
