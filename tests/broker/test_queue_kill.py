"""A kill ends all that a job started, and its device is not free before that."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.me import USER
from support.queue_site import (  # noqa: F401  # pytest finds the fixture here
    STUBBORN,
    QueueSite,
    alive,
    fresh_queue,
    pick,
    python,
    state_of,
)
from support.site import devices_of
from support.waiting import wait_until

from gpulease.errors import NotFound, WrongState

# A grandchild in a session of its own, whose parents are gone.
DETACH = r"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {deaf}
        os.write(1, f'detached {{os.getpid()}}\n'.encode())
        time.sleep(600)
    os._exit(0)
os.wait()
os.write(1, f'main {{os.getpid()}}\n'.encode())
time.sleep(600)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def pids(queue: QueueSite, id: int, *names: str) -> list[int]:
    text = wait_until(lambda: seen if all(name in (seen := queue.output(id)) for name in names) else None)
    words = text.split()
    return [int(words[words.index(name) + 1]) for name in names]


def test_what_forks_and_detaches_is_killed_whole(queue: QueueSite) -> None:
    id = queue.submit(*python(DETACH.format(deaf="pass")))
    found = pids(queue, id, "detached", "main")
    queue.act("kill", id)
    (job,) = queue.end(id)
    assert (job["state"], job["why"]) == ("killed", f"killed by {USER}")
    assert not any(map(alive, found))
    wait_until(lambda: devices_of(queue, "free") == [0, 1, 2, 3])


def test_what_ignores_term_is_killed_after_the_grace_and_holds_its_device_till_then(queue: QueueSite) -> None:
    queue.ask("set", name="grace", value="3")
    id = queue.submit(*python(DETACH.format(deaf=DEAF)))
    (detached, main) = pids(queue, id, "detached", "main")
    queue.act("kill", id)
    wait_until(lambda: not alive(main))
    assert alive(detached)
    assert queue.job(id)["state"] == "running"
    shown = queue.ask("status")["devices"]  # without a command, which may take longer to start than the grace
    assert [device["state"] for device in shown].count("leased") == 1
    assert alive(detached)
    queue.end(id)
    assert not alive(detached)
    wait_until(lambda: devices_of(queue, "free") == [0, 1, 2, 3])


def test_a_paused_job_can_be_killed(queue: QueueSite) -> None:
    id = queue.submit("sleep", "600")
    pid = queue.until(id, "running")["pid"]
    queue.act("pause", id)
    wait_until(lambda: state_of(pid) in "TD")  # D: in vfork, whose child was stopped before it became the command
    queue.act("kill", id)
    assert queue.end(id)[0]["state"] == "killed"


def test_an_order_to_kill_survives_the_broker(queue: QueueSite) -> None:
    queue.ask("set", name="grace", value="0.2")
    id = queue.submit(*python(STUBBORN + "time.sleep(600)"), retry=3)
    queue.said(id, "deaf")
    queue.act("kill", id)
    queue.restart()
    (job,) = queue.end(id)
    assert (job["state"], job["why"], job["tries"]) == ("killed", f"killed by {USER}", 1)


def test_kill_9_of_the_command_is_a_failure_with_its_signal(queue: QueueSite) -> None:
    id = queue.shell("echo pid $$; exec sleep 600")
    (pid,) = pids(queue, id, "pid")
    os.kill(pid, signal.SIGKILL)
    (job,) = queue.end(id)
    assert (job["state"], job["exit_code"], job["signal"]) == ("failed", 137, 9)


def test_kill_9_of_the_shell_above_a_job_takes_the_command_with_it(queue: QueueSite) -> None:
    id = queue.shell("echo pid $$; exec sleep 600")
    (pid,) = pids(queue, id, "pid")
    os.kill(queue.until(id, "running")["pid"], signal.SIGKILL)
    (job,) = queue.end(id)
    assert (job["state"], job["signal"]) == ("failed", 9)
    assert not alive(pid)


def test_a_paused_job_that_is_killed_from_outside_may_run_again(queue: QueueSite) -> None:
    id = queue.shell("[ -e again ] && exit 0; touch again; echo pid $$; exec sleep 600", retry=1)
    (pid,) = pids(queue, id, "pid")
    shell = queue.until(id, "running")["pid"]
    queue.act("pause", id)
    wait_until(lambda: state_of(pid) == "T" and state_of(shell) == "T")
    os.kill(pid, signal.SIGKILL)
    os.kill(shell, signal.SIGCONT)
    (job,) = queue.end(id)
    assert (job["state"], job["tries"]) == ("complete", 2)


def test_a_time_limit_kills(queue: QueueSite) -> None:
    id = queue.submit("sleep", "600", time_limit=0.3, retry=2)
    begin = time.monotonic()
    (job,) = queue.end(id)
    assert (job["state"], job["tries"]) == ("killed", 1)
    assert "time limit of 0.3 s" in job["why"]
    assert time.monotonic() - begin < 30


def test_rm_kills_a_running_job_and_forgets_it_even_through_a_crash(queue: QueueSite) -> None:
    queue.ask("set", name="grace", value="0.2")
    id = queue.submit(*python(STUBBORN + "time.sleep(600)"))
    log = queue.job(id)["log"]
    queue.said(id, "deaf")
    queue.act("rm", id)
    queue.restart()
    wait_until(lambda: not queue.jobs())
    with pytest.raises(NotFound):
        queue.job(id)
    wait_until(lambda: not os.path.exists(log))


def test_kill_takes_ranges_labels_states_last_and_all(queue: QueueSite) -> None:
    queue.ask("pause", queue=True)
    ids = queue.submit_all([["sleep", "600"]] * 12, label="many")
    other = queue.submit("sleep", "600", label="other")

    def waiting() -> list[int]:
        return sorted(job["id"] for job in queue.jobs() if job["state"] == "waiting")

    assert queue.run("kill", "1,3-4").stdout == "killed 1,3-4\n"
    assert waiting() == [*ids[1:2], *ids[4:], other]
    assert queue.run("kill", "last").stdout == f"killed {other}\n"
    assert queue.run("kill", "--label", "many", "5-6").stdout == "killed 5-6\n"
    done = queue.run("kill", "1-2", "99")
    assert done.stdout == "killed 2\n"
    assert done.stderr == "gpulease: left as they are: 1 killed; 99 not there, or not yours\n"
    assert queue.run("kill", "all").stdout == "killed 7-12\n"
    assert waiting() == []
    with pytest.raises(WrongState):
        queue.ask("pause", select={"all": True})


def test_a_hundred_jobs_are_killed_at_once(queue: QueueSite) -> None:
    ids = queue.submit_all([["sleep", "600"]] * 100, {"memory": 1 << 30})
    wait_until(lambda: queue.ask("ls")["counts"].get("running", 0) == 100)
    queue.ask("kill", select={"all": True})
    assert {job["state"] for job in queue.end(*ids)} == {"killed"}
