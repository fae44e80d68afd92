"""Parameters are checked, kept, and do what they say; memory of GPU and host; hooks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.me import GROUP
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until
from support.web_hook import web_hook

from gpulease.planner.settings import PARAMETERS


def value(queue: QueueSite, name: str) -> str:
    found: str = queue.ask("set", name=name)["parameters"][0]["value"]
    return found


@pytest.mark.parametrize(
    ("name", "text", "ours"),
    [
        ("TIMER_POLLING_TIME", "2s", "polling"),
        ("MAX_ERR_TIMES", "3", "max-runs"),
        ("SAFETY_KEEP_MEMORY", "0.3", "keep-memory"),
        ("SAFETY_KEEP_GPU_MEMORY", "0.5", "keep-gpu-memory"),
        ("MAX_RUNNING_TASKS", "4", "max-leases"),
        ("half_life", "3d", "half-life"),
        ("patience", "2", "patience"),
        ("limits", "user:*:gpus=2 group:root:shares=3", "limits"),
    ],
)
def test_names_of_gpulimit_and_ours_are_understood_and_kept(queue: QueueSite, name: str, text: str, ours: str) -> None:
    before = value(queue, ours)
    queue.ask("set", name=name, value=text)
    queue.restart()
    assert value(queue, ours) == text
    queue.ask("set", name=ours, value="default")
    assert value(queue, ours) == before


@pytest.mark.parametrize("text", ["-1", "0", "none"])
def test_no_limit_is_shown_as_none_however_it_was_set(queue: QueueSite, text: str) -> None:
    assert queue.run("set", "MAX_RUNNING_TASKS", text).returncode == 0
    assert value(queue, "max-leases") == "none"


def test_set_shows_every_parameter_in_a_form_that_may_be_typed(queue: QueueSite) -> None:
    for row in queue.json("set")["parameters"]:
        assert row["default"] is True
        if PARAMETERS[row["name"]].by_set:
            queue.ask("set", name=row["name"], value=row["value"])
    table = queue.run("set", "keep-memory", COLUMNS="100")
    assert "0.2" in table.stdout
    assert "set" in table.stdout


def test_low_host_memory_starts_nothing_new(queue: QueueSite) -> None:
    queue.ask("set", name="keep-memory", value="1")
    id = queue.submit("true")
    assert "Host memory is low" in wait_until(lambda: queue.job(id)["why_waiting"])
    queue.ask("set", name="SAFETY_KEEP_MEMORY", value="0")
    assert queue.end(id)[0]["state"] == "complete"


@pytest.mark.parametrize(
    "output",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "RuntimeError: CUDA error: out of memory",
        "failed to allocate 2.2G from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "ResourceExhaustedError: OOM when allocating tensor with shape[1024]",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.",
    ],
)
def test_out_of_memory_is_known_and_a_share_runs_again_alone(queue: QueueSite, output: str) -> None:
    script = f"if [ -e second ]; then exit 0; fi; touch second; echo '{output}'; exit 1"
    id = queue.shell(script, {"memory": 4 << 30}, retry=1)
    (job,) = queue.end(id)
    assert (job["state"], job["tries"], job["request"]["memory"]) == ("complete", 2, None)


def test_after_out_of_memory_a_larger_gpu_is_asked_for_where_there_is_one(queue: QueueSite) -> None:
    """It went to the same small GPU again, as often as it might."""
    queue.kill_broker()
    queue.set("gpu.0.memory_total=16G", "gpu.1.memory_total=40G")
    queue.ensure_broker()
    fails = "echo $GPULEASE_DEVICES; echo CUDA out of memory; exit 1"
    some, alone = queue.shell(fails, {"devices": ["0", "1"]}, retry=2), queue.shell(fails, {"devices": ["0"]}, retry=1)
    queue.end(some, alone)
    ran = [[line for line in queue.output(id).split("\n") if line.isdigit()] for id in (some, alone)]
    assert ran == [["0", "1", "1"], ["0", "0"]]


def test_out_of_memory_is_marked_and_an_old_one_in_the_log_is_not(queue: QueueSite) -> None:
    id = queue.shell("echo CUDA out of memory; exit 1")
    (job,) = queue.end(id)
    assert (job["out_of_memory"], job["why"]) == (True, "it ran out of GPU memory")
    assert "out of memory" in queue.run("show", str(id)).stdout
    other = queue.shell("exit 1", log=job["log"])
    assert queue.end(other)[0]["out_of_memory"] is False


def test_a_hook_hears_of_each_end_in_order(queue: QueueSite) -> None:
    heard = queue.folder / "heard"
    queue.ask("set", name="on-finish", value=f"cat >> {heard}")
    ids = [queue.shell("exit 3"), queue.submit("true")]
    queue.end(*ids)
    many = queue.submit_all([["true"]] * 50, hold=True)
    queue.act("kill", *many)

    def reply() -> list[dict[str, Any]] | None:
        lines = heard.read_text().splitlines() if heard.exists() else []
        return [json.loads(line) for line in lines] if len(lines) == 52 else None

    found = wait_until(reply)
    assert {job["id"]: job["state"] for job in found[:2]} == {ids[0]: "failed", ids[1]: "complete"}
    assert [job["id"] for job in found[2:]] == many
    assert not {"environment", "history"} & set(found[0])


@pytest.mark.parametrize("code", [200, 500])
def test_a_url_hears_of_it_too_and_its_trouble_is_not_the_jobs(queue: QueueSite, code: int) -> None:
    with web_hook() as hook:
        hook.code = code
        queue.ask("set", name="on-finish", value=hook.url(""))
        id = queue.submit("true")
        assert queue.end(id)[0]["state"] == "complete"
        wait_until(lambda: hook.heard)
        assert (hook.heard[0]["id"], hook.heard[0]["state"]) == (id, "complete")
        if code == 500:
            wait_until(lambda: "hook on-finish failed" in queue.log())


@pytest.mark.parametrize(
    "hook", ["exit 9", "/no/such/program", "kill -9 $$", "http://127.0.0.1:9/", "http://[", "http://127.0.0.1/a b"]
)
def test_a_failing_hook_harms_nobody(queue: QueueSite, hook: str) -> None:
    queue.ask("set", name="on-finish", value=hook)
    ids = queue.submit_all([["true"]] * 3)
    assert {job["state"] for job in queue.end(*ids)} == {"complete"}
    wait_until(lambda: "hook on-finish failed" in queue.log())


def test_group_quotas_count_for_jobs(queue: QueueSite) -> None:
    queue.ask("set", name="limits", value=f"group:{GROUP}:gpus=1")
    ids = queue.submit_all([["sleep", "600"]] * 2)
    wait_until(lambda: [queue.job(id)["state"] for id in ids] == ["running", "waiting"])
    wait_until(lambda: "limit" in queue.job(ids[1])["why_waiting"])
