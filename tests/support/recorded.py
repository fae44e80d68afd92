"""Calls of older tools (tests/compat/calls), what the tools printed (tests/compat/recorded), and how a call is made.

A call is a `program` in Python or a `command` for the shell, on a machine of simulated GPUs. Where the drop-in prints
something else on purpose, `ours` says what, and docs/reference/drop-ins.md says why.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from gpulease.simulator.folder import simulated_environment
from support.machine import PATIENCE, Machine

FOLDER = Path(__file__).parents[1] / "compat"
BACKENDS = FOLDER / "backends"
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")


class Printed(NamedTuple):
    stdout: str
    code: int


class Call(NamedTuple):
    name: str
    program: str = ""
    command: str = ""
    gpus: int = 4
    profile: str = "a100"
    machine: tuple[str, ...] = ()  # KEY=VALUE of the simulated machine
    busy: str = ""  # devices with a process on them
    ours: str | None = None
    ours_code: int | None = None

    def expected(self, recorded: Printed) -> Printed:
        stdout = recorded.stdout if self.ours is None else self.ours
        return Printed(stdout, recorded.code if self.ours_code is None else self.ours_code)


def calls_of(tool: str) -> list[Call]:
    document = tomllib.loads((FOLDER / "calls" / f"{tool}.toml").read_text())
    before, shell = document.get("before", ""), document.get("before_command", "")
    calls = [Call(**{**call, "machine": tuple(call.get("machine", ()))}) for call in document["call"]]
    return [
        call._replace(
            program=call.program and before + call.program,
            command=call.command and shell + call.command,
        )
        for call in calls
    ]


def recorded_of(tool: str) -> dict[str, Printed]:
    document = json.loads((FOLDER / "recorded" / f"{tool}.json").read_text())
    return {name: Printed(*row) for name, row in document.items()}


def make(call: Call, machine: Machine, environ: dict[str, str], python: str = sys.executable) -> tuple[Printed, str]:
    """What a call prints, and what it says on stderr; `environ` decides whose program is found."""
    machine.set(*call.machine)
    words = [python, "-c", call.program] if call.program else ["bash", "-c", call.command]
    inside = {**simulated_environment(machine.state, environ), "PYTHONDONTWRITEBYTECODE": "1"}
    with ExitStack() as stack:
        if call.busy:
            stack.enter_context(machine.occupied(call.busy))
        done = subprocess.run(words, env=inside, capture_output=True, text=True, timeout=PATIENCE)
    return Printed(TIME.sub("TIME", done.stdout), done.returncode), done.stderr
