"""GPU.py's users and ours in loops on the same GPUs, killed at random on both sides: no collision, and no GPU lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import gpuget_user
from support.gpu_locks import notes
from support.redis_server import RedisServer, redis_server  # noqa: F401
from support.site import Site, marked
from support.waiting import wait_until

GPUS = [0, 1, 2, 3]
TESTS = str(Path(__file__).parents[2])


class Crew:
    """Who takes part, each begun anew when it was killed."""

    def __init__(self, site: Site, server: RedisServer, seed: int) -> None:
        self.site, self.server, self.client = site, server, server.client()
        self.folder = site.folder / "observed"
        self.folder.mkdir()
        self.chance = random.Random(seed)
        self.kills: dict[str, int] = {"broker": 0, "child": 0, "ours": 0, "theirs": 0}
        path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
        site.environ["PYTHONPATH"] = path

    def start(self, *words: str) -> subprocess.Popen[str]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": None}
        return self.site.popen([sys.executable, "-m", *words], **quiet)

    def ours(self) -> subprocess.Popen[str]:
        return self.start("support.lease_user", str(self.folder), "0.2")

    def theirs(self) -> subprocess.Popen[str]:
        return self.start("support.gpuget_user", str(self.server.path), str(self.folder), "0.2", "0.02")

    def observer(self) -> subprocess.Popen[str]:
        return self.start("support.gpuget_observer", str(self.server.path), str(self.folder))

    def grants(self, who: str) -> int:
        return len(notes(self.folder, f"grants-{who}"))

    def run(self, grants: int, pause: float) -> None:
        """Until both sides have had so many GPUs; a kill after each pause."""
        ours, theirs = [self.ours() for _ in range(3)], [self.theirs() for _ in range(3)]
        observer = self.observer()
        while min(self.grants("gpulease"), self.grants("gpuget")) < grants:
            time.sleep(self.chance.uniform(0, 2 * pause))  # between kills
            self._kill(self.chance.choice(["broker", "child", "ours", "purge"]), ours)
            theirs = [self._again(one) for one in theirs]
        (self.folder / "stop").touch()
        for one in (*ours, *theirs, observer):
            one.wait(60)

    def _kill(self, what: str, ours: list[subprocess.Popen[str]]) -> None:
        if what == "broker":
            self.kills[what] += self.site.kill_broker()
        elif what == "child":
            for pid in children(self.site):
                os.kill(pid, signal.SIGKILL)
                self.kills[what] += 1
        elif what == "ours":
            place = self.chance.randrange(len(ours))
            ours[place].kill()
            ours[place].wait()
            self.kills[what] += 1
            ours[place] = self.ours()
        else:
            gpuget_user.purge(self.client)

    def _again(self, one: subprocess.Popen[str]) -> subprocess.Popen[str]:
        if one.poll() is None:
            return one
        self.kills["theirs"] += 1
        return self.theirs()


def children(site: Site) -> list[int]:
    found = []
    for pid in marked(site.folder):
        try:
            if b"gpuget_child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def rival(server: RedisServer, grants: int, pause: float, seed: int) -> str:
    """What there was to see, when nothing went wrong."""
    client: Any = server.client()
    gpuget_user.manage(client, GPUS)
    site = Site(len(GPUS))
    try:
        Path(site.directory).mkdir(mode=0o700)
        Path(site.directory, "config.toml").write_text(f'neighbours.gpuget = "{server.url}"\n')
        site.ensure_broker()
        crew = Crew(site, server, seed)
        crew.run(grants, pause)
        site.ensure_broker()
        gpuget_user.purge(client)
        assert notes(crew.folder, "collisions") == []
        assert notes(crew.folder, "contradictions") == []
        compared = sum(int(one.split()[0]) for one in notes(crew.folder, "observations"))
        assert compared > grants / 3
        wait_until(lambda: gpuget_user.idle(client) == GPUS)
        assert site.status()["leases"] == []
        assert "Traceback" not in site.log(), site.log()
        seen = {name: crew.grants(name) for name in ("gpulease", "gpuget")}
        return f"grants {seen}, killed {crew.kills}, {compared} leases compared with Redis"
    finally:
        site.close()


def test_both_sides_share_the_gpus_without_a_collision_or_a_loss(server: RedisServer) -> None:
    print(rival(server, 15, 1.0, 1))


@pytest.mark.long("neighbours")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_grants_through_kills_on_both_sides(server: RedisServer, seed: int) -> None:
    print(rival(server, 1000, 2.0, seed))
