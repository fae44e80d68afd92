"""Whoever waits at a terminal or in a notebook is told so, with the place and the reason; nobody else is."""

from __future__ import annotations

import os
import pty
import sys
from types import SimpleNamespace

import pytest
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import read_terminal, wait_until

from gpulease.client import wait_notice

AT_ONCE = "import gpulease, gpulease.client.wait_notice, sys\ngpulease.client.wait_notice.SILENT_FOR = 0.0\n"
NOTEBOOK = """
import types
kernel = types.SimpleNamespace(kernel=object())
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: kernel)
"""
TASK = "def work(value): return value\n"


class Seat:
    """A program whose stderr is a terminal."""

    def __init__(self, site: Site, code: str | list[str]) -> None:
        self.terminal, theirs = pty.openpty()
        words = [sys.executable, "-c", AT_ONCE + code] if isinstance(code, str) else site.words(*code)
        environ = {"TERM": "xterm", "COLUMNS": "200"}
        self.process = site.popen(words, stderr=theirs, environ=environ)
        os.close(theirs)

    def read(self, enough: str) -> str:
        shown = read_terminal(self.terminal, enough.encode()).decode()
        assert enough in shown
        return shown

    def end(self) -> tuple[str, str]:
        """The rest of the terminal, and all of stdout."""
        rest = read_terminal(self.terminal, b"no such text").decode()
        return rest, self.process.communicate(timeout=30)[0]


def line_length(site: Site) -> int:
    return len(site.status()["line"])


def test_acquire_tells_place_and_reason_and_what_it_got(site: Site) -> None:
    holder = site.holder("-n", "4")
    seat = Seat(site, "with gpulease.acquire(2) as lease: print(lease.indices)")
    shown = seat.read("4 are free")
    assert "gpulease: " in shown
    assert " waits, number 1 in the queue. It wants 2 devices" in shown
    assert "\n" not in shown
    holder.kill()
    rest, out = seat.end()
    assert "\r\x1b[Kgpulease: got GPU 0,1 after " in rest
    assert rest.endswith(" s\r\n")
    assert out == "0,1\n"


@pytest.mark.parametrize(
    ("code", "on_terminal"),
    [("gpulease.acquire()", False), ("gpulease.acquire(quiet=True)", True)],
    ids=["in a pipe", "quiet"],
)
def test_acquire_says_nothing_to_nobody(site: Site, code: str, on_terminal: bool) -> None:
    holder = site.holder("-n", "4")
    if on_terminal:
        seat = Seat(site, code)
        process = seat.process
    else:
        process = site.python(AT_ONCE + code)
    wait_until(lambda: line_length(site) == 1)
    holder.kill()
    if on_terminal:
        assert seat.end() == ("", "")
    else:
        assert process.communicate(timeout=30) == ("", "")


@pytest.mark.parametrize(
    "code",
    ["gpulease.acquire()", f"{TASK}with gpulease.Pool() as pool: list(pool.map(work, [1]))"],
    ids=["acquire", "Pool"],
)
def test_who_waits_for_what_his_own_lease_holds_is_told_so(site: Site, code: str) -> None:
    seat = Seat(site, ["run", "-n", "4", "--", sys.executable, "-c", AT_ONCE + code])
    seat.read(" waits, number 1 in the queue. Its own lease L1 holds GPU 0-3. It wants one device")
    seat.process.kill()
    seat.process.wait(30)


def test_a_command_that_waits_for_what_its_own_lease_holds_is_told_so(site: Site) -> None:
    process = site.start("run", "-n", "4", "--", *site.words("get"))
    assert process.stderr is not None
    reply = process.stderr.readline()
    process.kill()
    process.communicate(timeout=30)
    assert " in the queue. Its own lease L1 holds GPU 0-3. It wants one device" in reply


def test_a_notebook_gets_a_line_for_each_place_and_one_at_the_end(site: Site) -> None:
    holder = site.holder("-n", "4")
    process = site.python(AT_ONCE + NOTEBOOK + "gpulease.acquire(); print(sorted(sys.modules).count('IPython'))")
    assert process.stderr is not None
    reply = process.stderr.readline()
    assert reply.startswith("gpulease: ")
    assert "waits, number 1 in the queue. It wants one device" in reply
    holder.kill()
    out, err = process.communicate(timeout=30)
    assert err.startswith("gpulease: got GPU 0 after ")
    assert "\x1b" not in err
    assert out == "1\n"


def test_threads_share_one_line_of_the_terminal(site: Site) -> None:
    holder = site.holder("-n", "4")
    code = """
import threading
threads = [threading.Thread(target=gpulease.acquire) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    seat = Seat(site, code)
    seat.read("3 requests wait; ")
    holder.kill()
    rest, _ = seat.end()
    assert rest.count("gpulease: got GPU ") == 3
    lines = rest.replace("\r\n", "\n").split("\n")
    assert [line.rpartition("\r\x1b[K")[2].count("gpulease: ") for line in lines[:-1]] == [1, 1, 1]
    assert lines[-1] in ("", "\r\x1b[K")


def test_on_wait_hears_it_instead(site: Site) -> None:
    holder = site.holder("-n", "4")
    code = "gpulease.acquire(on_wait=lambda told: print(told['place'], told['why'], flush=True))"
    seat = Seat(site, code)
    assert seat.process.stdout is not None
    assert seat.process.stdout.readline().startswith("1 It wants one device")
    holder.kill()
    assert seat.end()[0] == ""


@pytest.mark.parametrize("options", ["", ", progress='work'"])
def test_a_pool_whose_workers_all_wait_says_so(site: Site, options: str) -> None:
    holder = site.holder("-n", "4")
    code = f"{TASK}with gpulease.Pool(2) as pool: print(list(pool.map(work, [1, 2]{options})))"
    seat = Seat(site, code)
    shown = seat.read("number 1 in the queue. It wants one device")
    assert "waits, " in shown
    holder.kill()
    rest, out = seat.end()
    assert "gpulease: got GPU " in rest
    assert out == "[1, 2]\n"


def test_a_quiet_pool_does_not(site: Site) -> None:
    holder = site.holder("-n", "4")
    seat = Seat(site, f"{TASK}with gpulease.Pool(quiet=True) as pool: print(list(pool.map(work, [1])))")
    wait_until(lambda: line_length(site) == 1)
    holder.kill()
    assert seat.end() == ("", "[1]\n")


def test_following_a_job_that_waits_tells_place_and_reason(site: Site) -> None:
    holder = site.holder("-n", "4")
    assert site.run("add", "--", "echo", "it runs").returncode == 0
    process = site.start("log", "-f", "last")
    assert process.stderr is not None
    reply = process.stderr.readline()
    assert reply.startswith("gpulease: job 1 waits, number 1 in the queue. It wants one device")
    holder.kill()
    assert process.communicate(timeout=30) == ("it runs\n", "")


def test_following_a_held_job_tells_that_it_is_held(site: Site) -> None:
    assert site.run("add", "--hold", "--", "echo", "it runs").returncode == 0
    process = site.start("log", "-f", "1")
    assert process.stderr is not None
    assert "job 1 is held" in process.stderr.readline()
    assert site.run("resume", "1").returncode == 0
    assert process.communicate(timeout=30)[0] == "it runs\n"


def test_a_wait_of_less_than_a_second_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(wait_notice, "time", clock)
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        one = wait_notice.WaitNotice()
        one.say("L1 waits, number 1 in the queue.")
        one.end("0")
        two = wait_notice.WaitNotice()
        clock.monotonic = lambda: 1.5
        two.say("L2 waits, number 1 in the queue.", "why\x1b[2J")
        two.end("0")
        shown = read_terminal(ours, b" s\r\n").decode()
    os.close(ours)
    assert (
        shown == "\r\x1b[Kgpulease: L2 waits, number 1 in the queue. why [2J\r\x1b[Kgpulease: got GPU 0 after 2 s\r\n"
    )


def test_a_stderr_that_is_closed_does_not_end_a_wait(site: Site) -> None:
    holder = site.holder("-n", "4")
    words = [sys.executable, "-c", AT_ONCE + NOTEBOOK + "print(gpulease.acquire().indices)"]
    reading, writing = os.pipe()
    os.close(reading)
    process = site.popen(words, stderr=writing)
    os.close(writing)
    wait_until(lambda: line_length(site) == 1)
    holder.kill()
    assert process.communicate(timeout=30)[0] == "0\n"
