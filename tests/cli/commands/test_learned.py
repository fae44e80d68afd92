"""What ended is learnt from: shown to its user, kept over a restart, forgotten when asked; and estimates are judged."""

from __future__ import annotations

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until


def _shapes(queue: QueueSite) -> dict[str, float]:
    return {row["command"]: row["runs"] for row in queue.json("learned")["shapes"]}


def test_runs_of_one_shape_are_counted_whatever_their_values_and_kept(queue: QueueSite) -> None:
    queue.end(*(queue.submit("sh", "-c", f"exit 0 # {at}", request={}) for at in range(2)))
    queue.end(*(queue.submit("/bin/echo", "--seed", str(at), request={}) for at in range(3)))
    assert _shapes(queue)["/bin/echo --seed"] == pytest.approx(3, abs=0.01)
    assert queue.run("stop").returncode == 0
    wait_until(lambda: queue.broker_pid() is None)
    queue.ensure_broker()
    assert _shapes(queue)["/bin/echo --seed"] == pytest.approx(3, abs=0.01)
    (row,) = (row for row in queue.json("learned")["shapes"] if row["command"].startswith("/bin/echo"))
    assert row["request"] == "1 GPU"
    assert 0 <= row["seconds_50"] <= row["seconds_90"]
    assert "/bin/echo --seed" in queue.run("learned").stdout
    later = queue.submit("/bin/echo", "--seed=9", request={})
    assert "usually" in queue.run("show", str(later)).stdout
    queue.end(later)
    assert queue.run("learned", "--clear").returncode == 0
    assert _shapes(queue) == {}
    assert "nothing is known of your runs yet" in queue.run("learned").stdout
    queue.restart()
    assert _shapes(queue) == {}, "what was forgotten does not come back"


def test_what_somebody_ended_tells_nothing(queue: QueueSite) -> None:
    job = queue.submit("sleep", "600", request={})
    queue.until(job, "running")
    assert queue.run("kill", str(job)).returncode == 0
    queue.end(job)
    assert _shapes(queue) == {}


def test_the_order_is_a_parameter_and_shorter_ones_go_first(queue: QueueSite) -> None:
    gate = queue.shell("until [ -e go ]; do sleep 0.05; done", {"gpus": 4})
    queue.until(gate, "running")
    long = queue.submit("true", request={"gpus": 4, "duration": 90_000.0})
    short = queue.submit("true", request={"gpus": 4, "duration": 60.0})
    reply = queue.job(long)["why_waiting"]
    assert f"J{short}, which is shorter, may go first" in reply
    assert queue.run("set", "order", "arrival").returncode == 0
    assert "shorter" not in queue.job(long)["why_waiting"]
    assert queue.run("set", "order", "longest").returncode == 2
    assert queue.run("set", "order", "short").returncode == 0
    (queue.folder / "go").touch()
    jobs = {job["id"]: job for job in queue.end(long, short)}
    assert jobs[short]["started"] < jobs[long]["started"]


def test_a_start_that_was_told_is_compared_with_what_came(queue: QueueSite) -> None:
    gate = queue.shell("until [ -e go ]; do sleep 0.05; done", {"gpus": 4, "duration": 600.0})
    queue.until(gate, "running")
    waiting = queue.submit("true", request={"gpus": 4, "duration": 60.0})
    assert wait_until(lambda: queue.job(waiting)["expected_latest"])
    (queue.folder / "go").touch()
    queue.end(waiting)
    starts = queue.json("learned")["starts"]
    assert (starts["compared"], starts["by_latest"]) == (pytest.approx(1, abs=0.01), 1)
    assert "of the last 1 starts" in " ".join(queue.run("doctor").stdout.lower().split())
