"""What the verbs print is readable on every terminal, fits it, and goes into any pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.machine import plain_environment
from support.site import Site, devices_of
from support.waiting import read_terminal, wait_until

from gpulease.render.hidden import of_lease
from gpulease.render.terminal import STYLES
from gpulease.render.times import clock

SHOWING = [
    "status", "ls --all", "show 1", "explain 4", "events", "set", "doctor", "log 1", "status --json", "--help",
    "help run", "select --mig --util any --mem-util any", "completion bash",
]  # fmt: skip
ODD = "naïve 日本語 \x1b[31mred"


@pytest.fixture(scope="module", name="busy")
def busy_site() -> Iterator[Site]:
    """A machine with MIG instances, jobs that run and wait, a reservation, and texts of every kind."""
    site = Site()
    try:
        site.set("gpu.1.mig=3")
        site.run("get", "--devices", "0", "--for", "1h", "--note", ODD)
        site.run("add", "--", "sh", "-c", "echo one; echo two")
        site.run("wait", "1")
        for name in (["--name", "fast"], []):
            site.run("add", "--devices", "2,3", *name, "--", "sleep", "1000")
        site.run("add", "--devices", "0", "--name", ODD, "--", "true")
        wait_until(lambda: len(site.status()["leases"]) == 3)
        yield site
    finally:
        site.close()


def on_terminal(site: Site, words: str, **environ: str) -> str:
    ours, theirs = pty.openpty()
    process = site.start(*words.split(), stdout=theirs, stderr=theirs, environ={"TERM": "xterm", **environ})
    os.close(theirs)
    shown = read_terminal(ours, b"no such text").decode()
    process.wait(30)
    os.close(ours)
    return shown


def test_no_colour_is_the_dark_blue_that_black_hides() -> None:
    assert "34" not in STYLES.values()


@pytest.mark.parametrize("words", SHOWING)
def test_no_escape_goes_into_a_pipe_nor_a_colour_past_no_color(busy: Site, words: str) -> None:
    assert "\x1b" not in busy.run(*words.split()).stdout
    assert "\x1b[3" not in on_terminal(busy, words, NO_COLOR="1")


def test_states_have_colours_on_a_terminal(busy: Site) -> None:
    assert "\x1b[36m" in on_terminal(busy, "status")


@pytest.mark.parametrize("words", SHOWING)
def test_a_reader_that_has_gone_is_no_trouble(busy: Site, words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environ = {**busy.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(busy.words(*words.split()), env=environ, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode in ((0, 141) if words == "help run" else (141,))  # argparse says nothing of it


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_status_fits_the_terminal(busy: Site, width: int, locale: str) -> None:
    environ = {"COLUMNS": str(width), "NO_COLOR": "1", "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    shown = on_terminal(busy, "status", **environ)
    assert "Traceback" not in shown
    assert "fast"[: 4 if width > 60 else 0] in shown
    for line in shown.splitlines():
        wide = len(line) + len(re.findall(r"[\u3000-\u9fff]", line))
        assert wide <= width, line


@pytest.mark.parametrize("words", ["ls --all", "show 4", "explain 4", "events", "status --json", "ls --json"])
def test_odd_names_show_in_the_plainest_locale(busy: Site, words: str) -> None:
    done = busy.run(*words.split(), LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


def test_a_jobs_row_has_its_name_or_its_command(busy: Site) -> None:
    shown = busy.run("status", COLUMNS="200").stdout
    assert re.search(r"J2 job by .*: fast\n", shown)
    assert re.search(r"J3 job by .*: sleep 1000\n", shown)
    assert {lease["job"] for lease in busy.status()["leases"]} == {"fast", "sleep 1000", None}


def test_a_jobs_command_is_hidden_with_its_note() -> None:
    row = {"id": "J1", "user": "ada", "note": "n", "job": "secret"}
    assert of_lease(row, "eve") == {"id": "J1", "user": "ada", "note": None, "job": None}
    assert of_lease(row, "ada") == row


def test_instances_are_not_counted_as_gpus(busy: Site) -> None:
    assert devices_of(busy, "free") == [1, 1, 1]
    title = busy.run("status").stdout.splitlines()[0]
    assert ": 4 SIMULATED GPUs, 0 free; 3 MIG instances, 3 free" in title


def test_a_date_has_its_year_when_that_is_another() -> None:
    now = time.localtime()
    long_ago = time.mktime((now[0] - 1, 3, 4, 5, 6, 0, 0, 0, -1))
    assert clock(long_ago, time.time()) == f"{now[0] - 1}-03-04 05:06"
    assert re.fullmatch(r"\d\d:\d\d", clock(time.time(), time.time()))


def test_doctor_says_how_a_compiler_failed(tmp_path: Path) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'error: no headers here' >&2\nexit 1\n")
    broken.chmod(0o755)
    places = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    environ = {**plain_environment(), **places, "CC": str(broken), "GPULEASE_DIR": str(tmp_path / "dir")}
    environ["GPULEASE_SIMULATE"] = "2"
    words = [sys.executable, "-m", "gpulease", "doctor", "--json"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 69
    assert "broken-cc failed: error: no headers here." in done.stdout
    assert "no C compiler" not in done.stdout
