"""What every probe offers: one snapshot of all its devices. Nothing else of a driver leaks out."""

from __future__ import annotations

from typing import Protocol

from gpulease.model.values import Sample


class Probe(Protocol):
    """Reads devices. Raises Unavailable when there is nothing to read; a value it cannot read is None."""

    def snapshot(self) -> Sample: ...


class SeveralProbes:
    """The devices of several vendors in one machine, numbered through."""

    def __init__(self, probes: list[Probe]) -> None:
        self._probes = probes

    def snapshot(self) -> Sample:
        samples = [probe.snapshot() for probe in self._probes]
        devices = list(samples[0].devices)
        for sample in samples[1:]:
            offset = 1 + max((device.index for device in devices), default=-1)
            devices += [device._replace(index=device.index + offset) for device in sample.devices]
        return samples[0]._replace(devices=tuple(devices))
