"""What a site has chosen in Slurm's own configuration, as far as `add` depends on it. It is asked for once an hour."""

from __future__ import annotations

import time

from gpulease.errors import SlurmUnavailable
from gpulease.slurm import commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.slurm.records import Records

HOUR = 3600.0
ASKED = ["scontrol", "show", "config"]
KEPT = ("ProctrackType", "PreemptType")


class Site:
    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    @property
    def signals_script_alone(self) -> bool:
        """With control groups Slurm sends SIGTERM to the first process of a job only, else to all of them."""
        return self._values.get("ProctrackType") == "proctrack/cgroup"

    @property
    def preempts(self) -> bool:
        """Whether a job that runs may have to make room for another."""
        return self._values.get("PreemptType", "preempt/none") != "preempt/none"


def site(records: Records) -> Site:
    """Nothing is known where Slurm does not tell; it then refuses the job too."""
    kept = records.kept_site()
    now = time.time()
    if kept is not None and 0 <= now - kept[0] < HOUR:
        return Site(kept[1])
    try:
        values = read(commands.told(ASKED))
    except SlurmUnavailable:
        return Site(kept[1] if kept else {})
    found = {name: values[name] for name in KEPT if name in values}
    records.keep_site(found, now)
    return Site(found)


def read(text: str) -> dict[str, str]:
    """PURE: lines as `ProctrackType           = proctrack/cgroup`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
