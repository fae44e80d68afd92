"""`gpulease slurm-config` writes files with which a real Slurm starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.slurm_box import LONG, SlurmBox, free_ports, needs_slurm
from support.waiting import wait_until

from gpulease.errors import UsageError
from gpulease.slurm.configuration import PROBE, SeenHost, files, read_probe, type_of, warnings

# In the place of ssh: what it is given is run here, on a machine with three GPUs.
SSH = """#!/bin/sh
for last; do :; done
case "$*" in *gone*) echo "ssh: Could not resolve hostname gone: Name or service not known" >&2; exit 255 ;; esac
PATH=$(dirname "$0"):$PATH exec sh -c "$last"
"""
SMI = "#!/bin/sh\nprintf '0, NVIDIA A100-SXM4-80GB\\n1, NVIDIA A100-SXM4-80GB\\n2, Tesla V100-SXM2-32GB\\n'\n"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    for name, text in (("ssh", SSH), ("nvidia-smi", SMI)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return {**os.environ, "GPULEASE_SSH": str(tmp_path / "bin" / "ssh"), "GPULEASE_DIR": str(tmp_path / "dir")}


def run(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpulease", "slurm-config", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONG)


class WrittenBox(SlurmBox):
    """Started with the files that were written; only paths, ports and the account are those of a test."""

    written: Path

    def _write_conf(self, more: str) -> None:
        ports = free_ports(2)
        conf = (self.written / "slurm.conf").read_text()
        for before, after in (
            ("/var/spool/slurmctld", f"{self.folder}/saved"),
            ("/var/spool/slurmd", f"{self.folder}/spool-node1"),
            ("/run/slurmctld.pid", f"{self.folder}/slurmctld.pid"),
            ("/run/slurmd.pid", f"{self.folder}/slurmd-node1.pid"),
            ("/var/log/slurm/", f"{self.folder}/"),
            ("SlurmUser=slurm", "SlurmUser=root"),
            ("AuthType=auth/munge", f"AuthType=auth/munge\nAuthInfo=socket={self.folder}/munge/socket"),
            # Control groups need a service manager or a machine of one's own.
            ("proctrack/cgroup", "proctrack/linuxproc"),
            ("task/cgroup,task/affinity", "task/none"),
            ("localhost", "127.0.0.1"),
        ):
            assert before in conf, before
            conf = conf.replace(before, after)
        conf += f"SlurmctldPort={ports[0]}\nSlurmdPort={ports[1]}\n"
        gres = (self.written / "gres.conf").read_text()
        for index in range(3):
            (self.folder / "dev" / f"nvidia{index}").symlink_to("/dev/null")
        self.conf.write_text(conf)
        (self.folder / "gres.conf").write_text(gres.replace("/dev/nvidia", f"{self.folder}/dev/nvidia"))

    def start_node(self, name: str) -> None:
        (self.folder / "spool-node1").mkdir(exist_ok=True)
        self._daemon(["slurmd"])


@needs_slurm
def test_a_real_slurm_starts_with_what_was_written_and_gives_its_gpus(environ: dict[str, str], tmp_path: Path) -> None:
    done = run(environ, "localhost", "--to", str(tmp_path / "out"), "--cluster", "mylab")
    assert done.returncode == 0, done.stderr
    assert "localhost: 3 GPUs" in done.stdout
    WrittenBox.written = tmp_path / "out"
    box = WrittenBox(nodes=1)
    try:
        rows = box.json("status")["devices"]
        host = socket.gethostname().partition(".")[0]
        assert [(row["label"], row["name"], row["state"]) for row in rows] == [
            (f"{host}:0", "a100", "free"),
            (f"{host}:1", "a100", "free"),
            (f"{host}:2", "v100", "free"),
        ]
        id = box.add("--model", "V100", "--", "sh", "-c", "echo $GPULEASE_DEVICES")
        assert box.run("wait", id).returncode == 0, box.logs()
        assert wait_until(lambda: box.ok("log", id), LONG, 0.1) == "2\n"
    finally:
        box.close()


def test_what_is_there_is_not_written_over_and_hosts_that_fail_are_told(
    environ: dict[str, str], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    reply = run(environ, "localhost", "--to", out, "--json")
    assert json.loads(reply.stdout)["files"] == [
        "slurm.conf",
        "gres.conf",
        "cgroup.conf",
        "engine.sh",
        "commands.txt",
    ]
    again = run(environ, "localhost", "--to", out)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert run(environ, "localhost", "--to", out, "--force").returncode == 0
    gone = run(environ, "localhost", "gone", "--to", str(tmp_path / "other"))
    assert (gone.returncode, "knows no host gone" in gone.stderr) == (69, True)
    assert not (tmp_path / "other").exists()
    assert run(environ, "localhost", "--cluster", "a b", "--to", out).returncode == 2


def host(asked: str, gpus: tuple[str, ...] = ("NVIDIA A100",), time: float = 0.0) -> SeenHost:
    return SeenHost(asked, asked.partition("@")[2] or asked, time, "debian", 64000, 32, 2, 8, gpus, ())


def test_each_host_has_its_lines_and_its_commands() -> None:
    made = files(
        [host("gpu1", ("NVIDIA A100",) * 4), host("ada@gpu2", ("Tesla V100", "NVIDIA H100 PCIe"))], "lab", "today"
    )
    conf, gres, commands = made["slurm.conf"], made["gres.conf"], made["commands.txt"]
    assert "NodeName=gpu1 CPUs=32 Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=60800 Gres=gpu:a100:4" in conf
    assert "NodeName=gpu2 NodeAddr=gpu2 " in conf
    assert "Nodes=gpu1,gpu2 Default=YES" in conf
    assert "DefCpuPerGPU=8" in conf
    assert "NodeName=gpu1 Name=gpu Type=a100 File=/dev/nvidia[0-3]" in gres
    assert "NodeName=gpu2 Name=gpu Type=h100 File=/dev/nvidia1" in gres
    assert "ssh gpu1 'sudo cat /etc/munge/munge.key' | ssh ada@gpu2" in commands
    assert "apt-get install -y slurmd slurm-client munge slurmctld'" in commands
    assert all(line.startswith(("ssh ", "#")) or not line for line in commands.splitlines())
    checked = subprocess.run(["sh", "-n"], input=commands, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_hosts_that_do_not_fit_are_refused() -> None:
    for unfit in ([host("a"), host("a")], [host("a", ())], [host("a"), host("b", time=300.0)]):
        with pytest.raises(UsageError):
            files(unfit, "lab", "today")
    with pytest.raises(UsageError):
        read_probe("a", "name a\n")
    assert [type_of(name) for name in ("NVIDIA GeForce RTX 4090", "Tesla V100-SXM2", "", "NVIDIA L40S")] == [
        "4090",
        "v100",
        "gpu",
        "l40s",
    ]


@pytest.mark.parametrize(
    "before",
    [
        None,
        "",
        'hosts = ["a"]\n[limits.user."*"]\ngpus = 2\n',
        'engine = "local"\n[limits.user.engine]\ngpus = 2',
        '# engine = "x"\n  engine="slurm"\nengines = 3\n',
    ],
)
def test_the_engine_is_written_into_any_config_and_twice_is_as_once(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "etc" / "config.toml"
    if before is not None:
        path.parent.mkdir()
        path.write_text(before)
    made = files([host("gpu1")], "lab", "today")
    assert "ssh gpu1 'sudo sh -s' <engine.sh" in made["commands.txt"]
    texts = []
    for _ in range(2):
        subprocess.run(["sh", "-s", str(path)], input=made["engine.sh"], text=True, check=True)
        texts.append(path.read_text())
    assert texts[0] == texts[1]
    wanted = {**tomllib.loads((before or "").replace('engine="slurm"', "")), "engine": "slurm"}
    assert tomllib.loads(texts[0]) == wanted
    assert path.stat().st_mode & 0o777 == 0o644


def test_fewer_cores_than_gpus_is_told() -> None:
    few = SeenHost("a", "a", 0.0, "debian", 64000, 2, 1, 2, ("NVIDIA A100",) * 4, ())
    assert [text.split(":")[0] for text in warnings([few, host("b")])] == ["a has 4 GPUs and 2 CPUs"]


def test_homes_that_are_not_shared_are_told() -> None:
    local = [host(name)._replace(home="/dev/sda1") for name in ("a", "b")]
    shared = [host(name)._replace(home="server:/home") for name in ("a", "b")]
    (reply,) = warnings(local)
    assert reply.startswith("The home on a, b is on a disk of its own:")
    assert warnings(shared) == warnings(local[:1]) == []
    seen = subprocess.run(["sh", "-c", PROBE], capture_output=True, text=True, check=True).stdout
    assert "\nhome " in seen
