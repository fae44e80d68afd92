"""The tutorial, typed into a terminal: each command prints what the page says.

What differs from run to run is made equal on both sides: the names of host and user, process ids, clocks, spans of
time, the host's free memory, and how many spaces stand between columns.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.needs import program
from support.site import Site
from support.tmux import Tmux
from support.waiting import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "first-steps.md"
PROMPT = "(simulated 4) $"
BLOCK = re.compile(r"(?:Save this as `(?P<file>[\w.]+)`[^\n]*\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
ALIKE = [
    (r"(, |\n)[\d.]+\w of [\d.]+\w RAM free", ""),
    (r"\[1\] \d+", "[1] PID"),
    (r"\(pid \d+\)", "(pid PID)"),
    (r"(?m)^( +\w+) +\d+( +8\.0G)", r"\1 PID\2"),  # of a process that is outside
    (r"\d\d:\d\d", "CLOCK"),
    (r"\b\d+ ?(s|min|h)\b", "SPAN"),
    (r"SPAN-SPAN", "SPAN"),
    (r"(?s)(\[1\]\+ [^\n]*\n)(.+)", r"\2\1"),  # the shell tells of the end of a job before one of its next prompts
    (r"(?<=[a-z\d])\n(?=(SPAN|10|within)\b)", " "),  # a sentence that is wrapped
    (r"[ \t]+", " "),
    (r"(?m)^ | $", ""),
]
LOOKS = re.compile(r"gpulease$|gpulease (ls|explain)\b")  # changes nothing, and shows a machine that still changes


@dataclass
class Step:
    commands: list[str]
    shown: str = ""  # what the page says is seen


def read_page() -> tuple[dict[str, str], list[Step]]:
    files: dict[str, str] = {}
    steps: list[Step] = []
    for found in BLOCK.finditer(PAGE.read_text()):
        if found["kind"] == "python":
            files[found["file"]] = found["text"]
        elif found["kind"] == "sh":
            steps.append(Step(found["text"].splitlines()))
        else:
            assert found["kind"] == "text"
            assert not steps[-1].shown
            steps[-1].shown = found["text"]
    return files, steps


def alike(text: str, host: str = "lab", user: str = "ada") -> str:
    text = re.sub(rf"\b{re.escape(host)}:", "lab:", re.sub(rf"\b{re.escape(user)}\b", "ada", text))
    for pattern, instead in ALIKE:
        text = re.sub(pattern, instead, text)
    return text.strip()


class Typist:
    """In a shell of one user, in the folder with the files of the page."""

    def __init__(self, site: Site, files: dict[str, str]) -> None:
        home, programs = site.folder / "home", site.folder / "bin"
        for folder in (home, programs):
            folder.mkdir()
        for name, words in {"gpulease": "-m gpulease", "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            (programs / name).chmod(0o755)
        for name, text in files.items():
            (home / name).write_text(text)
        (home / ".bashrc").write_text("PS1='$ '\n")
        for name in ("GPULEASE_DIR", "GPULEASE_SIMULATION"):
            del site.environ[name]  # of a machine that this user does not have
        site.environ |= {"HOME": str(home), "PATH": f"{programs}:{site.environ['PATH']}", "SHELL": "/bin/bash"}
        self._tmux = Tmux(site, 100, 60)
        self.close = self._tmux.close
        self._prompt = "$"
        self.type("cd")

    def type(self, command: str, prompt: str | None = None) -> str:
        """What is seen between the command and the next prompt."""
        self._tmux.press("C-l")
        self._wait(lambda lines: lines == [self._prompt])
        self._tmux.type(command)
        line = f"{self._prompt} {command}"
        self._wait(lambda lines: lines == [line])
        self._tmux.press("Enter")
        self._prompt = prompt or self._prompt
        lines = self._wait(lambda lines: len(lines) > 1 and lines[-1] == self._prompt)
        return "".join(f"{line}\n" for line in lines[1:-1])

    def _wait(self, true: Callable[[list[str]], bool]) -> list[str]:
        limit = time.monotonic() + PATIENCE
        while True:
            lines = [line.rstrip() for line in self._tmux.shown(joined=True).rstrip().splitlines()]
            if true(lines):
                return lines
            assert time.monotonic() < limit, lines
            time.sleep(0.03)

    def look(self, command: str, wanted: str) -> str:
        """As a person who looks again, since what was begun takes a moment."""
        limit = time.monotonic() + PATIENCE / 3
        while True:
            shown = self.type(command)
            if wanted.endswith(mine(shown)) or time.monotonic() > limit:
                return shown
            time.sleep(0.3)


def mine(text: str) -> str:
    return alike(text, os.uname().nodename, getpass.getuser())


@pytest.fixture(name="typist")
def typist_with_the_files() -> Iterator[Typist]:
    program("tmux")
    site = Site()
    typist = Typist(site, read_page()[0])
    try:
        yield typist
    finally:
        typist.close()
        site.close()


def test_the_tutorial_shows_what_is_seen(typist: Typist) -> None:
    _, steps = read_page()
    assert steps[0].commands == ["gpulease simulate -n 4"]
    assert steps[-1].commands == ["exit"]
    assert len(steps) > 15
    shown = typist.type(steps[0].commands[0], PROMPT)
    assert mine(shown) == alike(steps[0].shown)
    for step in steps[1:-1]:
        wanted, shown = alike(step.shown), ""
        for command in step.commands:
            shown += typist.look(command, wanted) if LOOKS.match(command) else typist.type(command)
        assert mine(shown) == wanted, f"{step.commands} printed:\n{shown}"
    typist.type("exit", "$")
