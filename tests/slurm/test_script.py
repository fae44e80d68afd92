"""The batch script of a job on Slurm: signals, tries and second runs. It is run by `sh`, as Slurm runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import wait_until

from gpulease.slurm.add import batch_script
from gpulease.slurm.records import NotedEnd, Records

# Notes each SIGTERM, works on for a moment as one does who writes a checkpoint, and ends with a code of its own.
PROGRAM = """
import os, signal, sys, time
def end(number, frame):
    os.write(1, b"heard\\n")
    time.sleep(0.3)
    os.write(1, b"saved\\n")
    sys.exit(4)
signal.signal(signal.SIGTERM, end)
os.write(1, b"began\\n")
time.sleep(60)
"""


@pytest.fixture
def records(tmp_path: Path) -> Records:
    made = Records({"GPULEASE_DIR": str(tmp_path)})
    made.prepare()
    return made


def start(
    records: Records, words: list[str], retry: int = 0, alone: bool = False, run: int = 0
) -> subprocess.Popen[str]:
    text = batch_script([words], [None], records.ends, "ab", retry, alone)
    environ = {"SLURM_JOB_ID": "12", "PATH": os.environ["PATH"], "SLURM_RESTART_COUNT": str(run)}
    return subprocess.Popen(
        ["sh", "-c", text],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end_of(records: Records) -> NotedEnd:
    end = records.end_of("12", "ab")
    assert end is not None
    return end


@pytest.mark.parametrize("retry", [0, 3])
@pytest.mark.parametrize("alone", [True, False])
def test_what_slurm_ends_hears_it_once_has_its_time_and_is_not_tried_again(
    records: Records, alone: bool, retry: int
) -> None:
    """`alone`: with control groups the script hears it, otherwise all processes do."""
    with start(records, [sys.executable, "-c", PROGRAM], retry, alone) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "began\n"
        (os.kill if alone else os.killpg)(script.pid, signal.SIGTERM)
        assert script.communicate(timeout=60)[0] == "heard\nsaved\n"
    assert script.returncode == 4
    assert (end_of(records).code, end_of(records).killed, records.tries_of("12", "ab")) == (4, True, 1)


def test_a_command_that_ends_before_the_script_hears_of_it_is_not_tried_again(records: Records) -> None:
    """Slurm signals one process after the other, and the command may be the first."""
    with start(records, ["sh", "-c", "echo $$; exec sleep 60"], retry=3) as script:
        assert script.stdout is not None
        os.kill(int(script.stdout.readline()), signal.SIGTERM)
        wait_until(lambda: "sleep 1" in commands_below(script.pid))
        os.kill(script.pid, signal.SIGTERM)
        assert script.communicate(timeout=60)[0] == ""
    assert (end_of(records).killed, records.tries_of("12", "ab")) == (True, 1)


def commands_below(pid: int) -> list[str]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            found.append(Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            pass
    return found


def test_other_signals_reach_the_command_too_and_its_input_is_that_of_the_job(records: Records) -> None:
    ask = "trap 'echo usr' USR1; trap 'echo int; exit 3' INT; readlink /proc/self/fd/0; while :; do sleep 0.05; done"
    with start(records, ["bash", "-c", ask]) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == f"{os.readlink('/proc/self/fd/0')}\n"
        os.kill(script.pid, signal.SIGUSR1)
        assert script.stdout.readline() == "usr\n"
        os.kill(script.pid, signal.SIGINT)
        assert script.communicate(timeout=60)[0] == "int\n"
    assert (script.returncode, end_of(records).killed) == (3, False)


def test_what_slurm_ended_may_be_started_again_and_what_lost_its_node_may_not(records: Records) -> None:
    began = Path(records.ends, "12.ab.began")
    for reply, run, code in (
        ("0\n0 ended\n", 1, 0),  # it made room for another
        ("0\n0 ended\n", 0, 75),  # the controller forgot that it was killed
        ("0\n", 1, 75),  # its node failed
        ("", 0, 0),
    ):
        began.write_text(reply)
        Path(records.ends, "12.ab").unlink(missing_ok=True)
        with start(records, ["true"], run=run) as script:
            assert script.communicate(timeout=60)[0] == ""
        assert script.returncode == code, (reply, run)
    with start(records, ["false"], run=1) as script:  # somebody requeued what had ended by itself
        script.communicate(timeout=60)
    assert (script.returncode, end_of(records).run) == (1, 1)
