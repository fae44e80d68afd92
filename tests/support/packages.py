"""The Debian packages that tests use, and what each is for.

`tools/setup.sh` runs this file with any Python to learn what is missing, so it imports the standard library only.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import NamedTuple


class Package(NamedTuple):
    programs: tuple[str, ...]  # all of them must be there
    purpose: str


PACKAGES = {
    "bindfs": Package(("bindfs",), "state on a network file system"),
    "chromium": Package(("chromium",), "the page in a browser"),
    "chromium-driver": Package(("chromedriver",), "the page in a browser"),
    "fish": Package(("fish",), "completion and prompt"),
    "fonts-liberation": Package(("/usr/share/fonts/truetype/liberation",), "the page in a browser"),
    "git": Package(("git",), "taking over the state of an earlier version"),
    "groff": Package(("groff",), "the manual page"),
    "iproute2": Package(("ip",), "several hosts"),
    "man-db": Package(("man",), "the manual page"),
    "mandoc": Package(("mandoc",), "the manual page"),
    "mmdebstrap": Package(("mmdebstrap",), "a bare Debian"),
    "munge": Package(("munged",), "Slurm"),
    "nginx-light": Package(("nginx",), "the page behind a proxy"),
    "openssh-client": Package(("ssh", "ssh-keygen"), "several hosts"),
    "openssh-server": Package(("sshd",), "several hosts"),
    "procps": Package(("ps",), "looking at processes"),
    "prometheus": Package(("promtool",), "metrics"),
    "redis-server": Package(("redis-server", "redis-cli"), "gpuget beside gpulease"),
    "slurm-wlm": Package(("slurmctld", "slurmd", "sbatch"), "Slurm"),
    "systemd": Package(("systemd-analyze",), "the units of a service"),
    "tmux": Package(("tmux",), "`gpulease top` on a terminal"),
    "zsh": Package(("zsh",), "completion and prompt"),
}


def find(program: str) -> str | None:
    """Its path, also if it is one of root's programs and their folders are not in PATH; or that of a folder."""
    if os.path.isdir(program):
        return program
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def missing() -> list[str]:
    return [name for name, package in PACKAGES.items() if not all(map(find, package.programs))]


def package_of(program: str) -> str:
    return next((name for name, package in PACKAGES.items() if program in package.programs), program)


if __name__ == "__main__":
    for name in missing():
        sys.stdout.write(f"{name}\n")
