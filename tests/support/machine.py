"""A simulated machine, and the real `gpulease` run in it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpulease.simulator.state import create, set_values

SCRIPT = "import sys; print('ready', flush=True); sys.stdin.read()"
PATIENCE = 60
OURS = ("SLURM_", "GPULEASE_", "CUDA_", "COLUMNS", "NO_COLOR")


def plain_environment() -> dict[str, str]:
    """Without what steers gpulease itself; nor is what listens here asked for at a proxy of the machine's."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OURS) and not name.lower().endswith("_proxy")
    }


def listener_at(directory: str) -> int | None:
    """The pid of the broker that listens there, by the kernel's word."""
    with socket.socket(socket.AF_UNIX) as connected:
        try:
            connected.connect(f"{directory}/socket")
        except OSError:
            return None
        return int(struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


class Machine:
    def __init__(self, folder: Path, count: int = 4, profile: str = "a100") -> None:
        self.state = folder / "machine"
        create(self.state, count, profile)
        self.environ = {
            **plain_environment(),
            "GPULEASE_SIMULATION": str(self.state),
            "GPULEASE_DIR": str(folder / "dir"),
        }

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*words), env={**self.environ, **more}, capture_output=True, text=True, timeout=PATIENCE
        )

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpulease", *words]

    def json(self, *words: str, **more: str) -> Any:
        done = self.run(*words, "--json", **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def set(self, *assignments: str) -> None:
        set_values(self.state, assignments)

    @contextmanager
    def occupied(self, devices: str, memory: str = "8G", *more: str) -> Iterator[subprocess.Popen[str]]:
        """A real process that holds simulated GPUs until the block ends."""
        words = self.words("simulate", "use", devices, "--memory", memory, *more, "--", sys.executable, "-c", SCRIPT)
        with subprocess.Popen(
            words, env=self.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
            process.kill()
