"""GPU.py of several users at one broker: what is managed is each one's own view, and nobody releases another's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from support.drop_ins import DropIns
from support.needs import needs_root
from support.site import Site
from support.users import User
from support.waiting import wait_until

FIRST, SECOND, CAROL = 61001, 61002, 61003

pytestmark = needs_root


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(shared=True)
    common = site.folder / "common"
    common.mkdir()
    common.chmod(0o1777)
    site.directory = site.environ["GPULEASE_DIR"] = str(common / "dir")
    broker = User(site, CAROL).start("broker", "--shared", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: site.broker_pid() == broker.pid)
    try:
        yield site
    finally:
        site.close()


def gpu_py(user: User, *words: str) -> tuple[int, str, str]:
    shims = user.site.folder / "shims"
    if not shims.exists():
        DropIns(user.site, shims)
    python = user.home / "python3"
    if not python.exists():
        python.symlink_to(user.interpreter)
    path = f"{user.home}:{shims}/bin:{os.environ['PATH']}"
    environ = {"PATH": path, "PYTHONPATH": f"{shims}/python"}
    environ["GPULEASE"] = f"{user.interpreter} -m gpulease"
    done = user.execute(["bash", "-c", 'GPU.py "$@"; exit $?', "bash", *words], **environ)
    return done.returncode, done.stdout, done.stderr


def test_each_has_a_view_and_nobody_releases_anothers(site: Site) -> None:
    first, second = User(site, FIRST), User(site, SECOND)
    assert gpu_py(first, "--get")[:2] == (0, "0\n")  # all are managed from the start
    assert gpu_py(second, "--info")[:2] == (0, "GPU total:4 managed:4 idle:3\n")
    assert gpu_py(second, "--redis-manage", "2")[1] == "Objects already initialized, add force to proceed.\n"
    code, out, said = gpu_py(second, "--release", "0")
    assert (code, out) == (1, "")
    assert f"0 is leased to {FIRST}" in said
    assert gpu_py(second, "--redis-manage", "2,3", "--force")[:2] == (0, "2\n")
    assert gpu_py(second, "--redis-purge")[:2] == (0, "")
    assert gpu_py(second, "--get")[1] == "2\n"
    assert gpu_py(first, "--managed")[1] == "There is 4 MANAGED GPUs, IDs: 0,1,2,3\n"
    assert [lease["user"] for lease in site.status()["leases"]] == [str(FIRST), str(SECOND)]
    assert gpu_py(second, "--redis-delete")[0] == 0
    assert [lease["user"] for lease in site.status()["leases"]] == [str(FIRST)]
    assert gpu_py(first, "--log")[1].count("acquired by") == 2  # its own, and the other's
    assert gpu_py(first, "--release", "0")[:2] == (0, "GPU 0 released.\n")


def test_only_managers_release_everybodys(site: Site) -> None:
    first, second = User(site, FIRST), User(site, SECOND)
    assert first.run("get", "--until-released").stdout == "0\n"
    done = second.run("release", "--all")
    assert (done.returncode, "Only root and the user who runs the broker" in done.stderr) == (77, True)
    assert second.run("release", "--if-held", "0").returncode == 0  # held, and not by this user
    assert len(site.status()["leases"]) == 1
    assert second.run("release", "--mine", "--gone").stdout == "nothing to release\n"
    assert site.run("release", "--all").stdout == "released L1: GPU 0\n"
