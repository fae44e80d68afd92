"""A simulated machine with a queue; jobs are added and looked at through the broker's socket, which is quick."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulease.client import connection
from gpulease.errors import by_code
from support.needs import NAMESPACES
from support.site import Site
from support.waiting import PATIENCE, wait_until

ENDS = ("complete", "failed", "invalid", "killed", "lost")
STUBBORN = "import signal,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"


class QueueSite(Site):
    def ask(self, verb: str, **fields: Any) -> Any:
        """One question on a connection of its own; an error is raised as a client would raise it."""
        with self.raw() as raw:
            reply = raw.ask(verb, **fields)
        if "error" in reply:
            trouble = reply["error"]
            raise by_code(trouble["code"], trouble["what"], trouble["next_step"], trouble["fields"])
        return reply["ok"]

    def submit(self, *words: str, request: dict[str, Any] | None = None, **options: Any) -> int:
        """The id of a new job."""
        return self.submit_all([list(words)], request, **options)[0]

    def submit_all(self, commands: list[list[str]], request: dict[str, Any] | None = None, **options: Any) -> list[int]:
        given = {"cwd": str(self.folder), "environment": self.environ, **options}
        reply = self.ask("add", request=request or {}, options=given, commands=commands)
        return list(range(reply["first"], reply["last"] + 1))

    def shell(self, script: str, request: dict[str, Any] | None = None, **options: Any) -> int:
        return self.submit("sh", "-c", script, request=request, **options)

    def job(self, id: int) -> Any:
        return self.ask("show", select=pick(id))["jobs"][0]

    def jobs(self, **select: Any) -> list[Any]:
        found: list[Any] = self.ask("ls", most=5000, all=True, select=select or None)["jobs"]
        return found

    def until(self, id: int, *states: str) -> Any:
        """The job, once it is in one of `states`."""

        def seen() -> Any:
            job = self.job(id)
            assert job["state"] in states or job["state"] not in ENDS, job
            launching = job["state"] == "running" and job["pid"] is None
            return job if job["state"] in states and not launching else None

        return wait_until(seen)

    def end(self, *ids: int) -> list[Any]:
        """The jobs, once all of them are over."""
        with self.raw() as raw:
            raw.send("subscribe", topics=["jobs"], select=pick(*ids))
            while next(iter(raw.receive(PATIENCE).values())).get("open"):
                pass
        return [self.job(id) for id in ids]

    def act(self, verb: str, *ids: int | str, **more: Any) -> Any:
        return self.ask(verb, select=pick(*ids), **more)

    def output(self, id: int) -> str:
        try:
            return Path(self.job(id)["log"]).read_text()
        except FileNotFoundError:
            return ""

    def said(self, id: int, text: str) -> str:
        """The output of a job, once it has `text` in it."""
        return wait_until(lambda: seen if text in (seen := self.output(id)) else None)

    def restart(self) -> None:
        """Kill the broker with -9, and start another."""
        self.kill_broker()
        self.ensure_broker()


def pick(*ids: int | str) -> dict[str, Any]:
    return {"ids": [[id, id] for id in ids]}


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def state_of(pid: int) -> str:
    """As the kernel has it: R, S, T, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def agent_of(broker: int) -> int:
    """The agent that a broker started."""

    def seen() -> int | None:
        for pid in map(int, Path(f"/proc/{broker}/task/{broker}/children").read_text().split()):
            if b"gpulease.broker.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    return wait_until(seen)


def wait_for_reason(site: QueueSite, id: int, *texts: str) -> None:
    def said() -> bool:
        job = site.job(id)
        assert job["state"] in ("waiting", "running"), job
        return any(text in (job["why_waiting"] or "") for text in texts)

    wait_until(said)


def all_complete(site: QueueSite, ids: list[int]) -> None:
    found = site.end(*ids)
    assert {(job["state"], job["tries"]) for job in found} == {("complete", 1)}


@pytest.fixture(name="queue")
def fresh_queue() -> Iterator[QueueSite]:
    """Four simulated GPUs and a broker that ends with the test, without a traceback in its log."""
    site = QueueSite()
    try:
        site.ensure_broker()
        yield site
        assert "Traceback" not in site.log(), site.log()
    finally:
        site.close()


@pytest.fixture(name="small")
def on_a_small_disk() -> Iterator[QueueSite]:
    """A queue whose state and logs are on a disk of 3 MB."""
    site = QueueSite()
    os.makedirs(site.directory, 0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "none", site.directory])
    try:
        if mounted.returncode:
            pytest.skip(NAMESPACES)
        site.ensure_broker()
        yield site
        assert "Traceback" not in site.log(), site.log()
    finally:
        subprocess.run(["umount", "-l", site.directory], capture_output=True)
        site.close()


@pytest.fixture
def inside(queue: QueueSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is one of the site's clients, in its folder."""
    for name in ("GPULEASE_DIR", "GPULEASE_SIMULATION"):
        monkeypatch.setenv(name, queue.environ[name])
    monkeypatch.chdir(queue.folder)
    connection.forget()
    yield
    connection.forget()
