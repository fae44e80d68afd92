"""A simulated machine with a broker of its own, real clients, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.machine import Machine, listener_at
from support.raw import Raw
from support.waiting import PATIENCE, wait_for_end, wait_until

MARK = "GPULEASE_TEST_SITE"  # in the environment of everything that a site starts, however indirectly
HOLD = "import sys; print('ready', flush=True); sys.stdin.read()"


class Site(Machine):
    """In a short folder that every user may enter: a socket's path is short, and some tests are of several users."""

    def __init__(self, count: int = 4, profile: str = "a100", shared: bool = False, base: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpulease-test-", dir=base))
        self.folder.chmod(0o755)
        super().__init__(self.folder, count, profile)
        self.directory = str(self.folder / "dir")
        self.environ |= {"PYTHONDONTWRITEBYTECODE": "1", MARK: str(self.folder)}
        if shared:
            self.state.chmod(0o755)
            (self.state / "processes").chmod(0o1777)
        self.started: list[subprocess.Popen[str]] = []

    # ---------------------------------------------------------------- processes

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """A gpulease command in the background; ended with the site at the latest."""
        return self.popen(self.words(*words), **more)

    def popen(self, words: list[str], **more: Any) -> subprocess.Popen[str]:
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environ = {**self.environ, **more.pop("environ", {})}
        environ = more.pop("env", environ)
        process = subprocess.Popen(words, env=environ, text=True, **{**options, **more})
        self.started.append(process)
        return process

    def holder(self, *request: str) -> subprocess.Popen[str]:
        """`gpulease run` of a process that has its GPU by the time this returns, until its input is closed."""
        process = self.start("run", *request, "--", sys.executable, "-c", HOLD)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
        return process

    def python(self, code: str, *words: str, **more: Any) -> subprocess.Popen[str]:
        return self.popen([sys.executable, "-c", code, *words], **more)

    def bash(self, script: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A script in which `gpulease` is ours."""
        lines = f'gpulease() {{ "{sys.executable}" -m gpulease "$@"; }}\n{script}'
        return subprocess.run(
            ["bash", "-c", lines], env={**self.environ, **more}, capture_output=True, text=True, timeout=PATIENCE
        )

    # ---------------------------------------------------------------- the broker

    def raw(self) -> Raw:
        return Raw(self.directory)

    def ensure_broker(self) -> int:
        """Its pid, once it runs."""
        done = self.run("events")
        assert done.returncode == 0, done.stderr
        return wait_until(self.broker_pid)

    def broker_pid(self) -> int | None:
        """Who listens now, by the kernel's word."""
        return listener_at(self.directory)

    def kill_broker(self) -> bool:
        """With -9, if there is one."""
        pid = self.broker_pid()
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        wait_for_end(pid)
        return True

    def status(self) -> Any:
        return self.json("status")

    def log(self) -> str:
        try:
            return Path(self.directory, "broker.log").read_text()
        except OSError:
            return ""

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        for process in self.started:
            process.kill()
        for process in self.started:
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        wait_until(lambda: kill_marked(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)


def kill_marked(folder: Path) -> bool:
    """Whoever still runs for this folder, the broker above all, is killed; a folder is only ever one test's."""
    left = marked(folder)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return not left


def marked(folder: Path) -> list[int]:
    """All processes that were started for a site, however indirectly."""
    mark = f"{MARK}={folder}".encode()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in _environ(pid)]


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.fixture(name="site")
def fresh_site() -> Iterator[Site]:
    """Four simulated GPUs and a broker that ends with the test, without a traceback in its log."""
    site = Site()
    try:
        yield site
        assert "Traceback" not in site.log(), site.log()
    finally:
        site.close()


def devices_of(site: Site, state: str) -> list[int]:
    return [device["index"] for device in site.status()["devices"] if device["state"] == state]
