"""Whether this machine can be served: the Python of the service, and the account that the broker runs as."""

from __future__ import annotations

import grp
import os
import shlex
import shutil
import subprocess

from gpulease.cli.install.changes import number_of
from gpulease.cli.install.manifest import ACCOUNT, HOME
from gpulease.errors import NotFound, StateError, in_words

NOBODY = 65534
PROGRAM = """
import sys, gpulease.broker.edge.server, pamela, pynvml
print(gpulease.__file__, pamela.__file__, pynvml.__file__, sys.prefix, sep="\\n")
"""
RECIPE = (
    "Install it for everybody: `python3 -m venv /opt/gpulease`, `/opt/gpulease/bin/pip install 'gpulease[system]'`, "
    "then `/opt/gpulease/bin/gpulease install --system`."
)
DEVICE_GROUPS = {"video", "render"}  # whose members may ask the driver, on some machines
PATIENCE = 60.0
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def check_python(python: str) -> None:
    """Every user can run it, and root alone can change it: it runs as root, and as each of them."""
    try:
        tried = subprocess.run(
            [python, "-I", "-c", PROGRAM], cwd="/", env={}, user=NOBODY, group=NOBODY, extra_groups=[],
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as trouble:
        said = (getattr(trouble, "stderr", "") or in_words(trouble)).strip().splitlines()
        folder = shlex.quote(os.path.dirname(os.path.dirname(python)))
        step = f"{RECIPE} If that was done under a strict umask: `chmod -R a+rX {folder}`."
        raise StateError(f"Other users cannot run gpulease with {python}: {said[-1][:200]}.", step) from None
    for path in (python, *tried.stdout.splitlines()):
        stranger = _untrusted_writer(path)
        if stranger:
            raise StateError(f"The service would run what {stranger}.", RECIPE)


def _untrusted_writer(path: str) -> str | None:
    """Who besides root can change what lies at `path`. Groups are trusted: Debian's `staff` may write in /usr/local."""
    for start in {os.path.abspath(path), os.path.realpath(path)}:
        while True:
            seen = os.stat(start)
            if seen.st_uid != 0:
                return f"user {seen.st_uid} can change: {start}"
            if seen.st_mode & 0o002 and not seen.st_mode & 0o1000:
                return f"everybody can change: {start}"
            if start == "/":
                break
            start = os.path.dirname(start)
    return None


def check_group(name: str) -> None:
    try:
        grp.getgrnam(name)
    except KeyError:
        raise NotFound(f"There is no group {name[:40]!r}.", f"Make it first: `groupadd {name[:40]}`.") from None


def account_exists() -> bool:
    return number_of(ACCOUNT) is not None


def make_account() -> None:
    groups = {entry.gr_name for entry in grp.getgrall()}
    shell = shutil.which("nologin", path=PATH) or "/bin/false"
    own_group = ["--gid", ACCOUNT] if ACCOUNT in groups else ["--user-group"]
    more = ["--groups", ",".join(groups & DEVICE_GROUPS)] if groups & DEVICE_GROUPS else []
    about = ["--no-create-home", "--home-dir", HOME, "--shell", shell, "--comment", "gpulease broker"]
    _call(["useradd", "--system", *own_group, *more, *about, ACCOUNT])


def remove_account() -> None:
    _call(["userdel", ACCOUNT])


def _call(words: list[str]) -> None:
    try:
        subprocess.run(words, env={"PATH": PATH}, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError) as trouble:
        why = (getattr(trouble, "stderr", "") or in_words(trouble)).strip()[:200]
        raise StateError(
            f"`{words[0]}` failed: {why}", f"Run `{shlex.join(words)}` yourself, then try again."
        ) from None
