"""Every verb on `--engine slurm`, by a real Slurm of two nodes with four GPUs each."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from support.slurm_box import LONG, SlurmBox, box, needs_slurm  # noqa: F401  # pytest finds the fixture here
from support.waiting import read_terminal, wait_until

pytestmark = needs_slurm


@pytest.fixture(autouse=True)
def nothing_left(box: SlurmBox) -> None:  # noqa: F811
    """Each test begins with free nodes."""
    box.run("kill", "--all-users", "all")
    box.run("release", "--all")
    wait_until(lambda: not box.slurm("squeue", "-h"), LONG, 0.1)


def test_a_job_runs_with_its_gpu_folder_environment_name_and_note(box: SlurmBox) -> None:  # noqa: F811
    words = ["--name", "first", "--label", "one", "--note", "a note", "-n", "2", "--env", "COLOUR=deep blue"]
    id = box.add(*words, "--", "sh", "-c", "pwd; echo $COLOUR; echo $GPULEASE_JOB=$GPULEASE_DEVICES; exit 3")
    assert id.isdecimal()
    waited = box.run("wait", id)
    assert (waited.returncode, waited.stdout) == (3, f"{id} failed, exit code 3\n")
    job = box.job(id)
    assert (job["id"], job["name"], job["label"], job["note"], job["exit_code"]) == (id, "first", "one", "a note", 3)
    assert job["command"][:2] == ["sh", "-c"]
    folder, colour, devices = box.ok("log", id).splitlines()
    assert (folder, colour) == (str(box.folder / "work"), "deep blue")
    assert devices == f"{id}=0,1"


def test_a_sweep_is_one_array_whose_tasks_have_words_logs_and_ends_of_their_own(box: SlurmBox) -> None:  # noqa: F811
    ids = box.add("--sweep", "i=0:4", "--at-most", "2", "--label", "five", "--", "sh", "-c", "echo it is {i}; exit {i}")
    array = ids.splitlines()[0].partition("_")[0]
    assert ids.splitlines() == [f"{array}_{number}" for number in range(5)]
    waited = box.run("wait", "--label", "five", "--json")
    assert waited.returncode == 1
    assert [(job["id"], job["exit_code"]) for job in json.loads(waited.stdout)["jobs"]] == [
        (f"{array}_{number}", number) for number in range(5)
    ]
    assert box.ok("log", f"{array}_3") == "it is 3\n"
    assert box.job(f"{array}_3")["command"] == ["sh", "-c", "echo it is 3; exit 3"]
    assert f"1 complete, 4 failed: {array}_1-4" in box.run("wait", array).stdout


def test_a_job_waits_with_slurms_reason_in_a_sentence_and_its_expected_start(box: SlurmBox) -> None:  # noqa: F811
    for _ in range(2):
        box.until(box.add("-n", "4", "--time-limit", "10m", "--", "sleep", "600"), "running")
    id = box.add("-n", "4", "--time-limit", "10m", "--", "sleep", "600")
    wait_until(lambda: box.job(id)["why_short"] == "Resources", LONG, 0.2)  # at first it may be Priority, or None
    reply = wait_until(lambda: (seen := box.json("explain", id))["expected_start"] and seen, LONG, 0.2)
    assert 0 < reply["expected_start"] - time.time() <= 660
    assert reply["why"].endswith(".")
    assert [row["why"] for row in reply["devices"]] == ["4 of 4 GPUs are held"] * 2
    assert "It should start in" in box.ok("explain", id)
    (line,) = box.json("status")["line"]
    assert (line["id"], line["gpus"], line["why"]) == (id, 4, reply["why"])
    assert box.json("explain", "-n", "1")["starts"][0] > 0  # of a request that nobody has made
    assert box.json("explain", "-n", "9")["possible"] is False
    refused = box.run("explain", "999999")
    assert refused.returncode == 1
    assert "No such job" in refused.stderr


@pytest.mark.long("slurm")
def test_dependencies_follow_ends_and_what_can_never_start_is_killed(box: SlurmBox) -> None:  # noqa: F811
    good, bad = box.add("--", "true"), box.add("--", "false")
    after = box.add("--after", good, "--", "true")
    never = box.add("--after", bad, "--", "true")
    however = box.add("--after-any", bad, "--", "true")
    box.run("wait", f"{after},{never},{however}")
    assert [box.job(id)["state"] for id in (after, never, however)] == ["complete", "killed", "complete"]
    assert "did not end well" in box.job(never)["why"]


@pytest.mark.long("slurm")
def test_retries_run_again_until_one_is_well(box: SlurmBox) -> None:  # noqa: F811
    script = "echo x >>tries; test $(wc -l <tries) -ge 3"
    (box.folder / "work" / "tries").unlink(missing_ok=True)
    id = box.add("--retry", "5", "--", "sh", "-c", script)
    assert box.run("wait", id).returncode == 0
    assert (box.folder / "work" / "tries").read_text() == "x\nx\nx\n"
    assert (box.job(id)["tries"], box.job(id)["retry"]) == (3, 5)
    assert "3 of 6" in box.ok("show", id)


def test_hold_resume_pause_edit_move_kill_and_rm(box: SlurmBox) -> None:  # noqa: F811
    held = box.add("--hold", "--", "sleep", "600")
    assert box.job(held)["state"] == "held"
    box.ok("edit", held, "--time-limit", "2h", "--name", "renamed", "--priority", "7")
    job = box.job(held)
    assert (job["state"], job["time_limit"], job["request"]["priority"]) == ("held", 7200, 7)
    assert job["name"] == "renamed"
    refused = box.run("edit", held, "--", "other", "command")
    assert (refused.returncode, "cannot give a job another command" in refused.stderr) == (2, True)
    assert box.ok("resume", held) == f"resumed {held}\n"
    box.until(held, "running")
    assert box.ok("pause", held) == f"paused {held}\n"
    assert box.until(held, "paused")["devices"]
    box.ok("resume", held)
    box.until(held, "running")
    assert box.ok("kill", held, "--wait").splitlines()[-1] == f"killed {held}"
    assert box.until(held, "killed")["exit_code"] is None
    box.ok("rm", held)
    assert box.run("show", held).returncode == 1


@pytest.mark.long("slurm")
def test_move_puts_a_job_first(box: SlurmBox) -> None:  # noqa: F811
    for _ in range(2):
        box.until(box.add("-n", "4", "--", "sleep", "600"), "running")
    first, second = (box.add("-n", "4", "--", "sleep", "600") for _ in range(2))
    box.ok("move", second)
    places = {id: box.json("explain", id)["place"] for id in (first, second)}
    assert places[second] < places[first]
    assert "to the front only" in box.run("move", second, "3").stderr


@pytest.mark.long("slurm")
def test_what_failed_is_queued_again(box: SlurmBox) -> None:  # noqa: F811
    ids = box.add("--sweep", "i=0:2", "--", "sh", "-c", "test {i} = 1 || exit 5").splitlines()
    box.run("wait", *ids)
    again = box.ok("retry", *ids[:1], ids[2]).split()[-1]
    array = again.partition("_")[0]
    assert again == f"{array}_0-1"
    assert box.run("wait", array).returncode == 1
    assert box.job(f"{array}_1")["command"][-1] == "test 2 = 1 || exit 5"


def test_run_gives_the_exit_code_and_its_own_streams(box: SlurmBox) -> None:  # noqa: F811
    done = box.run("run", "-n", "3", "--", "sh", "-c", "echo $GPULEASE_DEVICES; echo told >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "0,1,2\n")
    assert "told\n" in done.stderr
    killed = box.run("run", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137
    wait_until(lambda: not box.slurm("squeue", "-h"), LONG, 0.1)


def test_run_has_the_terminal(box: SlurmBox) -> None:  # noqa: F811
    ours, theirs = pty.openpty()
    words = ["setsid", "--ctty", sys.executable, "-m", "gpulease"]
    words += ["run", "--", "sh", "-c", "read line; tty; echo got $line"]
    process = subprocess.Popen(words, env=box.environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"hello\n")
    shown = read_terminal(ours, b"got hello", LONG)
    assert b"/dev/pts/" in shown
    assert b"got hello" in shown
    assert process.wait(LONG) == 0
    os.close(ours)


@pytest.mark.long("slurm")
def test_no_wait_is_75_and_a_request_that_no_node_can_serve_is_refused(box: SlurmBox) -> None:  # noqa: F811
    for _ in range(2):
        box.until(box.add("-n", "4", "--", "sleep", "600"), "running")
    assert box.run("run", "--no-wait", "--", "true").returncode == 75
    assert box.run("get", "--no-wait", "--for", "1h").returncode == 75
    for words in (["run", "-n", "9", "--", "true"], ["add", "-n", "9", "--", "true"]):
        refused = box.run(*words)
        assert refused.returncode == 1
        assert "No node of Slurm can ever serve this request." in refused.stderr
    refused = box.run("add", "--model", "H100", "--", "true")
    assert "No node of Slurm has a GPU of the model H100." in refused.stderr
    assert box.run("add", "--mem", "6G", "--", "true").returncode == 2
    assert box.add("--model", "A100", "--", "true")


def test_a_refused_job_is_no_job(box: SlurmBox) -> None:  # noqa: F811
    before = [job["id"] for job in box.json("ls", "--all")["jobs"]]
    assert box.run("add", "-n", "9", "--label", "refused", "--", "true").returncode == 1
    assert "FAILED" in box.slurm("squeue", "-h", "--states=all", "-o", "%T")  # Slurm shows it all the same
    assert [job["id"] for job in box.json("ls", "--all")["jobs"]] == before
    assert box.run("wait", "--label", "refused").returncode == 1  # there is none


def test_no_comment_of_another_user_hinders_anybody_or_shows_under_anothers_name(box: SlurmBox) -> None:  # noqa: F811
    mine = box.add("--hold", "--name", "mine", "--", "sleep", "600")
    reply = json.loads(box.slurm("squeue", "-j", mine, "--json"))["jobs"][0]["comment"]
    comments = ["gpulease {", 'gpulease {"token":"a","command":[1,{}],"note":5,"label":[]}', reply]
    ids = []
    for comment in comments:
        words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sbatch", "--parsable", "--hold"]
        words += ["--gres=gpu:1", f"--comment={comment}", "--job-name=theirs", f"--chdir={box.folder}/work"]
        ids.append(box.slurm(*words, "--wrap=sleep 5").strip())
    jobs = {job["id"]: job for job in box.json("ls")["jobs"]}
    assert {jobs[id]["user"] for id in ids} == {"nobody"}
    assert all(jobs[id]["name"] in ("theirs", None) for id in ids), "under no name of mine"
    assert (jobs[mine]["user"], jobs[mine]["name"]) == ("root", "mine")
    for words in (["status"], ["show", ids[0]], ["events"], ["usage"], ["kill", ids[1]]):
        box.ok(*words)


@pytest.mark.long("slurm")
def test_get_holds_for_a_process_and_for_a_time_until_it_is_released(box: SlurmBox) -> None:  # noqa: F811
    owner = subprocess.Popen(["sleep", "600"])
    try:
        shown = box.ok("get", "-n", "2", "--owner", str(owner.pid)).strip().split(",")
        assert len(shown) == 2
        reserved = box.json("get", "--for", "1h", "--note", "mine")
        status = box.json("status")
        assert {device["label"]: device["state"] for device in status["devices"]}[shown[0]] == "leased"
        kinds = {lease["id"]: (lease["kind"], lease["note"]) for lease in status["leases"]}
        assert kinds[reserved["id"]] == ("reservation", "mine")
    finally:
        owner.kill()
        owner.wait()
    wait_until(lambda: [lease["id"] for lease in box.json("status")["leases"]] == [reserved["id"]], LONG, 0.2)
    assert f"released {reserved['id']}" in box.ok("release", reserved["devices"][0]["label"])
    wait_until(lambda: not box.json("status")["leases"], LONG, 0.2)
    assert box.run("release", "999").returncode == 1
    assert box.run("release", "999", "--if-held").returncode == 0


def test_a_log_is_followed_until_the_job_ends(box: SlurmBox) -> None:  # noqa: F811
    gate = box.folder / "work" / "gate"
    gate.unlink(missing_ok=True)
    id = box.add("--", "sh", "-c", f"echo begun; until test -e {gate}; do sleep 0.1; done; echo over")
    words = [sys.executable, "-m", "gpulease", "log", id, "-f"]
    with subprocess.Popen(words, env=box.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        gate.touch()
        assert process.communicate(timeout=LONG)[0] == "over\n"


def test_status_shows_nodes_and_gpus_with_holders_in_80_columns(box: SlurmBox) -> None:  # noqa: F811
    id = box.add("-n", "2", "--name", "mine", "--", "sleep", "600")
    box.until(id, "running")
    status = box.json("status")
    held = [device["label"] for device in status["devices"] if device["state"] == "leased"]
    assert held == box.job(id)["devices"]
    assert [device["label"] for device in status["devices"]][::4] == ["node1:0", "node2:0"]
    shown = box.ok("status", environ={"COLUMNS": "80"})
    assert f"{id} job by root" in shown
    assert "8 GPUs, 6 free" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_request_that_would_start_now_is_foreseen_and_not_queued(box: SlurmBox) -> None:  # noqa: F811
    assert "would start it now" in box.ok("explain", "-n", "2")
    assert box.slurm("squeue", "-h") == ""


@pytest.mark.long("slurm")
def test_events_tell_who_had_what(box: SlurmBox) -> None:  # noqa: F811
    id = box.add("--name", "seen", "--", "true")
    box.run("wait", id)
    reply = box.json("events", "--job", id)["events"]
    assert [event["what"] for event in reply] == ["granted", "ended"]
    assert f"job {id}" in box.ok("events", "--since", "1h")


@pytest.mark.long("slurm")
def test_python_calls_are_the_same(box: SlurmBox) -> None:  # noqa: F811
    program = """
import gpulease, gpulease.errors
job = gpulease.submit(["sh", "-c", "echo from python"], name="called")
assert job.wait() == "complete", job.info
print(job.id, job.log(), end="")
jobs = gpulease.sweep(["sh", "-c", "exit {code}"], code=[0, 4])
print([end["exit_code"] for end in gpulease.wait([job.id for job in jobs])])
try:
    gpulease.acquire()
except gpulease.errors.GpuleaseError as error:
    print(error.code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=box.environ, capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("from python")
    assert done.stdout.splitlines()[1:] == ["[0, 4]", "engine"]


@pytest.mark.long("slurm")
def test_one_call_asks_for_all_jobs_and_not_faster_than_once_in_two_seconds(box: SlurmBox) -> None:  # noqa: F811
    """A hundred jobs, and a squeue in front of the real one that counts."""
    folder = box.folder / "counting"
    folder.mkdir(exist_ok=True)
    counted = folder / "calls"
    counted.unlink(missing_ok=True)
    (folder / "squeue").write_text(f'#!/bin/sh\ndate +%s.%N >>{counted}\nexec /usr/bin/squeue "$@"\n')
    (folder / "squeue").chmod(0o755)
    ids = box.add("--sweep", "i=1:100", "--label", "hundred", "--", "true", "{i}")
    assert len(ids.splitlines()) == 100
    path = {"PATH": f"{folder}:{box.environ['PATH']}"}
    assert box.run("wait", *ids.splitlines(), environ=path).stdout == "100 complete\n"
    moments = [float(line) for line in counted.read_text().split()]
    assert all(later - sooner > 1.9 for sooner, later in pairwise(moments))


@pytest.mark.parametrize("queued", [True, False])
def test_a_lost_answer_of_sbatch_is_found_again_by_the_jobs_token(box: SlurmBox, queued: bool) -> None:  # noqa: F811
    """Before the real one stands an sbatch whose answer is lost, or whose question was."""
    folder = box.folder / f"losing-{queued}"
    folder.mkdir()
    real = '/usr/bin/sbatch "$@" >/dev/null' if queued else "cat >/dev/null"
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    (folder / "sbatch").write_text(f"#!/bin/sh\n{real}\necho '{lost}' >&2\nexit 1\n")
    (folder / "sbatch").chmod(0o755)
    done = box.run("add", "--hold", "--", "true", environ={"PATH": f"{folder}:{box.environ['PATH']}"})
    found = box.slurm("squeue", "-h", "-o", "%A").split()
    if queued:
        assert (done.returncode, done.stdout.split()) == (0, found)
        assert box.job(found[0])["command"] == ["true"]
    else:
        assert (done.returncode, found) == (69, [])
        assert "was not queued" in done.stderr


def test_users_see_all_and_change_their_own(box: SlurmBox) -> None:  # noqa: F811
    one = box.add("--", "sleep", "600", user="nobody")
    other = box.add("--", "sleep", "600", user="daemon")
    box.until(one, "running")
    assert {job["user"] for job in box.json("ls", user="daemon")["jobs"] if job["id"] in (one, other)} == {
        "nobody",
        "daemon",
    }
    refused = box.run("kill", one, user="daemon")
    assert (refused.returncode, "belongs to nobody" in refused.stderr) == (77, True)
    refused = box.run("pause", one, user="nobody")
    assert (refused.returncode, "only its operators stop a job" in refused.stderr) == (77, True)
    assert box.run("add", "--priority", "1", "--", "true", user="nobody").returncode == 77
    assert box.ok("kill", "all", user="nobody").startswith("ending")
    box.until(one, "killed")
    assert box.job(other)["state"] in ("running", "waiting")


def test_a_dead_node_loses_its_job_and_is_shown_as_lost(box: SlurmBox) -> None:  # noqa: F811
    id = box.add("-n", "4", "--", "sleep", "600")
    node = box.until(id, "running")["devices"][0].partition(":")[0]
    box.kill(f"slurmd-{node}")
    box.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=burnt")
    try:
        assert box.until(id, "lost")["why"] == "its node failed"
        rows = [device for device in box.json("status")["devices"] if device["label"].startswith(node)]
        assert {row["state"] for row in rows} == {"lost"}
        assert rows[0]["lost"] == f"node {node} is down: burnt"
    finally:
        box.start_node(node)
        box.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        wait_until(lambda: box.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", LONG, 0.1)


def test_what_slurm_cannot_do_is_said_with_what_to_do_instead(box: SlurmBox) -> None:  # noqa: F811
    for words in (["start", "1"], ["set"], ["exclude", "0"], ["pause", "--queue"], ["renew", "--for", "1h"]):
        refused = box.run(*words)
        assert refused.returncode == 2, refused
        assert len(refused.stderr.splitlines()) == 2


def test_a_partition_without_gpus_is_refused(box: SlurmBox) -> None:  # noqa: F811
    refused = box.run("add", "--", "true", environ={"GPULEASE_SLURM_OPTIONS": "--partition=none"})
    assert refused.returncode == 1
    assert "no such partition" in refused.stderr


def test_no_slurm_is_a_clear_error() -> None:
    environ = {**os.environ, "PATH": "/nowhere", "GPULEASE_ENGINE": "slurm"}
    for words in (["ls"], ["add", "--force", "--", "true"], ["status"], ["run", "--", "true"]):
        done = subprocess.run([sys.executable, "-m", "gpulease", *words], env=environ, capture_output=True, text=True)
        assert done.returncode == 69, done
        assert "There is no Slurm here" in done.stderr


@pytest.mark.long("slurm")
def test_a_waiting_run_that_is_ended_leaves_the_line(box: SlurmBox) -> None:  # noqa: F811
    for _ in range(2):
        box.until(box.add("-n", "4", "--", "sleep", "600"), "running")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpulease", "run", "--", "true"], env=box.environ, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: box.json("status")["line"], LONG, 0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LONG) == 128 + signal.SIGTERM
    wait_until(lambda: not box.json("status")["line"], LONG, 0.2)
