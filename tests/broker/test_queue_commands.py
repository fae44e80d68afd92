"""What cannot be started is told when it is added, and queued only with --force; --shell runs command lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixture here

import gpulease
from gpulease.errors import UsageError

pytestmark = pytest.mark.usefixtures("inside")


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 2, done
    for text in said:
        assert text in done.stderr
    assert "--force" in done.stderr
    assert done.stdout == ""


def script(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\necho ran\n")
    path.chmod(mode)
    return path


def test_a_command_that_cannot_be_started_is_refused_with_the_reason(queue: QueueSite) -> None:
    script(queue.folder / "plain", 0o644)
    refused(queue.run("add", "--", "nosuchcmd", "x"), "'nosuchcmd' does not exist")
    refused(queue.run("add", "python train.py --lr 3"), "one word with spaces", "quotes", "--shell")
    refused(queue.run("add", "--", "LR=3", "true"), "sets a variable", "env LR=3")
    refused(queue.run("add", "--", "./plain"), "may not be run", "executable")
    refused(queue.run("add", "--", "/"), "is a folder")
    refused(queue.run("add", "--", "./no/such"), "does not exist")
    refused(queue.run("add", "--sweep", "a=true,nosuch-b", "--", "{a}"), "'nosuch-b' does not exist")
    refused(queue.run("add", "--", sys.executable, "-u", "trian.py"), "'trian.py' does not exist", "--force")
    assert queue.jobs() == []
    assert queue.run("add", "--force", "--", "nosuchcmd").stdout == "1\n"
    assert queue.end(1)[0]["state"] == "invalid"
    assert queue.run("add", "--after-any", "1", "--", sys.executable, "trian.py").stdout == "2\n"  # 1 may write it


def test_a_command_is_looked_for_where_the_job_will(queue: QueueSite) -> None:
    there = script(queue.folder / "there" / "tool")
    script(queue.folder / "there" / "bin" / "deep")
    refused(queue.run("add", "--", "tool"), "does not exist")
    refused(queue.run("add", "--", "./tool"), "does not exist")
    path = f"{there.parent}:{os.environ['PATH']}"
    ways = [
        ["--env", f"PATH={path}", "--", "tool"],
        ["--cwd", str(there.parent), "--", "./tool"],
        ["--cwd", str(there.parent), "--env", f"PATH=bin:{os.environ['PATH']}", "--", "deep"],
        ["--", "there/tool"],
    ]
    ids = [int(queue.run("add", *way).stdout) for way in ways]
    assert [job["state"] for job in queue.end(*ids)] == ["complete"] * len(ways)
    refused(queue.run("add", "--env", "PATH=/nowhere", "--", "true"), "does not exist")
    refused(queue.run("add", "--cwd", str(there.parent), "--", "there/tool"), "does not exist")


def test_of_a_file_the_line_is_named_and_nothing_is_queued(queue: QueueSite) -> None:
    file = queue.folder / "jobs.txt"
    file.write_text("true # fine\n\n'python train.py'\nnosuchcmd\n")
    refused(queue.run("add", "--file", str(file)), "Line 3 of", "one word with spaces", "Nothing was queued")
    assert queue.jobs() == []
    assert queue.run("add", "--file", str(file), "--force").stdout == "1\n2\n3\n"


def test_a_shell_runs_a_command_line_each_line_of_a_file_and_a_sweep(queue: QueueSite) -> None:
    one = queue.run("add", "--shell", "echo $GPULEASE_JOB > one && echo ok | cat")
    file = queue.folder / "jobs.txt"
    file.write_text('# a comment\nA=two; echo $A > "$A" # and so on\n')
    two = queue.run("add", "--shell", "--file", str(file))
    three = queue.run("add", "--shell", "--sweep", "n=0.1:0.3:0.1", "echo {n} > s{n}")
    assert [done.stderr for done in (one, two, three)] == [""] * 3
    assert [job["state"] for job in queue.end(1, 2, 3, 4, 5)] == ["complete"] * 5
    assert [(queue.folder / name).read_text() for name in ("one", "two", "s0.3")] == ["1\n", "two\n", "0.3\n"]
    assert queue.job(3)["command"] == ["sh", "-c", "echo 0.1 > s0.1"]
    assert queue.output(1) == "ok\n"
    wrong = queue.run("add", "--shell", "--", "echo", "a")
    assert (wrong.returncode, "one text" in wrong.stderr) == (2, True)


def test_a_line_that_needs_a_shell_is_told_and_queued_as_words(queue: QueueSite) -> None:
    done = subprocess.run(
        queue.words("add", "--file", "-"), env=queue.environ, input="echo a > b # c\n", capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "line 1 of - has > in it" in done.stderr
    queue.end(1)
    assert queue.output(1) == "a > b\n"


def test_python_refuses_the_same_and_names_no_options(queue: QueueSite) -> None:
    submits: list[Callable[[], Any]] = [
        lambda: gpulease.submit(["nosuchcmd"]),
        lambda: gpulease.submit(["python train.py --lr 3"]),
        lambda: gpulease.submit([sys.executable], env={"PATH": "/nowhere"}, cwd="/no-such"),
        lambda: gpulease.submit(["true"], env={"PATH": "/nowhere"}),
        lambda: gpulease.submit(["echo", "a"], shell=True),
    ]
    for submit in submits:
        with pytest.raises(UsageError) as error:
            submit()
        assert "--" not in str(error.value).replace("--lr", "")
    with pytest.raises(UsageError, match="force queues it"):
        submits[0]()
    assert gpulease.jobs() == []
    assert gpulease.submit(["nosuchcmd"], force=True).wait() == "invalid"
    job = gpulease.submit("echo $WORD | cat", shell=True, env={"WORD": "said"})
    assert (job.wait(), job.log()) == ("complete", "said\n")
