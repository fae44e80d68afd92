"""PURE: what the environment of a process says of the Slurm job in which it runs, if it runs in one.

There, plain gpulease serves the GPUs of that allocation alone, with a broker of its own on each node.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpulease.model.values import Device

JOB, NODE, TASK = "SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_TASK_PID"
GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")  # numbers of the node's own; the first that is set
SHOWN = "CUDA_VISIBLE_DEVICES"


class Allocation:
    def __init__(self, job: str, node: str, gpus: Sequence[str]) -> None:
        self.job, self.node, self.gpus = job, node, gpus

    @property
    def name(self) -> str:
        """Of its broker's folder. Steps of a job that have other GPUs have another broker."""
        return "-".join(["slurm", self.job, self.node or "nowhere", ".".join(self.gpus) or "none"])

    def own(self, devices: Sequence[Device]) -> list[Device]:
        """Those of the node's devices that are the allocation's.

        Where Slurm confines jobs to their devices, the driver shows no others, and numbers them from 0 again.
        """
        if len({device.index for device in devices}) <= len(self.gpus):
            return list(devices) if self.node else []
        return [device for device in devices if str(device.index) in self.gpus]


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    job = environ.get(JOB)
    if not job:
        return None
    node = environ.get(NODE, "")
    named = next((environ[name] for name in (*GPUS, SHOWN) if environ.get(name)), "") if node else ""
    return Allocation(_plain(job), _plain(node), [part for part in named.split(",") if part.isdecimal()])


def _plain(text: str) -> str:
    """As a part of a path: the name of a node may be anything that somebody exports."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in text)[:40]
