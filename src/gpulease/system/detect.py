"""Which probe serves this machine, the simulated one or that of the hardware here, with a deadline around it.

The call runs in a daemon thread, since a thread inside a C call cannot be stopped, only left behind.
While one call hangs, later ones fail at once instead of adding to the pile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

from gpulease.errors import DriverHangs, NoDevices, NoLibrary, Unavailable, UsageError
from gpulease.model.allocation import Allocation, allocation
from gpulease.model.values import Device, Sample
from gpulease.system.places import simulated
from gpulease.system.probe import Probe, SeveralProbes

DEFAULT_SECONDS = 5.0


class WithDeadline:
    def __init__(self, probe: Probe, seconds: float = DEFAULT_SECONDS) -> None:
        self._probe = probe
        self._seconds = seconds
        self._hanging: threading.Thread | None = None

    def snapshot(self) -> Sample:
        if self._hanging is not None and self._hanging.is_alive():
            raise self._error("still does not answer a call made before")
        outcome: list[Sample | BaseException] = []
        thread = threading.Thread(target=self._call, args=(outcome,), daemon=True, name="gpulease-probe")
        thread.start()
        thread.join(self._seconds)
        if not outcome:
            self._hanging = thread
            raise self._error(f"did not answer within {self._seconds:g} s")
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def _call(self, outcome: list[Sample | BaseException]) -> None:
        try:
            outcome.append(self._probe.snapshot())
        except BaseException as error:  # carried over to the caller's thread
            outcome.append(error)

    @staticmethod
    def _error(what: str) -> DriverHangs:
        return DriverHangs(f"The GPU driver {what}.")


# -------------------------------------------------------------------- which probe


def open_probe(environ: Mapping[str, str] = os.environ) -> Probe:
    """A probe for this machine, with its deadline. The driver is first touched by `snapshot()`."""
    guarded = WithDeadline(Detected(environ), deadline_seconds(environ))
    return Marked(guarded, environ) if simulated(environ) else guarded


class Marked:
    """Says of every failure that the machine is simulated, so that nobody looks for a broken card."""

    def __init__(self, probe: Probe, environ: Mapping[str, str]) -> None:
        self._probe, self._environ, self._is_built = probe, environ, False

    def snapshot(self) -> Sample:
        if not self._is_built:
            from gpulease.simulator.activate import build_library

            build_library(self._environ)
            self._is_built = True
        try:
            return self._probe.snapshot()
        except NoLibrary:
            raise  # no fault of the machine's
        except Unavailable as trouble:
            what = f"{trouble.what} (The machine is SIMULATED.)"
            raise type(trouble)(
                what, "See its faults with `gpulease simulate show`; `gpulease simulate set` clears them."
            ) from None


def deadline_seconds(environ: Mapping[str, str]) -> float:
    return seconds_of(environ, "GPULEASE_PROBE_DEADLINE", DEFAULT_SECONDS)


def seconds_of(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise UsageError(f"{name} is {text!r}.", "Set it to seconds, above 0 and up to 3600, or unset it.")
    return seconds


class Detected:
    """Finds out at the first snapshot, because finding out already asks the driver."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._probe: Probe | None = None
        self._allocation = allocation(environ)

    def snapshot(self) -> Sample:
        sample = self._snapshot()
        return sample if self._allocation is None else self._narrowed(sample, self._allocation)

    def _narrowed(self, sample: Sample, within: Allocation) -> Sample:
        devices = tuple(within.own(sample.devices))
        if not devices:
            where = self._environ.get("SLURM_JOB_NODELIST")
            raise NoDevices(
                f"No GPU of Slurm's job {within.job} is on this machine.",
                f"It has node {where}: run `srun gpulease ...` there."
                if where
                else "Ask Slurm for one: `--gres=gpu:1`.",
            )
        return sample._replace(devices=devices)

    def _snapshot(self) -> Sample:
        if self._probe is not None:
            return self._probe.snapshot()
        simulated = _simulated(self._environ)
        if simulated is None:
            self._probe, sample = _hardware()
            return sample
        sample = simulated.snapshot()
        self._probe = simulated
        return sample

    def occupancy(self, uuids: Sequence[str]) -> list[Device]:
        """Memory and processes of some devices, as quickly as the driver tells them."""
        if self._probe is None:
            self.snapshot()
        quick = getattr(self._probe, "occupancy", None)
        found: list[Device] = [] if quick is None else quick(uuids)
        if len(found) == len(uuids):
            return found
        return [device for device in self.snapshot().devices if device.uuid in uuids]


def _simulated(environ: Mapping[str, str]) -> Probe | None:
    if not simulated(environ):
        return None
    from gpulease.simulator.activate import activate, directory_from_environment

    directory = directory_from_environment(environ)
    if directory is None:
        return None
    activate(directory)
    from gpulease.system.nvml import NvmlProbe

    return NvmlProbe(simulated=True)


def _hardware() -> tuple[Probe, Sample]:
    from gpulease.system.amd import AmdProbe
    from gpulease.system.nvml import NvmlProbe

    found: list[tuple[Probe, Sample]] = []
    missing: list[NoDevices] = []
    for probe in (NvmlProbe(), AmdProbe()):
        try:
            found.append((probe, probe.snapshot()))
        except NoDevices as error:
            missing.append(error)
    if not found:
        raise NoDevices(f"No GPU is visible on this machine: {missing[0].what}")
    if len(found) == 1:
        return found[0]
    several = SeveralProbes([probe for probe, _ in found])
    return several, several.snapshot()
