"""What a job inherits: its submitter's umask, and nothing that the process which started the broker ignored."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from support.machine import Machine


def test_the_umask_is_the_submitters(machine: Machine, tmp_path: Path) -> None:
    line = f"umask 027; {shlex.join(machine.words('add'))} -- touch made"
    done = subprocess.run(["sh", "-c", line], env=machine.environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr
    assert machine.run("wait", "1").returncode == 0
    machine.run("stop")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


def test_no_signal_is_ignored_or_blocked_that_was_so_where_the_broker_was_started(machine: Machine) -> None:
    """A shell cannot trap what was ignored when it began: a job's checkpoint upon a signal would never be written."""
    code = """if True:
        import signal, subprocess, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        for name in ("SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        subprocess.run(sys.argv[1:])
    """
    words = machine.words("add", "--", "sh", "-c", "grep -E '^Sig(Ign|Blk)' /proc/self/status")
    subprocess.run([sys.executable, "-c", code, *words], env=machine.environ, timeout=60)
    assert machine.run("wait", "1").returncode == 0
    masks = [int(line.split()[1], 16) for line in machine.run("log", "1").stdout.splitlines()]
    machine.run("stop")
    assert len(masks) == 2
    assert not any(mask & ((1 << 31) - 1) for mask in masks), masks  # the first 31: the next ones are the C library's
