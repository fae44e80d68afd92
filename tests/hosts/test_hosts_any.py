"""`--host any`: each host's own planner says when it would start, and the soonest is taken."""

from __future__ import annotations

import shlex
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from support.needs import needs_root
from support.ssh_hosts import SshHosts, three_hosts  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def nothing_left(hosts: SshHosts) -> None:
    for name in hosts.hosts:
        hosts.run("--host", name, "kill", "all", "--wait")
        hosts.run("--host", name, "clean", "--all")


def test_it_goes_where_it_fits_now(hosts: SshHosts) -> None:
    done = hosts.run("run", "-q", "--host", "any", "-n", "3", "--", "sh", "-c", "echo $GPULEASE_DEVICES; exit 4")
    assert (done.returncode, done.stdout) == (4, "0,1,2\n")
    assert done.stderr == "gpulease: on gpu2\n"


def test_a_shell_is_opened_where_it_fits(hosts: SshHosts) -> None:
    done = hosts.run("shell", "--host", "any", "-n", "4", input="hostname; echo gpus $GPULEASE_DEVICES; exit 6\n")
    assert done.returncode == 6, done
    assert "gpus 0,1,2,3" in done.stdout


def test_it_goes_where_it_would_start_first(hosts: SshHosts) -> None:
    for host, gpus, time in (("gpu1", "2", "3h"), ("gpu2", "4", "1h"), ("gpu3", "1", "2h")):
        assert hosts.run("add", "--host", host, "-n", gpus, "--for", time, "--", "sleep", "1000").returncode == 0
    wait_until(lambda: all(row["answer"]["counts"] == {"running": 1} for row in hosts.json("ls", "--hosts")["hosts"]))
    assert hosts.run("add", "--host", "any", "--", "true").stdout.startswith("gpu2:")
    assert hosts.run("add", "--host", "gpu1,gpu3", "--", "true").stdout.startswith("gpu3:")


def test_a_sweep_is_spread_and_each_job_runs_once(hosts: SshHosts, tmp_path: Path) -> None:
    words = (
        "--host",
        "any",
        "--sweep",
        "s=1:14",
        "--name",
        "run-{s}",
        "--",
        "sh",
        "-c",
        f"echo {{s}} >> {tmp_path}/out",
    )
    done = hosts.run("add", *words)
    ids = done.stdout.split()
    assert done.returncode == 0, done
    hosts_of = Counter(id.partition(":")[0] for id in ids)
    assert sum(hosts_of.values()) == 14
    assert len(hosts_of) == 3
    assert hosts_of.most_common(1)[0][0] == "gpu2"
    assert hosts.run("wait", *ids).returncode == 0
    assert sorted(map(int, (tmp_path / "out").read_text().split())) == list(range(1, 15))
    first = hosts.json("show", ids[0])["jobs"][0]
    assert first["name"] == "run-1"


def test_what_no_host_can_do_is_told_with_each_reason(hosts: SshHosts) -> None:
    done = hosts.run("run", "--host", "any", "-n", "5", "--", "true")
    assert done.returncode == 1
    assert all(f"{name}: It wants 5" in done.stderr for name in hosts.hosts)
    done = hosts.run("add", "--host", "any", "--", "no-such-program")
    assert (done.returncode, "no-such-program" in done.stderr) == (1, True)


def test_a_dead_host_is_left_out_and_told(hosts: SshHosts) -> None:
    hosts["gpu1"].stop()
    hosts.disconnect("gpu1")
    try:
        done = hosts.run("run", "--host", "any", "--", "true")
    finally:
        hosts["gpu1"].start()
    assert done.returncode == 0
    assert "gpu1 cannot be reached" in done.stderr


def test_a_verb_about_one_host_refuses_any(hosts: SshHosts) -> None:
    done = hosts.run("kill", "--host", "any", "3")
    assert (done.returncode, "is about one host" in done.stderr) == (2, True)


def test_without_hosts_it_says_how_to_name_them(hosts: SshHosts, tmp_path: Path) -> None:
    environ = {**hosts.environ, "GPULEASE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(hosts.words("status", "--hosts"), env=environ, capture_output=True, text=True)
    assert (done.returncode, "config.toml" in done.stderr) == (2, True)


@needs_root
@pytest.mark.parametrize(("host", "sweep"), [("gpu1", ()), ("any", ("--sweep", "i=1:3"))])
def test_a_folder_that_is_named_is_one_of_the_host(hosts: SshHosts, host: str, sweep: tuple[str, ...]) -> None:
    """The folder here is not there, and the one there is not here: a mount that only this command sees."""
    there = hosts.folder / "side" / "there"
    there.mkdir(parents=True, exist_ok=True)
    words = hosts.words("add", "--host", host, "--cwd", str(there), *sweep, "--", "sh", "-c", "pwd; : {i}")
    ids = from_another_folder(hosts, there.parent, words).split()
    assert hosts.run("wait", *ids).returncode == 0
    assert {hosts.run("log", id).stdout for id in ids} == {f"{there}\n"}


@needs_root
@pytest.mark.parametrize("host", ["gpu1", "any"])
def test_run_takes_a_folder_of_the_host_too(hosts: SshHosts, host: str) -> None:
    there = hosts.folder / "aside" / "there"
    there.mkdir(parents=True, exist_ok=True)
    words = hosts.words("run", "--host", host, "--cwd", str(there), "--", "pwd")
    assert from_another_folder(hosts, there.parent, words) == f"{there}\n"


def from_another_folder(hosts: SshHosts, covered: Path, words: list[str]) -> str:
    """What is printed by a command that sees a folder of its own, in which it is, in the place of this one."""
    script = f"mount -t tmpfs none {covered} && cd {covered} && mkdir own && cd own && exec {shlex.join(words)}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], env=hosts.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
