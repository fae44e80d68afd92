"""The child that talks to the driver, so that the broker's loop never waits on one.

Reads a line for each question, `all` or `check UUID …`, and answers with one message. It ends when the broker does,
also while it waits for a driver that hangs.
Nobody but the broker starts it: `python -m gpulease.broker.children.sampler`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from gpulease.errors import GpuleaseError
from gpulease.model.values import Device, Process, Sample
from gpulease.protocol.messages import error
from gpulease.protocol.wire import Message, pack
from gpulease.system import identity
from gpulease.system.detect import Detected
from gpulease.system.execution import end_with

LARGEST = 16 << 20  # bytes of an answer: thousands of processes


def main() -> int:
    end_with(os.getppid())  # who waits in a driver that hangs reads no end of file
    probe = Detected(os.environ)
    try:
        for line in sys.stdin.buffer:
            sys.stdout.buffer.write(pack(_answer(probe, line.decode().split()), LARGEST))
            sys.stdout.buffer.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # the broker is gone: nobody is left to be told
    return 0


def _answer(probe: Detected, words: list[str]) -> Message:
    try:
        if words[:1] == ["check"]:
            seen = map(_with_sessions, probe.occupancy(words[1:]))
            return {"checked": [(one.uuid, one.memory_used, one.processes, one.lost, one.utilization) for one in seen]}
        sample = probe.snapshot()
        rows = [list(_with_sessions(device)) for device in sample.devices]
        return {"time": sample.time, "devices": rows, "simulated": sample.simulated, "driver": sample.driver}
    except GpuleaseError as trouble:
        return error(trouble)


def _with_sessions(device: Device) -> Device:
    """By its session a process on a shared device is known to be a job's."""
    if not device.processes:
        return device
    return device._replace(processes=tuple(one._replace(session=_session(one.pid)) for one in device.processes))


def _session(pid: int) -> int | None:
    found = identity.family(pid)
    return None if found is None else found.session


def from_row(row: list[Any]) -> Device:
    device = Device(*row)
    if device.throttling is not None:
        device = device._replace(throttling=tuple(device.throttling))
    return device if not device.processes else device._replace(processes=to_processes(device.processes))


def to_processes(rows: Any) -> tuple[Process, ...] | None:
    return None if rows is None else tuple(Process(*row) for row in rows)


def to_sample(message: Message) -> Sample:
    devices = tuple(from_row(row) for row in message["devices"])
    return Sample(message["time"], devices, message["simulated"], message["driver"])


if __name__ == "__main__":
    sys.exit(main())
