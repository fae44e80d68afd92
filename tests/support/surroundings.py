"""The surroundings of all tests: whatever shell, terminal or service started them, they see the same.

Nothing of the environment is kept but what `KEPT` names: a setting of the user's must not reach a test, and a test must
not reach the user's home.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

FOLDER = "GPULEASE_TESTS_FOLDER"  # of this run of the tests, for all of its processes
KEPT: tuple[str, ...] = ("PATH", "LD_LIBRARY_PATH", "CC", "CI", "SHRINK", FOLDER)
KEPT += ("GPULEASE_LONG", "GPULEASE_SEED", "GPULEASE_PICTURES", "GPULEASE_BESIDE_TURNS")
KEPT_BEGINNINGS = ("PYTEST_", "HYPOTHESIS_", "PIP_")
ADMINISTRATORS = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # root has them in its PATH after `su -`, and not after `su`
PYTHONS_OWN = {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores them itself, and not in its children


def settle() -> None:
    """Makes the surroundings of this process those of the tests."""
    _reset_signals()
    os.umask(0o022)
    os.environ.pop("TMPDIR", None)  # a socket's path is short
    tempfile.tempdir = None
    home = run_folder() / "home"
    environ = {name: value for name, value in os.environ.items() if _is_kept(name)}
    path = environ.get("PATH", os.defpath).split(":")
    environ |= {
        "PATH": ":".join([_python_folder(), *path, *(place for place in ADMINISTRATORS if place not in path)]),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "TZ": "UTC",
    }
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()


def run_folder() -> Path:
    """For all processes of a run of the tests; it ends with the first of them.

    Not in /tmp, over which some tests mount one of their own. Everybody may enter it, but not the home in it.
    """
    if FOLDER not in os.environ:
        folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="gpulease-tests-", dir="/var/tmp")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.chmod(folder, 0o755)
        os.mkdir(f"{folder}/home", 0o700)
    return Path(os.environ[FOLDER])


def _python_folder() -> str:
    """Comes first in PATH: a version manager's `python3` is a script that starts dozens of programs."""
    folder = run_folder() / "bin"
    if not folder.exists():
        folder.mkdir()
        for name in ("python", "python3"):
            (folder / name).symlink_to(os.path.realpath(sys.executable))
    return str(folder)


def _is_kept(name: str) -> bool:
    return name in KEPT or name.startswith(KEPT_BEGINNINGS) or name.lower().endswith("_proxy")


def _reset_signals() -> None:
    """A script's background commands ignore SIGINT and SIGQUIT, those of nohup SIGHUP; so do all of their children."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - PYTHONS_OWN:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
