"""What every probe offers, one snapshot of all its devices, and what probes share: processes, topology."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gpulease.model.values import Sample
from gpulease.system import identity, reader_child


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


# ------------------------------------------------ files of other users' processes

# Any user can lock the memory of a process of their own for good, and then reading its command line never returns
# (`gpulease help decisions/0041`). So a child reads, with a deadline. A file that is not read in time is unknown, and
# for a while other files of its user are not tried.

EACH = 0.25  # seconds for one answer
START = 2.0  # seconds for the child to begin
KILLED = 0.1  # seconds for it to be gone
ALL = 1.0  # seconds for all that is asked at once
PAUSE = 30.0  # seconds for which files of a user are not read, after one that was not answered

Wanted = tuple[str, str]  # the user whose file it is, and its path


class Reader:
    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._silent: dict[str, float] = {}  # by user: until when

    def read(self, wanted: Sequence[Wanted]) -> list[bytes | None]:
        """The first 4 KiB of each: nothing of what is not to be read, and None for what was not read in time."""
        found: dict[Wanted, bytes | None] = {}
        until = time.monotonic() + ALL
        while rest := [one for one in wanted if one not in found and not self._is_silent(one[0])]:
            if time.monotonic() >= until or not self._ask(rest, found):
                break
        return [found.get(one) for one in wanted]

    def _is_silent(self, user: str) -> bool:
        return self._silent.get(user, 0.0) > time.monotonic()

    def _ask(self, wanted: Sequence[Wanted], found: dict[Wanted, bytes | None]) -> bool:
        """Until one is not answered; False when no child can be had."""
        asked = wanted[:64]  # so that neither pipe fills up
        try:
            self._start()
            assert self._child is not None
            assert self._child.stdin is not None
            os.write(self._child.stdin.fileno(), b"".join(os.fsencode(path) + b"\n" for _, path in asked))
            for one in asked:
                found[one] = self._answer()
        except TimeoutError:
            silent = next((one for one in asked if one not in found), asked[0])
            found[silent] = None
            self._silent[silent[0]] = time.monotonic() + PAUSE
            self.close()
        except OSError:
            self.close()
            return False
        return True

    def _start(self) -> None:
        if self._child is not None:
            return
        words = [sys.executable, "-I", "-S", reader_child.__file__]
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", process_group=0)
        try:
            self._bytes(1, time.monotonic() + START)
        except TimeoutError:
            raise OSError("the child that reads does not begin") from None

    def _answer(self) -> bytes:
        until = time.monotonic() + EACH
        return self._bytes(int.from_bytes(self._bytes(4, until), "big"), until)

    def _bytes(self, size: int, until: float) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        way, data = self._child.stdout.fileno(), b""
        while len(data) < size:
            if not select.select([way], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            part = os.read(way, size - len(data))
            if not part:
                raise OSError("the child that reads has ended")
            data += part
        return data

    def close(self) -> None:
        """An old kernel may not let it be killed where it waits: then it is left there."""
        if self._child is None:
            return
        self._child.kill()
        for stream in (self._child.stdin, self._child.stdout):
            if stream:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(KILLED)
        self._child = None


# -------------------------------------------------------------------- processes

Facts = tuple[int | None, str | None, str | None]  # start time, user, command

NOBODY_VISIBLE: Facts = (None, None, None)

READER = Reader()


def facts(pids: Iterable[int], proc: str = "/proc") -> dict[int, Facts]:
    """All None for a process that cannot be seen from here; the command None where it could not be read in time."""
    seen = {pid: one for pid in pids if (one := _seen(pid, proc)) is not None}
    wanted = [(user or "", f"{proc}/{pid}/cmdline") for pid, (_, user, _) in seen.items()]
    lines = dict(zip(seen, READER.read(wanted), strict=True)) if seen else {}
    return {
        pid: NOBODY_VISIBLE if pid not in seen else (*seen[pid][:2], _command(lines[pid], seen[pid][2])) for pid in pids
    }


def _seen(pid: int, proc: str) -> tuple[int, str | None, str] | None:
    """When it began, its user, and its name."""
    try:
        found = identity.family(pid, proc)
        owner = identity.user_of(pid, proc)
    except OSError:
        return None
    return None if found is None else (found.start_time, None if owner is None else user_name(owner), found.name)


def user_name(uid: int) -> str:
    """As `identity.user_name`, which a directory service that hangs would keep waiting."""
    if uid not in identity.known_names:
        (name,) = READER.read([(f"uid {uid}", f"uid {uid}")])
        if name is None:
            return str(uid)
        known = name.decode("utf-8", "surrogateescape") or identity.subordinate(uid)
        identity.known_names[uid] = known or str(uid)
    return identity.known_names[uid]


def _command(line: bytes | None, name: str) -> str | None:
    """The command line; for a process without one (a kernel thread, a zombie) its name in brackets."""
    if line is None:
        return None
    return line.replace(b"\0", b" ").decode(errors="replace").strip() or f"[{name}]"


# -------------------------------------------------------------------- topology

NEAR = 30  # NVML's level for devices below one host bridge; larger numbers are farther apart


def pci_root(bus_id: str | None, sysfs: str = "/sys") -> str | None:
    """The PCI root that `bus_id` hangs on, e.g. `pci0000:40`; None where sysfs does not know it."""
    if not bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    path = os.path.realpath(f"{sysfs}/bus/pci/devices/{domain[-4:]}:{rest}")
    parts = [part for part in path.split("/") if part.startswith("pci") and ":" in part]
    return parts[0] if parts else None


def groups(count: int, level: Callable[[int, int], int | None]) -> list[str | None]:
    """A name of the group of each device, where `level(a, b)` tells how far apart two of them are.

    Every device is compared with the first of each group: being below one bridge is the same for all in a group.
    """
    heads: list[int] = []
    names: list[str | None] = []
    for number in range(count):
        levels = [(head, level(head, number)) for head in heads]
        near = [head for head, distance in levels if distance is not None and distance <= NEAR]
        if not near:
            heads.append(number)
        names.append(f"near-{near[0] if near else number}")
    return names if _told(count, level) else [None] * count


def _told(count: int, level: Callable[[int, int], int | None]) -> bool:
    return count > 1 and level(0, 1) is not None
