"""`gpulease docker-args`: the options with which a container sees the GPUs of the lease that it is started under."""

from __future__ import annotations

import os

from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.errors import NotFound, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpulease.protocol.messages import StatusDocument

EXAMPLES = """\
It prints one option on each line. Use it without quotes, inside `gpulease run`,
`shell`, a job, or after `get --export`. The lease ends with that command, so do
not detach the container (`-d`). More: `gpulease help containers`.

examples:
  gpulease run -n 2 -- sh -c 'docker run --rm $(gpulease docker-args) IMAGE'
  gpulease run -- sh -c 'podman run $(gpulease docker-args --podman) IMAGE'
  gpulease add -- sh -c 'apptainer run $(gpulease docker-args --apptainer) X'
"""
WITHIN = "Run it inside a lease: gpulease run -- sh -c 'docker run $(gpulease docker-args) IMAGE'."


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("--podman", action="store_true", help="options for podman, with CDI names (nvidia.com/gpu=…)")
    parser.add_argument("--apptainer", action="store_true", help="options for Apptainer and Singularity (--nv)")


def run(arguments: Namespace) -> int:
    if arguments.podman and arguments.apptainer:
        raise UsageError("--podman and --apptainer were both given.", "Leave one of the two out.")
    tool = "podman" if arguments.podman else "apptainer" if arguments.apptainer else "docker"
    print("\n".join(options(tool, _leased(os.environ))))
    return 0


def options(tool: str, devices: str) -> list[str]:
    """Each is one word, so that no shell can split it; the quotes are for docker, which splits at commas."""
    if tool == "apptainer":
        return ["--nv", f"--env=CUDA_VISIBLE_DEVICES={devices}", "--env=CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    if tool == "podman":
        return [f"--device=nvidia.com/gpu={device}" for device in devices.split(",")]
    return [f'--gpus="device={devices}"']


def _leased(environ: Mapping[str, str]) -> str:
    """The devices that `visible.variables` named to containers, if they are leased: variables outlive a lease."""
    devices, lease = environ.get("NVIDIA_VISIBLE_DEVICES", ""), environ.get("GPULEASE_LEASE")
    if devices == "void" and lease:
        raise NotFound("The lease here has no NVIDIA GPU.", "Start the container without options for GPUs.")
    if not (devices.startswith(("GPU-", "MIG-")) or (devices and lease)):
        raise NotFound("There is no lease here.", WITHIN)
    from gpulease.client.connection import ask

    if not set(devices.split(",")) <= _held(ask("status"), lease):
        raise NotFound("NVIDIA_VISIBLE_DEVICES names GPUs that no lease here holds (any more).", WITHIN)
    return devices


def _held(document: StatusDocument, lease: str | None) -> set[str]:
    """Names of the devices of that lease, and of those that are held for a process above this one."""
    from gpulease.system.identity import parent_of, user_name

    above, process = set(), os.getppid()
    while process > 1 and process not in above:
        above.add(process)
        process = parent_of(process) or 0
    me = user_name(os.getuid())
    ours = {
        row["id"]
        for row in document["leases"]
        if row["pid"] in above or (row["id"] == lease and (row["user"] == me or os.getuid() == 0))
    }
    held = [device for device in document["devices"] if ours & set(device["leases"])]
    return {name for device in held for name in (device["uuid"], str(device["index"]))}
