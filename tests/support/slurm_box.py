"""A real Slurm on this machine for a test: its own munge, a controller, and nodes whose GPUs are null devices.

All of it lies in one short folder and listens on loopback only. Slurm's packages and root are needed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.machine import plain_environment
from support.needs import ONLY_ROOT, lacking
from support.waiting import PATIENCE, wait_for_end, wait_until

LONG = 90.0  # seconds; a loaded machine starts daemons slowly
EXPIRY = 20  # seconds
USERS = {"nobody": 65534, "daemon": 1}
needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or lacking("slurmctld", "munged") is not None, reason=lacking("slurmctld", "munged") or ONLY_ROOT
)


class SlurmBox:
    def __init__(self, nodes: int = 2, gpus: int = 4, more: str = "", cgroups: bool = False) -> None:
        """`cgroups`: jobs are followed by control groups, and so only their first process hears Slurm's signals."""
        self.folder = Path(tempfile.mkdtemp(prefix="gpulease-slurm-"))
        self.folder.chmod(0o755)
        self.conf = self.folder / "slurm.conf"
        self.nodes, self.gpus, self.cgroups = nodes, gpus, cgroups
        self._make_folders()
        self._write_conf(more)
        self.environ = {**plain_environment(), "SLURM_CONF": str(self.conf), "GPULEASE_ENGINE": "slurm"}
        self.environ |= {"XDG_STATE_HOME": str(self.folder / "state-root"), "HOME": str(self.folder)}
        self.environ["PATH"] = f"{Path(sys.executable).parent}:{self.environ['PATH']}"
        self.start()

    # ---------------------------------------------------------------- set up

    def _make_folders(self) -> None:
        for name, mode in (("saved", 0o755), ("dev", 0o755), ("munge", 0o711), ("work", 0o1777)):
            (self.folder / name).mkdir()
            (self.folder / name).chmod(mode)
        for user, uid in (("root", 0), *USERS.items()):
            (self.folder / f"state-{user}").mkdir()
            os.chown(self.folder / f"state-{user}", uid, -1)
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o400)

    def _write_conf(self, more: str) -> None:
        host = socket.gethostname().partition(".")[0]
        ports = free_ports(self.nodes + 1)
        lines = [
            "ClusterName=box",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root\nSlurmdUser=root",
            # A job that is queued again may start once its credential has expired, which takes 120 s if not said.
            f"AuthType=auth/munge\nAuthInfo=socket={self.folder}/munge/socket,cred_expire={EXPIRY}\nCredType=cred/munge",
            f"StateSaveLocation={self.folder}/saved",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid\nSlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"SlurmctldLogFile={self.folder}/slurmctld.log\nSlurmdLogFile={self.folder}/slurmd-%n.log",
            f"ProctrackType=proctrack/{'cgroup' if self.cgroups else 'linuxproc'}",
            "TaskPlugin=task/none\nMpiDefault=none\nSwitchType=switch/none",
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nGresTypes=gpu",
            "SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=1",
            "SlurmdParameters=config_overrides\nReturnToService=2\nAccountingStorageType=accounting_storage/none",
            # A control group is named after node, user and number of its job: two boxes would kill each other's jobs.
            f"FirstJobId={ports[0] * 1000 if self.cgroups else 1}",
            more,
        ]
        gres = []
        for number in range(1, self.nodes + 1):
            lines.append(
                f"NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[number]} CPUs=16 Boards=1 "
                f"SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:a100:{self.gpus}"
            )
            for index in range(self.gpus):
                (self.folder / "dev" / f"node{number}-{index}").symlink_to("/dev/null")
            gres.append(
                f"NodeName=node{number} Name=gpu Type=a100 File={self.folder}/dev/node{number}-[0-{self.gpus - 1}]"
            )
        lines.append(f"PartitionName=main Nodes=node[1-{self.nodes}] Default=YES MaxTime=INFINITE State=UP")
        self.conf.write_text("\n".join(lines) + "\n")
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self.folder / "gres.conf").write_text("\n".join(gres) + "\n")

    # ---------------------------------------------------------------- daemons

    def start(self) -> None:
        munge = self.folder / "munge"
        files = [f"--pid-file={self.folder}/munged.pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"]
        self._daemon(["munged", "--force", f"--socket={munge}/socket", f"--key-file={self.folder}/munge.key", *files])
        self.start_controller()
        for number in range(1, self.nodes + 1):
            self.start_node(f"node{number}")
        wait_until(lambda: self.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self.nodes), LONG, 0.05)

    def _daemon(self, words: list[str]) -> None:
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 0, f"{words[0]}: {done.stderr}{self.logs()}"

    def start_controller(self, *options: str) -> None:
        self._daemon(["slurmctld", *options])

    def start_node(self, name: str) -> None:
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        self._daemon(["slurmd", "-N", name])

    def pid(self, name: str) -> int | None:
        try:
            return int((self.folder / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return None

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """`slurmctld`, `slurmd-node1` or `munged`, and wait until it is gone."""
        pid = self.pid(name)
        assert pid is not None
        os.kill(pid, number)
        wait_for_end(pid, LONG)

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))

    def close(self) -> None:
        if self.answers():
            self.slurm("scancel", "--full", *self._open_jobs(), check=False)
            try:
                wait_until(lambda: not self._open_jobs(), LONG, 0.1)
            except AssertionError:
                pass
        for name in ("slurmctld", *(f"slurmd-node{number}" for number in range(1, self.nodes + 1)), "munged"):
            if (pid := self.pid(name)) is not None:
                try:
                    os.kill(pid, signal.SIGKILL)
                    wait_for_end(pid, LONG)
                except ProcessLookupError:
                    pass
        self._end_what_is_left()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_what_is_left(self) -> None:
        """Jobs that the controller has forgotten run on: they have this folder in their words."""
        mark = os.fsencode(self.folder)
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and mark in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass

    def answers(self) -> bool:
        pid = self.pid("slurmctld")
        return pid is not None and os.path.exists(f"/proc/{pid}")

    def _open_jobs(self) -> list[str]:
        return self.slurm("squeue", "-h", "-o", "%A", check=False).split()

    # ---------------------------------------------------------------- asking

    def slurm(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=LONG)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *words: str, user: str = "root", **more: Any) -> subprocess.CompletedProcess[str]:
        """A gpulease command, as root or as another user."""
        environ = {**self.environ, **more.pop("environ", {})}
        before: list[str] = []
        if user != "root":
            environ |= {"XDG_STATE_HOME": str(self.folder / f"state-{user}"), "HOME": str(self.folder / "work")}
            before = ["setpriv", f"--reuid={USERS[user]}", f"--regid={USERS[user]}", "--clear-groups"]
        options = {"capture_output": True, "text": True, "timeout": LONG, "cwd": self.folder / "work", **more}
        return subprocess.run([*before, sys.executable, "-m", "gpulease", *words], env=environ, **options)

    def ok(self, *words: str, **more: Any) -> str:
        done = self.run(*words, **more)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def json(self, *words: str, **more: Any) -> Any:
        return json.loads(self.ok(*words, "--json", **more))

    def add(self, *words: str, **more: Any) -> str:
        return self.ok("add", *words, **more).strip()

    def job(self, id: str, **more: Any) -> Any:
        return self.json("show", id, **more)["jobs"][0]

    def until(self, id: str, *states: str) -> Any:
        """The job, once it is in one of the states."""

        def seen() -> Any:
            job = self.job(id)
            return job if job["state"] in states else None

        return wait_until(seen, LONG, 0.1)


def free_ports(count: int) -> list[int]:
    """That nobody listens at now; far apart from those that the kernel gives to clients."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@pytest.fixture(scope="module")
def box() -> Iterator[SlurmBox]:
    """Two nodes of four GPUs, for all tests of a module."""
    made = SlurmBox()
    yield made
    made.close()


__all__ = ["LONG", "PATIENCE", "SlurmBox", "box", "needs_slurm"]
