"""One machine for all calls that want the same one: a broker need not start for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.drop_ins import DropIns
from support.recorded import BACKENDS, Call, Printed, make
from support.site import Site
from support.waiting import wait_until


class CompatMachines:
    def __init__(self) -> None:
        self._sites: dict[tuple[object, ...], Site] = {}
        self._shims: Path | None = None

    def make(self, call: Call, python: str, beside: bool = False) -> tuple[Printed, str]:
        """A call on the drop-ins, with `python` as the `python3` of the PATH; `beside` others that hold something."""
        site = self.site(call)
        if not beside and not any(value.startswith("fault.") for value in call.machine):
            wait_until(lambda: all(device["state"] == "free" for device in site.json("status")["devices"]))
        environ = self.environ(site, python)
        return make(call, site, environ, python)

    def site(self, call: Call) -> Site:
        key = (call.gpus, call.profile, call.machine)
        if key not in self._sites:
            self._sites[key] = Site(call.gpus, call.profile)
        return self._sites[key]

    def environ(self, site: Site, python: str) -> dict[str, str]:
        if self._shims is None:
            self._shims = DropIns(site, site.folder / "shims").folder
        bin_folder = site.folder / "python-bin"
        bin_folder.mkdir(exist_ok=True)
        link = bin_folder / "python3"
        if not link.exists() or os.readlink(link) != python:
            link.unlink(missing_ok=True)
            link.symlink_to(python)
        path = os.pathsep.join([str(self._shims / "bin"), str(bin_folder), site.environ["PATH"]])
        return {**site.environ, "PATH": path, "PYTHONPATH": f"{self._shims}/python{os.pathsep}{BACKENDS}"}

    def close(self) -> None:
        for site in self._sites.values():
            site.close()


@contextmanager
def compat_machines() -> Iterator[CompatMachines]:
    machines = CompatMachines()
    try:
        yield machines
    finally:
        machines.close()
