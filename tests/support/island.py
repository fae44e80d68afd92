"""A machine of the test's own: its mounts, its users, its boots, and nothing that says which broker to use."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from support.accounts import USERS, Accounts
from support.needs import NAMESPACES
from support.open_python import open_python
from support.site import MARK, Site, marked
from support.users import becoming, shared_cache
from support.waiting import wait_until

ASK = "from gpulease.client.connection import Client; c = Client({start}); print(c.place.kind, c.place.run)"
# Of a broker in a user's own place only the process that asks the driver is to know that the devices are simulated.
SIMULATE = """
import os, sys
if {"gpulease.broker.sampler", "gpulease.broker.children.sampler"} & {*sys.orig_argv}:
    os.environ["GPULEASE_SIMULATION"] = os.environ["TEST_MACHINE"]
"""


def gpulease(*words: str) -> list[str]:
    return ["-m", "gpulease", *words]


class Island:
    """A mount namespace with a /run, a /tmp and a /var/lib of its own, where nothing says which broker to use."""

    def __init__(self) -> None:
        self.site = Site(shared=True, base="/var/tmp")
        self.environ = {k: v for k, v in self.site.environ.items() if not k.startswith(("GPULEASE_", "XDG_", "TMP"))}
        self.environ |= {MARK: str(self.site.folder)}
        self.environ["XDG_CACHE_HOME"] = shared_cache(self.site)
        self.simulated = {"GPULEASE_SIMULATION": str(self.site.state)}
        mounts = "mount -t tmpfs -o mode=755 none /run && mount -t tmpfs -o mode=1777 none /tmp"
        mounts += f" && mount -t tmpfs -o mode=755 none /var/lib && {Accounts(self.site.folder).mounts}"
        self.keeper = self.site.popen(
            ["unshare", "-m", "sh", "-c", f"{mounts} && echo ready && exec cat"], env=self.environ
        )
        (self.site.folder / "sitecustomize.py").write_text(SIMULATE)
        self.quietly = {
            "PYTHONPATH": str(self.site.folder),
            "TEST_MACHINE": str(self.site.state),
        }
        assert self.keeper.stdout is not None
        if self.keeper.stdout.readline() != "ready\n":
            pytest.skip(NAMESPACES)

    def words(self, uid: int, words: list[str]) -> list[str]:
        """Who has an account there comes with all of its groups, as by a login."""
        *become, groups = becoming(uid)
        groups = "--init-groups" if uid in USERS.values() else groups
        return ["nsenter", "--mount", "--target", str(self.keeper.pid), *become, groups, open_python(), *words]

    def home(self, uid: int) -> dict[str, str]:
        home = self.site.folder / f"home-{uid}"
        if not home.exists():
            home.mkdir()
            os.chown(home, uid, uid)
        return {"HOME": str(home)}

    def run(self, uid: int, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **self.home(uid), **more}
        return subprocess.run(self.words(uid, words), env=environ, cwd="/", capture_output=True, text=True, timeout=60)

    def broker(self, uid: int, *words: str) -> subprocess.Popen[str]:
        environ = {**self.environ, **self.home(uid), **self.simulated}
        return self.site.popen(self.words(uid, gpulease("broker", *words)), cwd="/", env=environ)

    def found(self, uid: int, start: bool = False) -> str:
        done = self.run(uid, ["-c", ASK.format(start=start)], **self.simulated if start else {})
        return done.stdout.strip() or done.stderr.splitlines()[-1]

    # ---------------------------------------------------------------- what happens to a machine

    def sh(self, script: str) -> str:
        """As root, in there."""
        words = ["nsenter", "--mount", "--target", str(self.keeper.pid), "sh", "-ec", script]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout

    def login(self, uid: int) -> dict[str, str]:
        """As logind does it; the variables of a session, whose broker has simulated GPUs."""
        folder = f"/run/user/{uid}"
        self.sh(f"mkdir -p /run/user && mkdir {folder} && chmod 700 {folder} && chown {uid} {folder}")
        return {"XDG_RUNTIME_DIR": folder, **self.quietly}

    def logout(self, uid: int) -> None:
        self.sh(f"rm -rf /run/user/{uid}")

    def reboot(self) -> None:
        """Every process gone, /run and /tmp empty, and another boot id."""
        ours = {self.keeper.pid, *(process.pid for process in self.site.started if process is self.keeper)}

        def none_left() -> bool:
            left = [pid for pid in marked(self.site.folder) if pid not in ours]
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            return not left

        wait_until(none_left)
        boot = self.site.folder / "boot_id"
        boot.write_text(f"{os.urandom(4).hex()}-0000-4000-8000-{os.urandom(6).hex()}\n")
        boot.chmod(0o444)
        self.sh("umount -l /run && mount -t tmpfs -o mode=755 none /run && rm -rf /tmp/*")
        self.sh(f"mount --bind {boot} /proc/sys/kernel/random/boot_id")


@pytest.fixture(name="island")
def fresh_island() -> Iterator[Island]:
    island = Island()
    try:
        yield island
    finally:
        island.site.close()
