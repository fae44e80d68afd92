"""`gpulease status --hosts` of 3 and of 20 hosts, beside one `ssh host true` and one `gpulease status`.

python bench/hosts.py [--rounds N] [--few N] [--many N]

The hosts are sshds of this one machine, with kept connections, as root. Twenty real hosts would each do their part on
their own cores. So that the part of *this* machine is measured, the hosts of the second table answer with a document
that was recorded, after as long as `gpulease status` takes; the first table has them all run gpulease on these cores.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent / "common"), str(Path(__file__).parents[1] / "tests")]

import os
import subprocess
import time
from collections.abc import Callable

from interleaved import Timings, command, compile_everything, interleave, own_command, show
from report import Report, Size, bench
from support.ssh_hosts import SshHosts

LIMIT = 1.5
ONE, STATUS, ALL = "ssh host true", "gpulease status", "ssh host true, all at once"


def main(report: Report, rounds: int, few: int, many: int) -> None:
    os.environ.setdefault("LC_ALL", "C")
    compile_everything(report.quick)
    measure(report, rounds, (few, many), SshHosts((2,) * many))


def measure(report: Report, rounds: int, sizes: tuple[int, ...], hosts: SshHosts) -> None:
    try:
        hosts.run("status", "--hosts")  # connections, brokers
        for place in ("hosts on these cores", "hosts with cores of their own"):
            print(place)
            timings = _measure(hosts, rounds, sizes)
            show(timings, ONE)
            for size in sizes:
                what = f"status --hosts of {size} {place} / {ONE} and {STATUS}"
                report.ratio(what, timings, f"status --hosts, {size}", [ONE, STATUS], LIMIT)
            _record(hosts)
    finally:
        hosts.close()


def _measure(hosts: SshHosts, rounds: int, sizes: tuple[int, ...]) -> Timings:
    names = list(hosts.hosts)
    things: dict[str, Callable[[], object]] = {
        ONE: command([*_ssh(hosts), names[0], "true"], hosts.environ),
        STATUS: command([own_command(), "status"], hosts.environ),
    }
    for size in sizes:
        things[f"{ALL}, {size}"] = _together(hosts, names[:size])
        chosen = f"--hosts={','.join(names[:size])}"
        things[f"status --hosts, {size}"] = command([own_command(), "status", chosen], hosts.environ)
    return interleave(things, rounds)


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
    """From now on each host answers with what one of them says now, after as long as `gpulease status` takes."""
    began = time.monotonic()
    subprocess.run([own_command(), "status"], env=hosts.environ, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began
    document = hosts.run("--host", "gpu1", "status", "--json").stdout
    (hosts.folder / "document").write_text(document)
    for host in hosts.hosts.values():
        host.gpulease(f"sleep {took:.3f}; exec cat {hosts.folder}/document")


if __name__ == "__main__":
    bench(__doc__, main, rounds=Size(10, 1, "rounds"), few=Size(3, 1, "hosts"), many=Size(20, 2, "hosts"))
