"""The verbs of the queue: what they show and what they change."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from pathlib import Path

import pytest
from support.me import USER
from support.queue_site import QueueSite, fresh_queue, state_of  # noqa: F401  # pytest finds the fixture here
from support.site import devices_of
from support.waiting import read_terminal, wait_until

from gpulease.errors import NotFound, UsageError, WrongState

BLOCK = "while ! [ -e go ]; do sleep 0.05; done"


def go(queue: QueueSite) -> None:
    (queue.folder / "go").touch()


def fill(queue: QueueSite) -> int:
    """A job on all four GPUs that runs until `go`."""
    id = queue.shell(BLOCK, {"gpus": 4})
    queue.until(id, "running")
    return id


def waiting(queue: QueueSite) -> list[int]:
    return [job["id"] for job in queue.jobs() if job["state"] == "waiting"]


def test_ls_has_running_then_the_line_with_reasons_then_the_ended(queue: QueueSite) -> None:
    ended = queue.shell("exit 2")
    queue.end(ended)
    running = fill(queue)
    late = queue.submit("true")
    soon = queue.submit("echo", "soon", request={"priority": 1})
    held = queue.submit("true", hold=True)
    reply = queue.json("ls")
    assert [job["id"] for job in reply["jobs"]] == [running, soon, late, held, ended]
    assert reply["counts"] == {"failed": 1, "running": 1, "waiting": 2, "held": 1}
    assert "0 of 4 are free" in reply["jobs"][1]["why_waiting"]
    table = queue.run("ls", COLUMNS="120").stdout
    assert [line.split()[:2] for line in table.splitlines()[2:]] == [
        [str(running), "running"],
        [str(soon), "waiting"],
        [str(late), "waiting"],
        [str(held), "held"],
        [str(ended), "failed"],
    ]
    assert "SIMULATED" in table
    assert "[exit code 2]" in table
    assert max(map(len, queue.run("ls", COLUMNS="80").stdout.splitlines())) <= 80
    long = queue.submit("echo", "x" * 300)
    assert f"[{queue.job(late)['why_short']}] echo {'x' * 300}\n" in queue.run("ls").stdout  # in a pipe nothing is cut
    queue.run("rm", str(long))
    assert [job["id"] for job in queue.json("ls", "--state", "failed")["jobs"]] == [ended]
    explained = queue.run("explain", str(late))
    assert explained.returncode == 0
    assert f"Leased to {USER}" in explained.stdout


def test_pause_stops_the_tree_and_keeps_the_device(queue: QueueSite) -> None:
    id = queue.shell("sleep 600 & echo $!; wait")
    child = int(queue.said(id, "\n"))
    pid = queue.until(id, "running")["pid"]
    queue.act("pause", id)
    wait_until(lambda: (state_of(pid), state_of(child)) == ("T", "T"))
    assert queue.job(id)["state"] == "paused"
    assert len(devices_of(queue, "leased")) == 1
    queue.restart()
    assert (state_of(child), queue.job(id)["state"]) == ("T", "paused")
    queue.act("resume", id)
    wait_until(lambda: state_of(child) == "S")
    assert queue.job(id)["state"] == "running"
    with pytest.raises(WrongState):
        queue.act("resume", id)


def test_a_paused_queue_lets_running_ones_end_and_starts_no_more(queue: QueueSite) -> None:
    running = queue.shell(BLOCK)
    queue.until(running, "running")
    assert queue.run("pause", "--queue").stdout == "paused the queue\n"
    next_one = queue.submit("true")
    forced = queue.submit("true")
    queue.restart()
    go(queue)
    assert queue.end(running)[0]["state"] == "complete"
    assert "paused" in queue.job(next_one)["why_waiting"]
    queue.act("start", forced)
    assert queue.end(forced)[0]["state"] == "complete"
    assert queue.job(next_one)["state"] == "waiting"
    queue.ask("resume", queue=True)
    assert queue.end(next_one)[0]["state"] == "complete"


def test_move_gives_another_place_and_the_priority_that_stands_there(queue: QueueSite) -> None:
    fill(queue)
    a, b, c, d = queue.submit_all([["true"]] * 4)
    low = queue.submit("true", request={"priority": 9})
    assert waiting(queue) == [a, b, c, d, low]
    queue.ask("move", id=d)
    assert waiting(queue) == [d, a, b, c, low]
    queue.ask("move", id=a, index=2)
    assert waiting(queue) == [d, b, a, c, low]
    queue.ask("move", id=low, index=1)
    assert waiting(queue) == [d, low, b, a, c]
    assert queue.job(low)["request"]["priority"] == 5
    queue.ask("move", id=d, index=99)
    queue.restart()
    assert waiting(queue) == [low, b, a, c, d]


def test_start_passes_quotas_but_never_a_lease_of_another(queue: QueueSite) -> None:
    queue.ask("set", name="limits", value="user:*:gpus=1")
    first = queue.shell(BLOCK)
    queue.until(first, "running")
    second = queue.shell(BLOCK)
    assert "limit" in wait_until(lambda: queue.job(second)["why_waiting"])
    queue.act("start", second)
    queue.until(second, "running")
    third = queue.shell(BLOCK, {"gpus": 3}, hold=True)
    queue.act("start", third)
    assert queue.job(third)["state"] == "waiting"
    go(queue)
    assert [job["state"] for job in queue.end(first, second, third)] == ["complete"] * 3


def test_hold_and_at_wait_and_are_let_go(queue: QueueSite) -> None:
    held = queue.run("add", "--hold", "-n", "9", "--", "true").stdout.strip()
    later = queue.run("add", "--at", "in 1h", "--", "true").stdout.strip()
    soon = time.time() + 1
    near = queue.submit("true", request={"not_before": soon})
    assert queue.job(int(held))["state"] == "held"
    assert "later" in queue.job(int(later))["why_waiting"] or "start" in queue.job(int(later))["why_waiting"]
    assert queue.end(near)[0]["started"] >= soon
    assert queue.run("edit", held, "--gpus", "1").returncode == 0
    assert queue.run("resume", held).stdout == f"resumed {held}\n"
    queue.act("start", int(later))
    assert [job["state"] for job in queue.end(int(held), int(later))] == ["complete", "complete"]


def test_after_waits_for_success_and_after_any_for_the_end(queue: QueueSite) -> None:
    first = queue.shell(BLOCK + "; exit 1")
    both = queue.submit("true", after=[first])
    chain = [queue.submit("true", after=[both])]
    for _ in range(50):
        chain.append(queue.submit("true", after=chain[-1:]))
    whatever = queue.submit("true", after=[first], after_any=True)
    good = queue.submit("true", after=[whatever])
    assert queue.job(both)["why_waiting"] == f"It comes after job {first}."
    go(queue)
    found = queue.end(both, chain[0], chain[-1], whatever, good)
    assert [job["state"] for job in found] == ["killed", "killed", "killed", "complete", "complete"]
    assert found[0]["why"] == f"job {first}, which it comes after, is failed"
    with pytest.raises(WrongState):
        queue.submit("true", after=[first])


def test_a_held_job_does_not_start_after_a_failure(queue: QueueSite) -> None:
    first = queue.submit("false", hold=True)
    second = queue.submit("true", after=[first], hold=True)
    queue.act("resume", first)
    queue.end(first)
    queue.act("resume", second)
    assert queue.end(second)[0]["state"] == "killed"


def test_dependencies_on_nothing_on_itself_and_in_a_circle_are_refused(queue: QueueSite) -> None:
    a = queue.submit("true", hold=True)
    b = queue.submit("true", after=[a])
    c = queue.submit("true", after=[b])
    with pytest.raises(NotFound):
        queue.submit("true", after=[99])
    with pytest.raises(UsageError, match="itself"):
        queue.submit("true", after=[c + 1])
    with pytest.raises(UsageError, match="itself"):
        queue.act("edit", a, changes={"after": [a]})
    with pytest.raises(UsageError, match="waits for it"):
        queue.act("edit", a, changes={"after": [c]})
    assert queue.run("edit", str(c), "--after", "none").returncode == 0
    assert queue.end(c)[0]["state"] == "complete"


def test_edit_changes_what_has_not_started(queue: QueueSite) -> None:
    fill(queue)
    id = queue.submit("false")
    words = ["--priority", "1", "--mem", "6G", "--name", "new", "--new-label", "l", "--note", "n", "--retry", "2"]
    done = queue.run("edit", str(id), *words, "--time-limit", "1h", "--cwd", "/tmp", "--", "echo", "edited")
    assert done.stdout == f"edited {id}\n"
    job = queue.job(id)
    assert (job["request"]["priority"], job["request"]["memory"]) == (1, 6 << 30)
    assert (job["name"], job["label"], job["note"], job["retry"]) == ("new", "l", "n", 2)
    assert (job["time_limit"], job["cwd"], job["command"]) == (3600, "/tmp", ["echo", "edited"])
    go(queue)
    queue.end(id)
    assert queue.output(id) == "edited\n"
    with pytest.raises(WrongState):
        queue.act("edit", id, changes={"note": "late"})


def test_retry_of_all_leaves_what_is_complete_unless_it_is_named(queue: QueueSite) -> None:
    good, bad = queue.submit("true", label="l"), queue.submit("false", label="l")
    queue.end(good, bad)
    for words in (["all"], ["--label", "l"]):
        assert queue.run("retry", *words).stdout == f"queued again {bad}\n"
        queue.end(bad)
    queue.act("rm", bad)
    refused = queue.run("retry", "all")
    assert (refused.returncode, "--state complete" in refused.stderr) == (1, True)
    for words in ([str(good)], ["--state", "complete"], ["last"]):
        assert queue.run("retry", *words).stdout == f"queued again {good}\n"
        queue.end(good)


def test_retry_and_clean(queue: QueueSite) -> None:
    id = queue.shell("[ -e go ]")
    assert queue.end(id)[0]["state"] == "failed"
    go(queue)
    assert queue.run("retry", "--state", "failed").stdout == f"queued again {id}\n"
    assert queue.end(id)[0]["state"] == "complete"
    log = queue.job(id)["log"]
    failed = queue.shell("exit 1")
    queue.end(failed)
    assert queue.run("clean", "--state", "complete").stdout == f"forgot {id}\n"
    wait_until(lambda: not os.path.exists(log))  # by its user's agent
    kept = queue.run("clean")
    assert kept.stdout == "nothing to do\n"
    assert "gpulease: kept 1 that failed, were killed or lost" in kept.stderr
    assert queue.run("clean", "--all").stdout == f"forgot {failed}\n"
    assert queue.run("clean", "--all").stdout == "nothing to do\n"
    assert queue.submit("true") == failed + 1


def test_a_failure_is_tried_again_as_often_as_asked(queue: QueueSite) -> None:
    script = "echo x >> tries; [ $(wc -l < tries) = 3 ]"
    id = queue.shell(script, retry=5)
    assert (queue.end(id)[0]["state"], queue.job(id)["tries"]) == ("complete", 3)
    queue.ask("set", name="MAX_ERR_TIMES", value="2")
    id = queue.shell("exit 1")
    assert (queue.end(id)[0]["state"], queue.job(id)["tries"]) == ("failed", 2)


def test_wait_has_the_exit_code_of_the_jobs(queue: QueueSite) -> None:
    good, bad = queue.shell("exit 0"), queue.shell("exit 7")
    killed = queue.submit("true", hold=True)
    queue.act("kill", killed)
    assert queue.run("wait", str(good)).returncode == 0
    assert queue.run("wait", str(bad)).returncode == 7
    assert queue.run("wait", str(killed)).returncode == 1
    assert queue.run("wait", "all").returncode == 1
    running = queue.shell(BLOCK)
    assert queue.run("wait", str(running), "--timeout", "0.1").returncode == 75
    waiting = queue.start("wait", str(running), "--json")
    wait_until(lambda: queue.job(running)["state"] == "running")
    queue.restart()
    go(queue)
    out, _ = waiting.communicate(timeout=40)
    assert json.loads(out) == {"jobs": [{"id": running, "state": "complete", "exit_code": 0}]}


def test_wait_for_several_shows_a_bar_on_a_terminal(queue: QueueSite) -> None:
    ids = queue.submit_all([["true"]] * 5)
    ours, theirs = pty.openpty()
    environ = {**queue.environ, "TERM": "xterm"}
    process = subprocess.Popen(queue.words("wait", "all"), env=environ, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    assert process.wait(40) == 0
    said = f"{len(ids)} of {len(ids)} ended".encode()
    assert said in read_terminal(ours, said)
    os.close(ours)


def test_log_follows_until_the_end_through_a_new_broker(queue: QueueSite) -> None:
    id = queue.shell(f"echo one; {BLOCK}; echo two")
    queue.said(id, "one")
    process = queue.start("log", str(id), "-f")
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    queue.restart()
    go(queue)
    out, trouble = process.communicate(timeout=40)
    assert (out, trouble, process.returncode) == ("two\n", "", 0)


def test_log_does_not_show_what_a_job_of_an_earlier_queue_wrote(queue: QueueSite) -> None:
    """Ids begin anew when the state is lost, and logs are named by them."""
    first = queue.submit("true", hold=True)
    path = Path(queue.job(first)["log"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of an earlier queue\n")
    assert "earlier" not in queue.run("show", str(first)).stdout
    reply = queue.run("log", str(first))
    assert (reply.stdout, "has written nothing yet" in reply.stderr) == ("", True)
    follower = queue.start("log", "-f", str(first))
    queue.act("resume", first)
    queue.end(first)
    assert follower.communicate(timeout=30)[0] == ""
    assert queue.run("log", str(first)).stdout == ""
    killed = queue.submit("true", hold=True)
    path.with_name(f"{killed}.log").write_text("of an earlier queue\n")
    queue.act("kill", killed)
    assert queue.run("log", str(killed)).returncode == 1
    assert "earlier" not in queue.run("log", f"{first},{killed}").stdout


def test_log_has_tails_several_jobs_and_the_brokers_own(queue: QueueSite) -> None:
    long = queue.shell("seq 100000")
    short = queue.submit("echo", "short")
    queue.end(long, short)
    assert queue.run("log", str(long), "--tail", "50000").stdout.split()[0] == "50001"
    assert queue.run("log", f"{long},{short}", "--tail", "1").stdout == (
        f"==> job {long} <==\n100000\n==> job {short} <==\nshort\n"
    )
    assert queue.run("log", "last").stdout == "short\n"
    assert "serves" in queue.run("log", "broker").stdout


def test_stop_kills_nothing(queue: QueueSite) -> None:
    id = queue.shell(BLOCK)
    pid = queue.until(id, "running")["pid"]
    assert queue.run("stop").stdout == "broker stopped; running jobs go on: 1\n"
    wait_until(lambda: state_of(pid) == "S")
    go(queue)
    queue.ensure_broker()
    assert queue.end(id)[0]["state"] == "complete"


def test_a_file_and_a_sweep_queue_many_at_once(queue: QueueSite) -> None:
    file = queue.folder / "jobs.txt"
    file.write_text("# a comment\n\necho 'one word'\necho two\n")
    assert queue.run("add", "--file", str(file), "--label", "f").stdout == "1\n2\n"
    words = ["--sweep", "lr=0.1,0.01", "--sweep", "seed=1:3", "--", "echo", "--lr={lr}", "{seed}"]
    assert queue.run("add", *words).stdout == "3\n4\n5\n6\n7\n8\n"
    queue.end(*range(1, 9))
    assert [queue.output(id) for id in (1, 2, 3, 8)] == ["one word\n", "two\n", "--lr=0.1 1\n", "--lr=0.01 3\n"]
