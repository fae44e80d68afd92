"""`gpulease top` on a real terminal, driven by keys."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.accounts import SystemSite, system_site  # noqa: F401  # pytest finds the fixture here
from support.machine import PATIENCE, plain_environment
from support.other_users import needs_root
from support.queue_site import QueueSite, fresh_queue  # noqa: F401
from support.tmux import SIZES, Tmux, opened, small_terminal, terminal_of_each_size  # noqa: F401
from support.users import becoming

ROOT = Path(__file__).parents[2]
COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-7]|4[0-7]|9[0-7])m")
MODES = 'echo "modes" {} $(stty -g | cksum)'
GROWING = 'while read word; do echo "heard $word"; done < {fifo}'


@pytest.fixture
def fifo(queue: QueueSite) -> Iterator[int]:
    """Written by the test, read by a job."""
    path = queue.folder / "fifo"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_a_job_appears_its_log_grows_and_it_is_killed_after_a_question(
    queue: QueueSite, terminal: Tmux, fifo: int
) -> None:
    terminal.top()
    terminal.wait("4 SIMULATED GPUs, 4 free", "Nobody holds or waits for a GPU")
    id = queue.shell(GROWING.format(fifo=queue.folder / "fifo"), name="listener")
    terminal.wait("3 free", "1 running", "holding GPUs: 1", f">J{id}", "listener")
    terminal.press("Enter")
    terminal.wait(f"J{id} of", ": running", "command: sh -c", "log /")
    os.write(fifo, b"one\n")
    terminal.wait("heard one")
    os.write(fifo, b"two\n")
    terminal.wait("heard one", "heard two")
    terminal.press("x")
    terminal.wait(f"kill job {id} of", "y/N")
    terminal.press("n")
    terminal.wait("nothing done")
    assert queue.job(id)["state"] == "running"
    terminal.press("x")
    terminal.wait("y/N")
    terminal.press("y")
    terminal.wait("killed by")
    terminal.press("q")
    terminal.wait("4 free", "1 killed", "ended: 1", f">J{id}")
    assert queue.job(id)["state"] == "killed"
    terminal.press("q")
    terminal.wait("$", without="SIMULATED")


def test_a_job_is_paused_and_goes_on(queue: QueueSite, small: Tmux) -> None:
    id = queue.shell("sleep 600")
    queue.until(id, "running")
    small.top()
    small.wait(f">J{id}", "running")
    small.press("p")
    small.wait(f"pause job {id}")
    small.press("y")
    small.wait("paused job", "1 paused")
    small.press("p")
    small.wait(f"resume job {id}")
    small.press("y")
    small.wait("resumed job", "1 running")


def test_who_waits_is_shown_with_the_reason_and_the_start(queue: QueueSite, terminal: Tmux) -> None:
    assert queue.run("get", "-n", "3", "--for", "1h", "--note", "for the paper").returncode == 0
    id = queue.submit("sleep", "600", request={"gpus": 2})
    terminal.top()
    seen = terminal.wait("reserved", "for the paper", "waiting, in order: 1", f"J{id}", "needs 2, 1 free")
    assert re.search(r"\(2\) +in (1h|\d\dmin) ", seen), "the reservation ends by then"
    assert "no job" not in seen
    terminal.press("x")
    terminal.wait("L1 is not a job: `gpulease release L1` releases it")
    terminal.press("End", "Enter")
    terminal.wait(f"J{id} of", ": waiting", "why:", "It has not started yet.")


def test_filter_sort_and_help(queue: QueueSite, small: Tmux) -> None:
    queue.submit_all([["sleep", "600"], ["sleep", "700"]], name=None)
    small.top()
    small.wait("holding GPUs: 2")
    small.press("/")
    small.type("700")
    small.wait("filter: 700_", "holding GPUs: 1")
    small.press("Enter")
    small.wait("[filter: 700]")
    small.press("Escape")
    small.wait("holding GPUs: 2", without="filter:")
    small.press("s")
    small.wait("sorted by user")
    small.press("r", "?")
    small.wait("kill a job, after a question")
    small.press("q")
    small.wait("holding GPUs: 2", "by user")


def test_it_fits_whatever_size_the_terminal_becomes(queue: QueueSite, small: Tmux) -> None:
    queue.submit_all([["sleep", "600"]] * 30)
    small.top()
    assert "NAME" not in small.wait("waiting, in order: 26")
    small.resize(200, 60)
    seen = small.wait("NAME", "A100-SXM4-80GB", "PRIO", "WHY", "J30")
    assert sum("sleep 600" in line for line in seen.splitlines()) >= 30
    small.resize(60, 15)
    lines = small.wait(without="NAME").splitlines()
    assert max(map(len, lines)) <= 60
    small.press("End")
    small.wait(">J30")


def test_it_says_that_the_broker_ended_and_comes_back_by_itself(queue: QueueSite, small: Tmux) -> None:
    queue.shell("sleep 600", name="before")
    small.top()
    small.wait("before")
    lock = os.open(Path(queue.directory, "start.lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)  # while it is held no client starts a broker
    queue.kill_broker()
    small.wait("The broker ended; looking for the next one.")
    os.close(lock)
    small.wait("The broker is back.", "before", without="The broker ended")
    queue.shell("sleep 600", name="after")
    small.wait("after")


def test_no_colour_is_sent_where_none_is_wanted(queue: QueueSite, small: Tmux) -> None:
    queue.shell("sleep 600", name="job")
    small.top()
    small.wait("job")
    assert COLOUR.search(small.shown(escapes=True))
    small.press("q")
    small.wait(without="SIMULATED")
    for environ in ({"NO_COLOR": "1"}, {"TERM": "vt100"}):
        small.top(**environ)
        small.wait("job")
        assert not COLOUR.search(small.shown(escapes=True))
        small.press("q")
        small.wait(without="SIMULATED")


def test_the_terminal_is_left_as_it_was(queue: QueueSite, small: Tmux) -> None:
    small.run(["sh", "-c", MODES.format("before")])
    before = small.wait("modes before").partition("modes before")[2].split()[0]
    for how in ("C-c", "q", "TERM"):
        small.top()
        if how == "TERM":
            os.kill(_child(int(small.about("#{pane_pid}"))), signal.SIGTERM)
        else:
            small.press(how)
        small.wait("modes before", without="SIMULATED")
        small.run(["sh", "-c", MODES.format(how)])
        assert small.wait(f"modes {how}").partition(f"modes {how}")[2].split()[0] == before
        assert small.about("#{cursor_flag} #{alternate_on}") == "1 0"


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_it_goes_to_the_shell_and_comes_back(queue: QueueSite, small: Tmux) -> None:
    small.top()
    small.press("C-z")
    small.wait("Stopped", without="SIMULATED")
    queue.shell("sleep 600", name="meanwhile")
    small.run(["fg"])
    small.wait("SIMULATED", "meanwhile", without="Stopped")


def test_what_a_job_writes_does_not_drive_the_terminal(queue: QueueSite, small: Tmux) -> None:
    evil = r"printf '\033]2;stolen\007\033[2J\033[31mred\033[0m\tand\rover\n\233[5m\001last\n'; sleep 600"
    id = queue.shell(evil)
    queue.until(id, "running")
    title = small.about("#{pane_title}")
    small.top()
    small.wait(f">J{id}")
    small.press("Enter")
    seen = small.wait("over", "last", f"J{id} of")
    assert "red" not in seen.partition("log /")[2]
    assert small.about("#{pane_title}") == title


def test_without_a_terminal_it_names_what_needs_none(queue: QueueSite, small: Tmux) -> None:
    done = queue.run("top")
    assert (done.returncode, done.stdout) == (2, "")
    assert "`gpulease status --watch`" in done.stderr
    small.run(["sh", "-c", " ".join([*queue.words("top"), "; echo code $?"])], TERM="no-such-terminal")
    small.wait("The terminal 'no-such-terminal' cannot be drawn on.", "status --watch", "code 2")


@pytest.mark.long("faces")
def test_the_picture_in_the_docs_is_made_of_a_simulated_machine(tmp_path: Path) -> None:
    environ = {**plain_environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(
        [sys.executable, str(ROOT / "tools" / "top_picture.py"), str(tmp_path / "top.svg"), "3"],
        env=environ,
        check=True,
        timeout=PATIENCE,
    )
    for path in (tmp_path / "top.svg", ROOT / "docs" / "how-to" / "top.svg"):
        text = "".join(ElementTree.parse(path).getroot().itertext())
        assert all(part in text for part in ("SIMULATED", "resnet", "paper deadline", "waiting, in order", "q quit"))
        assert re.findall("https?://", path.read_text()) == ["http://"]  # the name of the format, and no other


@needs_root
def test_anothers_job_is_shown_and_not_touched(system: SystemSite) -> None:
    id = system.add(system.alice, "sleep 600")["ok"]["first"]
    system.until(id, "running")
    for tmux in opened(system, *SIZES[0]):
        words = [*becoming(system.bob.pw_uid), system.python_of_all, "-m", "gpulease", "top"]
        tmux.run(system.namespace.words(*words))
        tmux.wait(f">J{id}", "alice", "running")
        tmux.press("Enter")
        tmux.wait(f"J{id} of alice: running", f"Job {id} belongs to alice.")
        tmux.press("q")
        tmux.wait("holding GPUs", without="belongs")
        tmux.press("x")
        tmux.wait(f"kill job {id} of alice")
        tmux.press("y")
        tmux.wait(f"Job {id} belongs to alice.")
    assert system.job(id)["state"] == "running"
