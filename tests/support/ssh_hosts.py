"""Hosts that are reached by a real sshd: each in a network namespace of its own, with its own key, GPUs and broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpulease.simulator.state import create
from support.machine import PATIENCE, listener_at, plain_environment
from support.needs import program
from support.site import MARK, kill_marked
from support.waiting import wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
CONFIG = """\
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxSessions 100
MaxStartups 100
SetEnv {variables}
"""


class SshHost:
    """One of them. Its folder has its key, its simulated machine, its broker's state and a `bin` before its PATH."""

    def __init__(self, name: str, folder: Path, number: int, gpus: int, profile: str) -> None:
        self.name, self.folder, self.number = name, folder / name, number
        self.bin, self.directory = self.folder / "bin", str(self.folder / "dir")
        self.bin.mkdir(parents=True)
        create(self.folder / "machine", gpus, profile)
        keygen(self.folder / "host_key")
        self.space = f"gl{os.getpid()}x{number}"
        self.address, self.port = _address(4 * number + 2), 22
        if not self._make_network():
            subprocess.run(["ip", "netns", "del", self.space], capture_output=True)
            self.space, self.address = "", f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.{number + 2}"
            self.port = 2200 + number
        self.process: subprocess.Popen[bytes] | None = None
        self.path: str | None = None  # another than the usual one

    def _make_network(self) -> bool:
        """A pair of interfaces, one end here and one there."""
        here, there = f"{self.space}h", f"{self.space}t"
        outer = f"{_address(4 * self.number + 1)}/30"
        inside = f"ip -n {self.space}"
        commands = [
            f"ip netns add {self.space}",
            f"ip link add {here} type veth peer name {there} netns {self.space}",
            f"ip addr add {outer} dev {here}",
            f"ip link set {here} up",
            f"{inside} addr add {self.address}/30 dev {there}",
            f"{inside} link set {there} up",
            f"{inside} link set lo up",
        ]
        return all(subprocess.run(words.split(), capture_output=True).returncode == 0 for words in commands)

    def start(self) -> None:
        variables = {
            "HOME": str(self.folder),  # without what this machine's shells do when they start
            "PATH": self.path or f"{self.bin}:{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),  # of the library
            "GPULEASE_SIMULATION": str(self.folder / "machine"),
            "GPULEASE_DIR": self.directory,
            MARK: str(self.folder),
        }
        written = CONFIG.format(
            address=self.address, port=self.port, folder=self.folder,
            variables=" ".join(f'"{name}={value}"' for name, value in variables.items()),
        )  # fmt: skip
        (self.folder / "sshd_config").write_text(written)
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # where sshd puts the part that has no rights
        server = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        if self.space:
            named = f"hostname {self.name} && exec {' '.join(server)}"
            server = ["ip", "netns", "exec", self.space, "unshare", "--uts", "sh", "-c", named]
        with (self.folder / "sshd.log").open("wb") as log:
            self.process = subprocess.Popen(server, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(lambda: "Server listening" in (self.folder / "sshd.log").read_text())

    def stop(self) -> None:
        """With all connections that it has."""
        if self.process is None:
            return
        for pid in [*_below(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def freeze(self, number: int = signal.SIGSTOP) -> None:
        """All connections stand still, as on a host that hangs; SIGCONT lets them go on."""
        assert self.process is not None
        for pid in [self.process.pid, *_below(self.process.pid)]:
            os.kill(pid, number)

    def gpulease(self, script: str) -> None:
        """Put another program in gpulease's place there."""
        (self.bin / "gpulease").write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / "gpulease").chmod(0o755)

    def as_it_was(self) -> None:
        (self.bin / "gpulease").unlink(missing_ok=True)

    def hide_gpulease(self) -> None:
        """Sessions from now on find none: their PATH is another."""
        self._restart("/usr/bin:/bin")

    def show_gpulease(self) -> None:
        self._restart(None)

    def _restart(self, path: str | None) -> None:
        self.stop()
        self.path = path
        self.start()

    def close(self) -> None:
        self.stop()
        wait_until(lambda: kill_marked(self.folder))
        if self.space:
            subprocess.run(["ip", "netns", "del", self.space], capture_output=True)


class SshHosts:
    """Three hosts, gpu1 to gpu3, and a machine from which they are reached."""

    def __init__(self, gpus: tuple[int, ...] = (2, 4, 1), profile: str = "a100") -> None:
        for name in ("ssh", "ssh-keygen", "sshd", "ip"):
            program(name)
        self.folder = Path(tempfile.mkdtemp(prefix="gls-"))
        keygen(self.folder / "key")
        self.hosts = {
            f"gpu{number}": SshHost(f"gpu{number}", self.folder, number, count, profile)
            for number, count in enumerate(gpus, 1)
        }
        lines = ["IdentitiesOnly yes", f"IdentityFile {self.folder}/key", f"UserKnownHostsFile {self.folder}/known"]
        for name, host in self.hosts.items():
            shutil.copy(self.folder / "key.pub", host.folder / "authorized_keys")
            lines += [f"Host {name}", f"HostName {host.address}", f"Port {host.port}", f"HostKeyAlias {name}"]
            host.start()
        (self.folder / "config").write_text("\n".join(lines) + "\n")
        self.trust()
        create(self.folder / "machine", 1, "a100")
        listed = ", ".join(f'"{name}"' for name in self.hosts)
        (self.folder / "d").mkdir(mode=0o700)
        (self.folder / "d" / "config.toml").write_text(f"hosts = [{listed}]\n")
        self.environ = {
            **plain_environment(),
            "GPULEASE_SIMULATION": str(self.folder / "machine"),
            "GPULEASE_DIR": str(self.folder / "d"),
            "GPULEASE_SSH": f"ssh -F {self.folder}/config",
            "GPULEASE_HOST_TIMEOUT": "50",  # a machine that runs tests may be slow
        }
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "SSH_AUTH_SOCK"):
            self.environ.pop(name, None)

    def trust(self) -> None:
        """The keys that the hosts have."""
        keys = [(name, (host.folder / "host_key.pub").read_text()) for name, host in self.hosts.items()]
        (self.folder / "known").write_text("".join(f"{name} {key}" for name, key in keys))

    def __getitem__(self, name: str) -> SshHost:
        return self.hosts[name]

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpulease", *words]

    def run(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **more.pop("environ", {})}
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "cwd": "/", **more}
        if "input" in options:
            options.pop("stdin")
        return subprocess.run(
            self.words(*words), env=environ, capture_output=True, text=True, timeout=PATIENCE, **options
        )

    def json(self, *words: str, **more: Any) -> Any:
        done = self.run(*words, "--json", **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def json_of_any_code(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)

    def disconnect(self, *names: str) -> None:
        """End the connections that are kept."""
        for name in names or self.hosts:
            sockets = f"-oControlPath={self.folder}/d/ssh/%C"
            words = ["ssh", "-F", f"{self.folder}/config", sockets, "-O", "exit", name]
            subprocess.run(words, capture_output=True)

    def close(self) -> None:
        self.disconnect()
        for host in self.hosts.values():
            host.close()
        if (broker := listener_at(str(self.folder / "d"))) is not None:
            os.kill(broker, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def _address(number: int) -> str:
    """Of a range that is for tests of networks alone (RFC 2544); another process of tests has others."""
    pid = os.getpid()
    return f"198.{18 + (pid >> 9 & 1)}.{pid >> 1 & 255}.{128 * (pid & 1) + number}"


def keygen(path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def _below(pid: int) -> list[int]:
    """The processes of a session of sshd are its children's; a job's agent and a broker have left them."""
    found: list[int] = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [*_below(int(child)), int(child)]
    return found


@pytest.fixture(name="hosts", scope="module")
def three_hosts() -> Iterator[SshHosts]:
    hosts = SshHosts()
    yield hosts
    hosts.close()
