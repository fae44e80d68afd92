"""A script that is not there is found out when it is queued; `debug` and `ls` say what happened and what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

from gpulease.api.job_commands import interpreted
from gpulease.errors import StateError
from gpulease.model import jobs


def test_a_script_that_does_not_exist_is_refused_unless_forced(queue: QueueSite) -> None:
    refused = queue.run("add", "-n", "0", "--", "python3", "-u", "trian.py", "--epochs", "3")
    assert refused.returncode == 2, refused.stderr
    assert "The script 'trian.py' does not exist" in refused.stderr
    assert "--force" in refused.stderr
    assert queue.run("add", "-n", "0", "--force", "--", "python3", "trian.py").stdout == "1\n"
    Path(queue.folder, "train.py").touch()
    assert queue.run("add", "-n", "0", "--cwd", str(queue.folder), "--", "python3", "train.py").stdout == "2\n"
    later = queue.run("add", "-n", "0", "--after", "2", "--", "python3", "made_by_2.py")
    assert later.stdout == "3\n", "an earlier job may write it"


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["python", "a.py"], "a.py"),
        (["/usr/bin/python3.11", "-uB", "a.py", "b"], "a.py"),
        (["python", "-m", "a"], None),
        (["python", "-c", "x"], None),
        (["python", "-W", "error", "a.py"], None),
        (["python", "-"], None),
        (["python"], None),
        (["torchrun", "a.py"], None),
        (["Rscript", "a.R"], "a.R"),
    ],
)
def test_a_script_is_looked_for_only_where_it_is_sure_which(words: list[str], script: str | None) -> None:
    assert interpreted(words) == script


def test_debug_of_a_failed_job_says_that_its_command_failed(queue: QueueSite) -> None:
    failed = queue.submit(sys.executable, "-c", "raise SystemExit(2)")
    queue.end(failed)
    reply = queue.run("debug", str(failed)).stdout
    assert "its command failed (exit code 2)" in reply
    assert "nothing is wrong" not in reply


def test_a_list_says_that_it_has_a_bound_where_more_was_asked_for(queue: QueueSite) -> None:
    assert queue.run("pause", "--queue").returncode == 0
    lines = Path(queue.folder, "lines")
    lines.write_text("true\n" * 1005)
    assert queue.run("add", "--file", str(lines)).returncode == 0
    reply = queue.run("ls", "--most", "5000").stdout.splitlines()[-1]
    assert "and 5 more that wait; 1000 of each kind are listed" in reply
    assert "see --most" not in reply
    assert queue.json("ls", "--most", "5000")["most"] == 1000
    assert "and 995 more that wait; see --most" in queue.run("ls", "--most", "10").stdout


def test_a_job_that_the_state_has_wrong_is_told_of_in_words() -> None:
    with pytest.raises(StateError, match="of job 7 is damaged"):
        jobs.read({"id": 7, "requesu": {}})
