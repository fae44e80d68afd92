"""What the queue's verbs make of words that are empty, strange or too many, and what they say."""

from __future__ import annotations

import os
import socket
import subprocess
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.accounts import SystemSite, system_site  # noqa: F401  # pytest finds the fixture here
from support.other_users import needs_root, two_users
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

from gpulease.cli.argument_parser import make_parser
from gpulease.cli.commands.completion import suggestions
from gpulease.cli.main import VERBS

WRONG: list[tuple[int, str, list[str]]] = [
    (2, "--after is empty", ["add", "--after", "", "--", "true"]),
    (2, "--after is empty", ["add", "--after", ",", "--", "true"]),
    (2, "--after-any is empty", ["add", "--after-any", "", "--", "true"]),
    (2, "--after is empty", ["add", "--after", "1", "--after", "", "--", "true"]),
    (2, "log is empty", ["add", "--log", "", "--", "true"]),
    (2, "folder to run in is empty", ["add", "--cwd", "", "--", "true"]),
    (2, "The command is empty", ["add", "--", ""]),
    (2, "more than 131071 bytes", ["add", "--sweep", f"a={'x' * 70_000}", "--", "echo", "{a}{a}"]),
    (2, "--time-limit is 0", ["add", "--time-limit", "0", "--", "true"]),
    (2, "--after is empty", ["edit", "2", "--after", ""]),
    (2, "--after-any is empty", ["edit", "2", "--after-any", ""]),
    (2, "both given", ["edit", "2", "--after", "1", "--after-any", "1"]),
    (2, "folder to run in is empty", ["edit", "2", "--cwd", ""]),
    (2, "does not exist", ["edit", "2", "--cwd", "/no/such/folder"]),
    (2, "--model is empty", ["edit", "2", "--model", ""]),
    (2, "--time-limit is 0", ["edit", "2", "--time-limit", "0"]),
    (2, "some were named too", ["pause", "--queue", "2"]),
    (2, "some were named too", ["resume", "--queue", "--state", "held"]),
    (2, "given twice", ["add", "--sweep", "a=1,2", "--sweep", "a=3", "--", "echo", "{a}"]),
    (2, "5:1:-1", ["add", "--sweep", "a=5:1", "--", "echo", "{a}"]),
    (2, "more than 1000000", ["add", "--sweep", "a=1:1000000000", "--", "echo", "{a}"]),
    (2, "{b} in it", ["add", "--sweep", "a=1,2", "--", "echo", "{a}", "{b}"]),
    (2, "--file and --sweep", ["add", "--file", "x", "--sweep", "a=1,2"]),
    (2, "Options stand before the text: put --name", ["add", "--shell", "sleep 2; exit 1", "--name", "parent"]),
    (2, "Another label is --new-label", ["edit", "last", "--label", "other"]),
    (2, "has no step", ["add", "--sweep", "a=0.1:0.5", "--", "echo", "{a}"]),
    (2, "log cannot be written", ["add", "--sweep", "a=1,x/y", "--log", "{a}.log", "--", "echo", "{a}"]),
    (2, "--most is 0", ["ls", "--most", "0"]),
    (2, "--most is -1", ["ls", "--most", "-1"]),
    (2, "--tail is -1", ["log", "1", "--tail", "-1"]),
    (2, "place is -1", ["move", "2", "-1"]),
    (2, "--label was given twice", ["ls", "--label", "a", "--label", "b"]),
    (2, "--state was given twice", ["kill", "--state", "failed", "--state", "killed"]),
    (2, "label is empty", ["clean", "--label", ""]),
    (2, "id is empty", ["clean", ""]),
    (2, "`last` was given together", ["show", "last", "1"]),
    (2, "together with those of jobs", ["log", "last", "broker"]),
    (2, "not a job id", ["move", "x"]),
    (1, "label 'nobody'", ["kill", "--label", "nobody"]),
    (1, "label 'nobody'", ["retry", "--label", "nobody", "--state", "failed"]),
    (1, "99", ["kill", "99"]),
    (1, "No such job: 99", ["clean", "99"]),
    (1, "Job 2 is held", ["clean", "2"]),
    (1, "99", ["wait", "1,99"]),
    (1, "it is complete", ["explain", "1"]),
    (1, "it is held", ["explain", "last"]),
    (1, "Job 2 is held", ["move", "last"]),
    (2, "user:*:gpus=4", ["set", "limits", "user"]),
]


@pytest.fixture(name="shared", scope="module")
def one_broker_for_all() -> Any:
    """With one job that is complete and one that is held."""
    site = QueueSite()
    site.ensure_broker()
    site.end(site.submit("true"))
    site.submit("true", hold=True)
    yield site
    assert site.ask("ls")["counts"] == {"complete": 1, "held": 1}  # nothing was queued, changed or forgotten
    site.close()


@pytest.mark.parametrize(("code", "said", "words"), WRONG, ids=[" ".join(words)[:60] for _, _, words in WRONG])
def test_what_makes_no_sense_is_refused_kindly(shared: QueueSite, code: int, said: str, words: list[str]) -> None:
    done = shared.run(*words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert "Traceback" not in done.stderr + shared.log()


def add(queue: QueueSite, *words: str) -> list[int]:
    done = queue.run("add", *words)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


# ---------------------------------------------------------------------- adding


def test_a_folder_that_was_removed_is_told(queue: QueueSite) -> None:
    gone = queue.folder / "gone"
    script = f"mkdir {gone}; cd {gone}; rmdir {gone}; gpulease add"
    for words in ("-- true", "--cwd / --log x -- true"):
        done = queue.bash(f"{script} {words}")
        assert done.returncode == 2
        assert "was removed" in done.stderr
        assert "Traceback" not in done.stderr
    assert queue.bash(f"{script} --cwd / -- true").stdout == "1\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [("echo a\0b", "zero byte"), ("'' word", "empty"), (f"echo {'é' * 65_536}", "more than 131071 bytes")],
    ids=["zero", "empty", "long"],
)
def test_a_line_that_no_program_can_be_started_with_is_named(shared: QueueSite, line: str, said: str) -> None:
    file = shared.folder / "jobs.txt"
    lines = [f"echo {number}" for number in range(10_000)]
    lines[7654] = line
    file.write_text("\n".join(lines))
    done = shared.run("add", "--file", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Line 7655" in done.stderr
    assert said in done.stderr


def test_a_file_may_begin_with_a_mark_and_its_lines_end_at_line_feeds_only(queue: QueueSite) -> None:
    file = queue.folder / "jobs.txt"
    file.write_bytes("\ufeffecho 'one\u2028line'\r\necho '$HOME | cat'\n".encode())
    queue.end(*add(queue, "--file", str(file)))
    assert [queue.job(id)["command"] for id in (1, 2)] == [["echo", "one\u2028line"], ["echo", "$HOME | cat"]]
    assert queue.output(2) == "$HOME | cat\n"


def test_a_log_is_a_file_a_folder_or_a_device_and_nothing_that_waits_for_a_reader(queue: QueueSite) -> None:
    os.mkfifo(queue.folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(queue.folder / "socket"))
        for name in ("fifo", "socket"):
            done = queue.run("add", "--log", str(queue.folder / name), "--", "true")
            assert (done.returncode, done.stdout) == (2, "")
            assert "not a regular file" in done.stderr
    ids = [add(queue, "--log", path, "--", "echo", "x")[0] for path in ("/dev/null", str(queue.folder))]
    assert [job["state"] for job in queue.end(*ids)] == ["complete", "complete"]
    assert (queue.folder / f"{ids[1]}.log").read_text() == "x\n"


def test_a_sweep_fills_in_the_log_the_name_the_label_and_the_note(queue: QueueSite) -> None:
    texts = [f"--log={queue.folder}/s{{a}}{{b}}.log", "--name=n{a}", "--label=l{b}", "--note=o{a}{c}"]
    ids = add(queue, "--sweep", "a=1,2", "--sweep", "b=x,y", *texts, "--", "echo", "{a}{b}")
    assert ids == [1, 2, 3, 4]
    assert [queue.job(id)["command"][1] for id in ids] == ["1x", "1y", "2x", "2y"]
    found = {"".join(job["command"][1:]): job for job in queue.end(*ids)}
    assert set(found) == {"1x", "1y", "2x", "2y"}
    for words, job in found.items():
        assert (job["name"], job["label"], job["note"]) == (f"n{words[0]}", f"l{words[1]}", f"o{words[0]}{{c}}")
        assert job["log"] == f"{queue.folder}/s{words}.log"
        assert queue.output(job["id"]) == f"{words}\n"


def test_a_long_sweep_with_texts_of_its_own_is_queued_whole_or_not_at_all(queue: QueueSite) -> None:
    queue.ask("pause", queue=True)
    words = ["--sweep", "a=1:3000", "--name", "n{a}" + "x" * 400, "--", "true", "{a}"]
    assert add(queue, *words) == list(range(1, 3001))
    assert [queue.job(id)["name"][:5] for id in (1, 3000)] == ["n1xxx", "n3000"]
    wrong = queue.run("add", "--sweep", "a=1:3000", "--name", "n{a}" + "x" * 4094, "--", "true", "{a}")
    assert wrong.returncode == 2
    assert queue.ask("ls")["counts"] == {"waiting": 3000}


def test_jobs_of_a_sweep_that_share_a_log_are_told_apart_by_their_ids(queue: QueueSite) -> None:
    ids = add(queue, "--sweep", "a=1,2", "--sweep", "b=1,2", f"--log={queue.folder}/s{{a}}.log", "--", "echo", "{a}{b}")
    queue.end(*ids)
    assert [queue.job(id)["log"] for id in ids] == [f"{queue.folder}/s{1 + id // 3}.log.{id}" for id in ids]


# --------------------------------------------------------------------- the logs


def replaced(queue: QueueSite, id: int, make: Callable[[str], object]) -> None:
    log = queue.job(id)["log"]
    os.unlink(log)
    make(log)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "fifo"])
def test_only_an_ordinary_file_is_shown(queue: QueueSite, make: Callable[[str], object]) -> None:
    id = queue.submit("echo", "x")
    queue.end(id)
    replaced(queue, id, make)
    for words in (["log", str(id)], ["log", str(id), "--tail", "1"], ["log", str(id), "-f"]):
        done = queue.run(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "not a regular file" in done.stderr
        assert "Traceback" not in done.stderr
    assert queue.run("show", str(id)).returncode == 0
    assert queue.run("debug", str(id)).returncode == 0


@needs_root
def test_a_log_that_may_not_be_read_is_told(queue: QueueSite) -> None:
    from gpulease.api.log import open_log
    from gpulease.errors import NotPermitted

    path = queue.folder / "secret"
    path.touch(0o600)
    user = two_users()[0]
    pid = os.fork()
    if pid == 0:
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        try:
            open_log(str(path))
        except NotPermitted:
            os._exit(77)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 77


def test_the_logs_of_several_are_shown_though_one_has_none(queue: QueueSite) -> None:
    first, second, third = queue.submit_all([["echo", "one"], ["echo", "two"], ["echo", "three"]], label="l")
    held = queue.submit("true", hold=True)
    queue.end(first, second, third)
    os.unlink(queue.job(first)["log"])
    for words in (["all"], ["1-4"], ["1,2,3,4"]):
        done = queue.run("log", *words)
        assert (done.returncode, done.stdout) == (0, "==> job 2 <==\ntwo\n==> job 3 <==\nthree\n")
        assert done.stderr.endswith(f"job {first},{held}\n")
    assert "two\n" in queue.run("log", "--label", "l", "--state", "complete").stdout
    assert queue.run("log", str(first)).returncode == 1
    waits = queue.run("log", str(held))
    assert (waits.returncode, waits.stdout) == (0, "")
    assert "has written nothing yet" in waits.stderr


def test_a_broker_in_the_foreground_writes_to_its_own_terminal() -> None:
    site = QueueSite()
    try:
        site.ensure_broker()
        assert site.run("log", "broker").returncode == 0
        site.run("stop")
        broker = site.start("broker")
        assert broker.stderr is not None
        broker.stderr.readline()
        done = site.run("log", "broker")  # a file of the one before is there still
        assert (done.returncode, done.stdout) == (1, "")
        assert "in the foreground" in done.stderr
        assert "stderr" in done.stderr
    finally:
        site.close()


# --------------------------------------------------------------- choosing, telling


def test_last_is_a_job_for_the_verbs_of_one_job_too(queue: QueueSite) -> None:
    queue.ask("pause", queue=True)
    queue.submit_all([["true"]] * 3)
    assert queue.run("move", "last").stdout == "moved 3\n"
    assert [job["id"] for job in queue.jobs()] == [3, 1, 2]
    assert queue.run("move", "J3", "100").stdout == "moved 3\n"
    assert [job["id"] for job in queue.jobs()] == [1, 2, 3]
    assert queue.run("explain", "last").stdout.startswith("J3 is number 3")


def test_of_all_only_what_is_news_is_told(queue: QueueSite) -> None:
    queue.ask("pause", queue=True)
    ids = queue.submit_all([["true"]] * 8, label="l")
    queue.act("kill", *ids[:7])
    for words in (["all"], ["--label", "l"]):
        done = queue.run("pause", *words)
        assert done.returncode == 1
    done = queue.run("kill", "all")
    assert (done.stdout, done.stderr) == ("killed 8\n", "")
    ids += queue.submit_all([["true"]])
    done = queue.run("kill", "1-9")
    assert done.stdout == "killed 9\n"
    assert done.stderr == "gpulease: left as they are: 1-8 killed\n"


def test_ls_says_how_many_more_there_are_and_keeps_within_the_width(queue: QueueSite) -> None:
    queue.end(*queue.submit_all([["true"]] * 12))
    queue.end(queue.submit("false"))
    queue.act("kill", queue.submit("true", hold=True))
    queue.end(queue.submit("/no/such/command"))
    queue.ask("pause", queue=True)
    queue.submit_all([["true"]] * 3)
    queue.submit("true", hold=True)
    lines = queue.run("ls", COLUMNS="60").stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-1].endswith("and 5 more ended; see --all")
    assert "more" not in queue.run("ls", "--all").stdout.splitlines()[-1]
    assert "and 2 more that wait; see --most" in queue.run("ls", "--most", "1").stdout


def test_texts_of_show(queue: QueueSite) -> None:
    id = queue.submit("true", request={"gpus": 2}, hold=True)
    assert "2 GPUs, priority 5" in queue.run("show", str(id)).stdout


def test_what_is_hidden_is_not_shown_as_a_command() -> None:
    from gpulease.render.jobs import command_text

    assert command_text(["(hidden)"]) == "(hidden)"
    assert command_text(["echo", "a b"]) == "echo 'a b'"


@needs_root
def test_root_is_told_that_the_environment_is_the_submitters(system: SystemSite) -> None:
    id = system.add(system.alice, "true", hold=True)["ok"]["first"]
    done = system.run("show", str(id), "--env")
    assert done.returncode == 0
    assert f"only the submitter sees the environment of job {id}" in done.stderr
    log = system.run("log", "broker")
    assert log.returncode == 1
    assert "as the system broker" in log.stderr


def test_edit_has_the_options_of_add_and_takes_back_what_none_takes_back(queue: QueueSite) -> None:
    queue.ask("pause", queue=True)
    first = queue.submit("true", hold=True)
    id = add(queue, "--at", "in 1h", "--after", str(first), "--model", "A100", "--", "true")[0]
    words = ["-n", "2", "-p", "1", "--at", "none", "--after", "none", "--model", "none"]
    assert queue.run("edit", str(id), *words).stdout == f"edited {id}\n"
    job = queue.job(id)
    request = job["request"]
    assert (request["gpus"], request["priority"], request["not_before"], request["models"]) == (2, 1, None, [])
    assert job["after"] == []


def test_a_wait_may_be_longer_than_the_kernel_waits_at_once(queue: QueueSite) -> None:
    id = queue.submit("sh", "-c", "while ! [ -e go ]; do sleep 0.05; done")
    waiting = queue.start("wait", str(id), "--timeout", "3650d")
    queue.until(id, "running")
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.5)
    Path(queue.folder, "go").touch()
    assert waiting.wait(40) == 0


# ----------------------------------------------------------- help and completion


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_at_most_80_columns_wide(verb: str) -> None:
    parser: ArgumentParser = make_parser(verb)
    groups = [action.choices.values() for action in parser._actions if isinstance(action, _SubParsersAction)]
    for each in [parser, *(inner for group in groups for inner in group)]:
        assert [line for line in each.format_help().splitlines() if len(line) > 80] == []


def test_words_for_jobs_and_names_of_parameters_are_completed() -> None:
    assert suggestions(["kill", ""]) == ["all", "last"]
    assert suggestions(["log", "b"]) == ["broker"]
    assert suggestions(["move", ""]) == ["last"]
    assert suggestions(["move", "3", ""]) == []
    assert suggestions(["set", "keep-g"]) == ["keep-gpu-memory"]
    assert suggestions(["kill", "--state", "fa"]) == ["failed"]


def test_the_name_of_a_job_is_its_own_and_no_model_of_a_gpu(queue: QueueSite) -> None:
    id = int(queue.run("submit", "--name", "exp1", "--", "true").stdout)
    assert "exp1" in queue.run("ls").stdout
    assert (queue.job(id)["name"], queue.job(id)["request"]["models"]) == ("exp1", [])
    queue.end(id)
