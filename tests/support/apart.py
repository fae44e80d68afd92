"""A site whose processes see a folder of safe-gpu's that nobody else uses, by a mount of their own.

Safe-gpu's lock is one file of the whole machine, and whoever holds it keeps every broker from choosing. Where mounting
is not permitted these tests are left out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpulease.broker.neighbours.safe_gpu import FOLDER
from support.needs import NAMESPACES
from support.site import Site


class Apart(Site):
    def __init__(self, count: int = 4) -> None:
        super().__init__(count)
        self.lock_folder = self.folder / "safe_gpu"
        self.lock_folder.mkdir()
        mount = f"mkdir -p -m 777 {FOLDER}; mount --bind {self.lock_folder} {FOLDER} && echo ready && exec cat"
        self.keeper = self.popen(["unshare", "-m", "sh", "-c", mount])

    def apart(self) -> bool:
        assert self.keeper.stdout is not None
        return self.keeper.stdout.readline() == "ready\n"

    def inside(self, words: list[str]) -> list[str]:
        return ["nsenter", "--mount", "--target", str(self.keeper.pid), *words]

    def words(self, *words: str) -> list[str]:
        return self.inside(super().words(*words))

    def python(self, code: str, *words: str, **more: Any) -> subprocess.Popen[str]:
        return self.popen(self.inside([sys.executable, "-c", code, *words]), **more)


def opened(count: int = 4) -> Iterator[Apart]:
    site = Apart(count)
    try:
        if not site.apart():
            pytest.skip(NAMESPACES)
        yield site
        assert "Traceback" not in site.log(), site.log()
    finally:
        site.close()


@pytest.fixture(name="site")
def apart_site() -> Iterator[Apart]:
    yield from opened()
