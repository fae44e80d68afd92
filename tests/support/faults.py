"""Input and output that fails, at random or always, below one folder, in programs that load faults.c before libc."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path

from gpulease.simulator.library import find_compilers
from support.site import Site
from support.waiting import wait_until


class Faults:
    """What fails, and how often; faults.c has the same fields."""

    def __init__(self, folder: Path, below: str, seed: int) -> None:
        compiler = find_compilers(os.environ)[0]
        library, control = folder / "faults.so", folder / "faults"
        words = [
            *compiler,
            "-shared",
            "-fPIC",
            "-O2",
            "-o",
            str(library),
            str(Path(__file__).with_suffix(".c")),
            "-ldl",
        ]
        subprocess.run(words, check=True, timeout=60)
        library.chmod(0o755)
        control.write_bytes(struct.pack("5I", seed & 0xFFFFFFFF, 0, 0, 0, 0))
        control.chmod(0o666)
        self.environ = {"LD_PRELOAD": str(library), "FAULTS_CONTROL": str(control), "FAULTS_FOLDER": below}
        with open(control, "r+b") as file:
            self._control = mmap.mmap(file.fileno(), 20)

    def set(self, error: int, one_in: int) -> None:
        struct.pack_into("2I", self._control, 8, one_in, error)

    @property
    def failed(self) -> int:
        return int(struct.unpack_from("I", self._control, 16)[0])


def broken(site: Site, below: str) -> Faults:
    """From now on everything that the site starts meets what this says."""
    faults = Faults(site.folder, f"{site.directory}{below}", 1)
    site.environ |= faults.environ
    return faults


def wait_for_faults(faults: Faults, more: int) -> None:
    before = faults.failed
    wait_until(lambda: faults.failed >= before + more)
