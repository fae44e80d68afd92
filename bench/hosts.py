"""`gpulease status --hosts` of 3 and of 20 hosts, beside one `ssh host true` and one `gpulease status`.

python bench/hosts.py [ROUNDS]

The hosts are sshds of this one machine, with kept connections, as root. Twenty real hosts would each do their part on
their own cores. So that the part of *this* machine is measured, the hosts of the second table answer with a document
that was recorded, after as long as `gpulease status` takes; the first table has them all run gpulease on these cores.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import os
import subprocess
from collections.abc import Callable

from interleaved import command, compile_everything, interleave, medians, own_command, show, to_reach
from support.ssh_hosts import SshHosts

SIZES = (3, 20)
LIMIT = 1.5
ONE, STATUS, ALL = "ssh host true", "gpulease status", "ssh host true, all at once"


def main(rounds: int) -> None:
    compile_everything()
    hosts = SshHosts((2,) * max(SIZES))
    try:
        hosts.run("status", "--hosts")  # connections, brokers
        print("every host runs gpulease on these cores")
        _measure(hosts, rounds)
        _record(hosts)
        print("\nhosts that answer as if they had cores of their own")
        _measure(hosts, rounds)
    finally:
        hosts.close()


def _measure(hosts: SshHosts, rounds: int) -> None:
    names = list(hosts.hosts)
    things: dict[str, Callable[[], object]] = {
        ONE: command([*_ssh(hosts), names[0], "true"], hosts.environ),
        STATUS: command([own_command(), "status"], hosts.environ),
    }
    for size in SIZES:
        things[f"{ALL}, {size}"] = _together(hosts, names[:size])
        chosen = f"--hosts={','.join(names[:size])}"
        things[f"status --hosts, {size}"] = command([own_command(), "status", chosen], hosts.environ)
    timings = interleave(things, rounds)
    show(timings, ONE)
    middle = medians(timings)
    for size in SIZES:
        to_reach(
            f"status --hosts, {size} / both", middle[f"status --hosts, {size}"] / (middle[ONE] + middle[STATUS]), LIMIT
        )


def _ssh(hosts: SshHosts) -> list[str]:
    return ["ssh", "-F", f"{hosts.folder}/config", f"-oControlPath={hosts.folder}/d/ssh/%C"]


def _together(hosts: SshHosts, names: list[str]) -> Callable[[], object]:
    """What this machine's ssh and sshd alone cost for so many."""

    def run() -> None:
        calls = [subprocess.Popen([*_ssh(hosts), name, "true"], stdin=subprocess.DEVNULL) for name in names]
        for call in calls:
            call.wait()

    return run


def _record(hosts: SshHosts) -> None:
    import time

    began = time.monotonic()
    hosts.run("--host", "gpu1", "status", "--json")
    began = time.monotonic()
    subprocess.run([own_command(), "status"], env=hosts.environ, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began
    document = hosts.run("--host", "gpu1", "status", "--json").stdout
    (hosts.folder / "document").write_text(document)
    for host in hosts.hosts.values():
        host.gpulease(f"sleep {took:.3f}; exec cat {hosts.folder}/document")


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
