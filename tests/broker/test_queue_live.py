"""Looking at jobs as they go on: what `wait` says at the end, `ls --watch`, and several logs at once."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess

from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.waiting import read_terminal

BLOCK = "while [ ! -e go ]; do sleep 0.05; done"


def go(queue: QueueSite) -> None:
    (queue.folder / "go").touch()


def on_terminal(queue: QueueSite, *words: str) -> tuple[subprocess.Popen[str], int]:
    """Its output and its errors at a terminal, whose other side is ours."""
    ours, theirs = pty.openpty()
    process = queue.start(*words, stdout=theirs, stderr=theirs, environ={"TERM": "xterm", "COLUMNS": "80"})
    os.close(theirs)
    return process, ours


# -------------------------------------------------------------------- wait


def test_wait_says_how_many_ended_how_and_which_did_not_end_well(queue: QueueSite) -> None:
    for command in ("true", "false", "true", "false", "false"):
        queue.submit(command, label="sweep")
    queue.act("kill", queue.submit("true", label="sweep", hold=True))
    done = queue.run("wait", "--label", "sweep")
    why = queue.job(6)["why"]
    assert (done.returncode, done.stdout) == (1, f"2 complete, 3 failed: 2,4-5, 1 killed ({why}): 6\n")
    assert queue.run("wait", "1,3").stdout == "2 complete\n"
    assert queue.run("wait", "2").stdout == "2 failed, exit code 1\n"
    assert queue.run("wait", "all", "--quiet").stdout == ""


def test_the_bar_shows_failures(queue: QueueSite) -> None:
    queue.end(queue.submit("false"), queue.submit("true"))
    process, terminal = on_terminal(queue, "wait", "all")
    text = read_terminal(terminal, b"1 complete, 1 failed: 1").decode()
    assert "2 of 2 ended, 1 failed" in text
    assert process.wait(60) == 1
    os.close(terminal)


# -------------------------------------------------------------------- ls --watch


def test_ls_watch_redraws_at_a_change_and_ctrl_c_ends_it_quietly(queue: QueueSite) -> None:
    """Every 3600 seconds: only the broker's word can have it drawn again."""
    process, terminal = on_terminal(queue, "ls", "--mine", "--watch", "3600")
    text = read_terminal(terminal, b"no jobs")
    queue.shell(BLOCK)
    text += read_terminal(terminal, b"running")
    go(queue)
    text += read_terminal(terminal, b"complete")
    assert b"complete" in text
    assert text.count(b"\x1b[2J") == 1
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert b"Traceback" not in read_terminal(terminal, b"no such text")
    os.close(terminal)


def test_ls_watch_in_a_pipe_prints_a_document_for_each_change(queue: QueueSite) -> None:
    process = queue.start("ls", "--watch", "3600", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["jobs"] == []
    queue.submit("true", hold=True)
    assert [job["state"] for job in json.loads(process.stdout.readline())["jobs"]] == ["held"]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


# -------------------------------------------------------------------- several logs


def test_several_logs_are_followed_at_once_with_names_until_all_have_ended(queue: QueueSite) -> None:
    first = queue.shell(f"echo one; {BLOCK}; echo two; printf end", label="sweep", name="lr")
    second = queue.shell(f"echo other; {BLOCK}; exit 3", label="sweep")
    queue.said(first, "one")
    queue.said(second, "other")
    later = queue.submit("echo", "late", label="sweep", hold=True)
    process = queue.start("log", "--label", "sweep", "-f")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [f"{first} lr | one\n", f"{second}    | other\n"]
    go(queue)
    queue.end(first, second)
    assert process.poll() is None  # one of them is held
    queue.act("resume", later)
    lines = process.communicate(timeout=60)[0].splitlines()
    assert sorted(lines) == sorted([f"{first} lr | two", f"{first} lr | end", f"{later}    | late"])
    assert process.returncode == 0


def test_several_logs_that_are_over_are_shown_and_do_not_wait(queue: QueueSite) -> None:
    ids = queue.submit_all([["seq", "3"]] * 2)
    queue.end(*ids)
    assert queue.run("log", "all", "-f", "--tail", "1").stdout == "1 | 3\n2 | 3\n"
    assert queue.run("log", "1-2", "-n", "1").stdout == "==> job 1 <==\n3\n==> job 2 <==\n3\n"


BAR = r"""for i in 10 50 100; do printf '\r\033[32mepoch\033[0m %s%%' $i; done; echo; printf 'next\r 7%%\r'"""


def test_of_a_bar_that_is_drawn_over_itself_the_last_is_shown_with_the_name_of_its_job(queue: QueueSite) -> None:
    """`show` printed each of its states, thousands for a job of an hour; a carriage return hid the name."""
    ids = [queue.shell(BAR) for _ in range(2)]
    queue.end(*ids)
    assert queue.run("show", str(ids[0])).stdout.endswith("--- last lines of its output ---\nepoch 100%\n 7%\n")
    lines = sorted(queue.run("log", "all", "-f").stdout.splitlines())
    assert lines == [f"{id} | {text}" for id in ids for text in ("\x1b[32mepoch\x1b[0m 100%", " 7%")]
