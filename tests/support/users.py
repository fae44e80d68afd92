"""Processes of other users, by number: no account is made or needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from gpulease.simulator.library import library_path
from support.open_python import open_python
from support.site import Site
from support.waiting import PATIENCE


def becoming(uid: int) -> list[str]:
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]


def shared_cache(site: Site) -> str:
    """A cache of root's with the simulated library in it, so that not every user builds one of its own."""
    cache, built = site.folder / "cache", library_path()
    if not cache.exists():
        shutil.copytree(built.parent, cache / "gpulease" / built.parent.name)
        for folder in (cache, cache / "gpulease", cache / "gpulease" / built.parent.name):
            folder.chmod(0o755)
    return str(cache)


class User:
    """Runs commands at a site as `uid`, with a home of its own."""

    def __init__(self, site: Site, uid: int) -> None:
        self.site, self.uid, self.interpreter = site, uid, open_python()
        self.home = site.folder / f"home-{uid}"
        self.home.mkdir(mode=0o700)
        os.chown(self.home, uid, uid)
        self.environ = {**site.environ, "HOME": str(self.home), "XDG_CACHE_HOME": shared_cache(site)}
        self.environ.pop("XDG_RUNTIME_DIR", None)

    def words(self, *words: str) -> list[str]:
        return [self.interpreter, "-m", "gpulease", *words]

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        return self.popen(self.words(*words), **more)

    def popen(self, words: list[str], **more: Any) -> subprocess.Popen[str]:
        environ = {**self.environ, **more.pop("environ", {})}
        return self.site.popen([*becoming(self.uid), *words], environ=environ, cwd="/", **more)

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.execute(self.words(*words), **more)

    def python(self, code: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.execute([self.interpreter, "-c", code, *words], **more)

    def execute(self, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **more}
        return subprocess.run(
            [*becoming(self.uid), *words], env=environ, cwd="/", capture_output=True, text=True, timeout=PATIENCE
        )

    def folder(self, path: Path, mode: int = 0o755) -> Path:
        path.mkdir()
        path.chmod(mode)
        os.chown(path, self.uid, self.uid)
        return path
