"""Accounts of a machine that is not this one: passwd, shadow, group and PAM in a mount namespace of their own."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulease.cli.install.manifest import system
from support.needs import NAMESPACES
from support.open_python import open_python
from support.other_users import as_user
from support.queue_site import QueueSite
from support.site import MARK, Site
from support.users import shared_cache
from support.waiting import PATIENCE, wait_until

BROKER = 62000
USERS = {"alice": 62001, "bob": 62002, "expired": 62003, "nologin": 62004}
GROUP = 62010  # of alice, beside her own


class Accounts:
    """Root, the broker's user and four others; alice and bob have homes."""

    def __init__(self, folder: Path) -> None:
        self._etc, self.homes = folder / "etc", folder / "homes"
        shutil.copytree("/etc/pam.d", self._etc / "pam.d")
        self.homes.mkdir()
        self.homes.chmod(0o755)
        self.users = {name: self._user(name, uid) for name, uid in USERS.items()}
        everybody = [pwd.getpwuid(0), self._account("gpulease", BROKER, "/nonexistent", "/usr/sbin/nologin")]
        everybody += self.users.values()
        self._write("passwd", [":".join(map(str, entry)) for entry in everybody])
        self._write("shadow", [_shadow(entry.pw_name) for entry in everybody], 0o600)
        groups = [f"{entry.pw_name}:x:{entry.pw_gid}:" for entry in everybody]
        self._write("group", [*groups, f"team:x:{GROUP}:alice"])
        (pam,) = (file for file in system(sys.executable) if file.path == "/etc/pam.d/gpulease")
        assert pam.content is not None
        (self._etc / "pam.d" / "gpulease").write_text(pam.content)

    def _user(self, name: str, uid: int) -> pwd.struct_passwd:
        home = self.homes / name
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        return self._account(name, uid, str(home), "/usr/sbin/nologin" if name == "nologin" else "/bin/sh")

    @staticmethod
    def _account(name: str, uid: int, home: str, shell: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", uid, uid, "", home, shell))

    def _write(self, name: str, lines: list[str], mode: int = 0o644) -> None:
        (self._etc / name).write_text("\n".join(lines) + "\n")
        (self._etc / name).chmod(mode)

    def change(self, name: str, old: str, new: str) -> None:
        """In place, since the file itself is mounted."""
        text = (self._etc / name).read_text()
        assert old in text
        (self._etc / name).write_text(text.replace(old, new))

    @property
    def mounts(self) -> str:
        """Shell commands that put these accounts in the place of the machine's own."""
        return " && ".join(
            f"mount --bind {self._etc}/{name} /etc/{name}" for name in ("passwd", "shadow", "group", "pam.d")
        )


def _shadow(name: str) -> str:
    return f"{name}:*:19000:0:99999:7::{19001 if name == 'expired' else ''}:"


class Namespace:
    """In which these mounts are made; it ends with its site."""

    def __init__(self, site: Site, mounts: str) -> None:
        words = ["unshare", "-m", "sh", "-c", f"{mounts} && echo ready && exec cat"]
        self.keeper = site.popen(words)
        assert self.keeper.stdout is not None
        if self.keeper.stdout.readline() != "ready\n":
            pytest.skip(NAMESPACES)

    def words(self, *words: str) -> list[str]:
        return ["nsenter", "--mount", "--target", str(self.keeper.pid), *words]

    def as_user(self, user: pwd.struct_passwd, action: Callable[[], Any], groups: tuple[int, ...] = ()) -> Any:
        """What `action` returns in a process of that user in this namespace."""

        def inside() -> None:
            with open(f"/proc/{self.keeper.pid}/ns/mnt") as namespace:
                assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) == 0, os.strerror(
                    ctypes.get_errno()
                )

        return as_user(user, action, inside, groups)


class SystemSite(QueueSite):
    """A machine with these accounts, and a system broker."""

    def __init__(self, count: int = 4) -> None:
        super().__init__(count, shared=True)
        self.accounts = Accounts(self.folder)
        self.namespace = Namespace(self, self.accounts.mounts)
        self.python_of_all = open_python()
        self.alice, self.bob = (self.accounts.users[name] for name in ("alice", "bob"))

    def gpulease(self, *words: str) -> list[str]:
        """A command of root's, in the namespace."""
        return self.namespace.words(self.python_of_all, "-m", "gpulease", *words)

    def start_broker(self, before: list[str] | None = None, **environ: str) -> subprocess.Popen[str]:
        """`before`: what becomes the command that follows."""
        words = [*(before or self.namespace.words()), self.python_of_all, "-m", "gpulease", "broker", "--system"]
        broker = self.popen(
            words,
            environ={"XDG_CACHE_HOME": shared_cache(self), **environ},
            cwd="/",
        )
        wait_until(lambda: self.broker_pid() == broker.pid or broker.poll() is not None)
        assert broker.poll() is None, broker.stderr and broker.stderr.read()
        self.ask("ping")
        return broker

    def as_user(self, user: pwd.struct_passwd, action: Callable[[], Any]) -> Any:
        return self.namespace.as_user(user, action, (GROUP,) if user is self.alice else ())

    def told(self, user: pwd.struct_passwd, verb: str, **fields: Any) -> Any:
        """The broker's whole answer to a user."""

        def ask() -> Any:
            with self.raw() as raw:
                return raw.ask(verb, **fields)

        return self.as_user(user, ask)

    def add(self, user: pwd.struct_passwd, script: str, **options: Any) -> Any:
        environ = {"PATH": os.environ["PATH"], "GPULEASE_DIR": self.directory, "MINE": "yes", "HOME": "/wrong"}
        environ[MARK] = str(self.folder)
        given = {"cwd": "/tmp", "environment": environ, **options}
        return self.told(user, "add", request={}, options=given, commands=[["sh", "-c", script]])


@pytest.fixture(name="system")
def system_site() -> Iterator[SystemSite]:
    site = SystemSite()
    try:
        broker = site.start_broker(ROOTS="secret")
        yield site
        broker.terminate()
        broker.wait(PATIENCE)
        assert broker.stderr is not None
        said = broker.stderr.read()
        assert "Traceback" not in said, said
    finally:
        site.close()
