"""Tests do not care who started them: a few of them pass in surroundings in which nearly everything is wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from support.surroundings import FOLDER, run_folder

ROOT = Path(__file__).parents[2]
IGNORED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGUSR1,
)  # as under nohup and `&`, and worse
ENVIRON = {
    "HOME": "/proc/nowhere",
    "TMPDIR": "/var/tmp",
    "LC_ALL": "C",
    "LANG": "C",
    "TERM": "dumb",
    "TZ": "Asia/Kathmandu",
    "COLUMNS": "33",
    "LINES": "5",
    "NO_COLOR": "1",
    "FORCE_COLOR": "1",
    "CUDA_VISIBLE_DEVICES": "7",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "GPULEASE_DIR": "/proc/nowhere",
    "GPULEASE_ENGINE": "slurm",
    "GPULEASE_SIMULATE": "3",
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "nowhere",
    "PYTHONPATH": "/proc/nowhere",
    "PYTHONWARNINGS": "error",
    "PYTHONUNBUFFERED": "1",
    "BASH_ENV": "/proc/nowhere",
    "VIRTUAL_ENV": "/proc/nowhere",
    **{f"XDG_{name}": "/proc/nowhere" for name in ("RUNTIME_DIR", "CACHE_HOME", "CONFIG_HOME", "STATE_HOME")},
}
# Each failed in such surroundings, or would: signals, files for others, a place, a terminal, a home.
CHOSEN = [
    "tests/broker/test_lease_get.py::test_get_interrupted_while_waiting_leaves_the_line",
    "tests/broker/test_lease_run.py::test_ctrl_c_while_waiting_leaves_the_line",
    "tests/broker/test_queue_live.py::test_ls_watch_redraws_at_a_change_and_ctrl_c_ends_it_quietly",
    "tests/broker/agent/test_queue_inherited.py",
    "tests/system/test_users_places.py::test_clients_find_the_systems_broker_then_a_shared_one_then_their_own",
    "tests/system/test_places.py",
]


def make_it_wrong() -> None:
    os.umask(0o077)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def test_a_few_tests_pass_though_everything_around_them_is_wrong() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *CHOSEN]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **ENVIRON, FOLDER: str(run_folder())},  # what was built there need not be again
        preexec_fn=make_it_wrong,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= len(CHOSEN)
