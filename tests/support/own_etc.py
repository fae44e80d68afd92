"""A mount namespace whose /etc, /run, /var/lib and /usr/local/share can be written without touching the machine's."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpulease.simulator.state import create
from support.machine import plain_environment
from support.needs import NAMESPACES
from support.open_python import make_venv
from support.waiting import PATIENCE

PRIVATE = ("/run", "/var/lib", "/usr/local/share")


class OwnEtc:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpulease-test-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        shutil.copytree("/etc", self.folder / "etc", symlinks=True)
        create(self.folder / "machine", 2, "a100")
        (self.folder / "machine").chmod(0o755)  # the broker is another user
        (self.folder / "machine" / "processes").chmod(0o1777)
        self.environ = {**plain_environment(), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(self.folder)}
        self.python = self.make_python("opt")
        mounts = [f"mount --bind {self.folder}/etc /etc", *(f"mount -t tmpfs -o mode=755 none {p}" for p in PRIVATE)]
        words = ["unshare", "-m", "sh", "-c", " && ".join([*mounts, "echo ready", "exec cat"])]
        self.keeper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.keeper.stdout is not None
        if self.keeper.stdout.readline() != "ready\n":
            self.close()
            pytest.skip(NAMESPACES)

    def make_python(self, name: str) -> str:
        """A virtual environment with gpulease in it, as an administrator makes it for everybody."""
        venv = self.folder / name
        python = make_venv(venv, ["system"])
        (package,) = venv.glob("lib/python*/site-packages/gpulease")
        shutil.copytree(Path(__file__).parents[2] / "docs", package / "docs", dirs_exist_ok=True)
        return python

    def words(self, *words: str) -> list[str]:
        return ["nsenter", "--mount", "--target", str(self.keeper.pid), *words]

    def execute(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*words), env=self.environ, cwd="/", capture_output=True, text=True, timeout=PATIENCE
        )

    def run(self, *words: str, python: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.execute(python or self.python, "-m", "gpulease", *words)

    @contextmanager
    def started(self, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        """Until the block ends, on simulated GPUs."""
        environ = {**self.environ, **more, "GPULEASE_SIMULATION": str(self.folder / "machine")}
        environ["GPULEASE_PROBE_DEADLINE"] = str(PATIENCE)  # nothing is compiled here, and the machine may be busy
        process = subprocess.Popen(self.words(*words), env=environ, cwd="/", stdin=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)

    def close(self) -> None:
        self.keeper.communicate()
        shutil.rmtree(self.folder)
