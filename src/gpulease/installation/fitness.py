"""Whether this machine can be served: the Python of the service, and the account that the broker runs as."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess

from gpulease.errors import NotFound, StateError
from gpulease.installation.manifest import ACCOUNT, HOME

NOBODY = 65534
PROGRAM = "import sys, gpulease.broker.server, pynvml; print(gpulease.__file__, pynvml.__file__, sys.prefix, sep='\\n')"
RECIPE = (
    "Install it for everybody: `python3 -m venv /opt/gpulease`, `/opt/gpulease/bin/pip install gpulease`, "
    "then `/opt/gpulease/bin/gpulease install --system`."
)
DEVICE_GROUPS = ("video", "render")  # whose members may ask the driver, on some machines
PATIENCE = 60.0


def check_python(python: str) -> None:
    """Every user can run it, and root alone can change it: it runs as root, and as each of them."""
    try:
        tried = subprocess.run(
            [python, "-I", "-c", PROGRAM], cwd="/", env={}, user=NOBODY, group=NOBODY, extra_groups=[],
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as trouble:
        raise StateError(f"Other users cannot run {python}: {_why(trouble)}.", RECIPE) from None
    if tried.returncode != 0:
        last = (tried.stderr.strip().splitlines() or [f"it ended with {tried.returncode}"])[-1]
        raise StateError(f"Other users cannot run gpulease with {python}: {last[:200]}.", RECIPE)
    for path in (python, *tried.stdout.splitlines()):
        stranger = _stranger(path)
        if stranger:
            raise StateError(f"The service would run what {stranger}.", RECIPE)


def _why(trouble: Exception) -> str:
    return str(getattr(trouble, "strerror", None) or trouble)


def _stranger(path: str) -> str | None:
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
    return _exists(pwd.getpwnam, ACCOUNT)


def make_account() -> None:
    shell = shutil.which("nologin", path="/usr/sbin:/sbin:/usr/bin") or "/bin/false"
    own_group = ["--gid", ACCOUNT] if _exists(grp.getgrnam, ACCOUNT) else ["--user-group"]
    groups = [name for name in DEVICE_GROUPS if _exists(grp.getgrnam, name)]
    more = ["--groups", ",".join(groups)] if groups else []
    about = ["--no-create-home", "--home-dir", HOME, "--shell", shell, "--comment", "gpulease broker"]
    _call(["useradd", "--system", *own_group, *more, *about, ACCOUNT])


def remove_account() -> None:
    _call(["userdel", ACCOUNT])


def _exists(look_up: object, name: str) -> bool:
    try:
        look_up(name)  # type: ignore[operator]  # pwd.getpwnam or grp.getgrnam
    except KeyError:
        return False
    return True


def _call(words: list[str]) -> None:
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    try:
        done = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as trouble:
        raise StateError(f"`{words[0]}` cannot be run: {_why(trouble)}.", f"Run `{' '.join(words)}`.") from None
    if done.returncode != 0:
        raise StateError(f"`{words[0]}` failed: {done.stderr.strip()[:200]}", "Correct that and try again.")
