"""AMD devices through sysfs and fdinfo, below a root directory that tests may choose.

Needs no library. What a file does not say is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from glob import glob

from gpulease.errors import NoDevices
from gpulease.model.values import Device, Process, Sample
from gpulease.system import identity
from gpulease.system.probe import READER, facts, pci_root, user_name

AMD = "0x1002"
FULL_FAN = 255  # what the file pwm1 has at full speed


class AmdProbe:
    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    def snapshot(self) -> Sample:
        folders = list(self._cards())
        if not folders:
            raise NoDevices("No AMD GPU is listed in /sys/class/drm.")
        users = self._users()
        found = enumerate(sorted(folders, key=lambda folder: _slot(folder) or folder))
        devices = tuple(self._device(index, folder, users) for index, folder in found)
        return Sample(time.time(), devices, False, _line(f"{self._root}/sys/module/amdgpu/version"))

    def _cards(self) -> Iterator[str]:
        for folder in glob(f"{self._root}/sys/class/drm/card[0-9]*/device"):
            card = folder.split("/")[-2]
            if card[4:].isdecimal() and _line(f"{folder}/vendor") == AMD:
                yield folder

    def _device(self, index: int, folder: str, users: dict[str, list[Process]]) -> Device:
        slot = _slot(folder)
        power = _first_number(f"{folder}/hwmon/hwmon*/power1_average", f"{folder}/hwmon/hwmon*/power1_input")
        heat = _first_number(f"{folder}/hwmon/hwmon*/temp1_input")
        limit = _first_number(f"{folder}/hwmon/hwmon*/power1_cap")
        fan = _first_number(f"{folder}/hwmon/hwmon*/pwm1")
        unique = _line(f"{folder}/unique_id")
        total = _number(f"{folder}/mem_info_vram_total")
        return Device(
            index=index,
            uuid=f"GPU-{unique}" if unique else f"AMD-{slot or index}",
            name=_line(f"{folder}/product_name") or self._catalogue_name(folder) or "AMD GPU",
            vendor="amd",
            memory_total=total,
            memory_used=_number(f"{folder}/mem_info_vram_used"),
            utilization=_number(f"{folder}/gpu_busy_percent"),
            memory_utilization=_number(f"{folder}/mem_busy_percent"),
            temperature=None if heat is None else heat // 1000,
            power=None if power is None else power // 1000,
            power_limit=None if limit is None else limit // 1000,
            fan_speed=None if fan is None else min(100, round(fan * 100 / FULL_FAN)),
            pci_bus_id=slot,
            group=pci_root(slot, f"{self._root}/sys"),
            display_active=self._display(folder),
            processes=tuple(sorted(users.get(slot or "", []))),
            lost=None if total is not None else "the driver does not answer for its memory",
        )

    def _catalogue_name(self, folder: str) -> str | None:
        """The name that libdrm's catalogue gives to this device and revision."""
        numbers = [_line(f"{folder}/{name}") for name in ("device", "revision")]
        if None in numbers:
            return None
        wanted = [int(number or "0", 16) for number in numbers]
        for line in _lines(f"{self._root}/usr/share/libdrm/amdgpu.ids"):
            parts = [part.strip() for part in line.split(",", 2)]
            if len(parts) == 3 and not line.startswith("#") and [_hex(part) for part in parts[:2]] == wanted:
                return parts[2]
        return None

    def _display(self, folder: str) -> bool | None:
        outputs = glob(f"{os.path.dirname(folder)}-*/enabled")
        return any(_line(path) == "enabled" for path in outputs) if outputs else None

    def _users(self) -> dict[str, list[Process]]:
        """Processes by PCI slot. A client may hold several file descriptors: each id counts once."""
        memory: dict[tuple[str, int], int] = {}
        drawing: dict[tuple[str, int], bool] = {}
        seen: set[tuple[str, str]] = set()
        for pid, client in self._clients():
            slot, number = client.get("drm-pdev", ""), client.get("drm-client-id", "")
            if not slot or (slot, number) in seen:
                continue
            seen.add((slot, number))
            key = (slot, pid)
            memory[key] = memory.get(key, 0) + _bytes(client.get("drm-memory-vram", "0"))
            drawing[key] = drawing.get(key, True) and _only_draws(client)
        found: dict[str, list[Process]] = {}
        known = facts({pid for _, pid in memory}, f"{self._root}/proc")
        for (slot, pid), used in memory.items():
            process = Process(pid, *known[pid], used, drawing[(slot, pid)])
            found.setdefault(slot, []).append(process)
        return found

    def _clients(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Of descriptors of a GPU only: what the kernel tells of others may be waited for."""
        paths = [path for path in glob(f"{self._root}/proc/[0-9]*/fd/*") if _link(path).startswith("/dev/dri/")]
        pids = [int(path.split("/")[-3]) for path in paths]
        wanted = [
            (_whose(pid, self._root), path.replace("/fd/", "/fdinfo/")) for pid, path in zip(pids, paths, strict=True)
        ]
        for pid, data in zip(pids, READER.read(wanted), strict=True):
            fields = dict(_fields((data or b"").decode(errors="replace").splitlines()))
            if fields.get("drm-driver", "amdgpu") == "amdgpu" and "drm-pdev" in fields:
                yield pid, fields


def _whose(pid: int, root: str) -> str:
    owner = identity.user_of(pid, f"{root}/proc")
    return "" if owner is None else user_name(owner)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _only_draws(client: dict[str, str]) -> bool:
    busy = {name: value.split()[0] != "0" for name, value in client.items() if name.startswith("drm-engine-")}
    return busy.get("drm-engine-gfx", False) and not busy.get("drm-engine-compute", False)


def _slot(folder: str) -> str | None:
    for line in _lines(f"{folder}/uevent"):
        if line.startswith("PCI_SLOT_NAME="):
            return line.partition("=")[2].strip()
    return None


def _fields(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name.startswith("drm-"):
            yield name, value.strip()


def _bytes(text: str) -> int:
    parts = text.split()
    if not parts or not parts[0].isdecimal():
        return 0
    unit = {"KiB": 1024, "MiB": 1024**2}.get(parts[1] if len(parts) > 1 else "", 1)
    return int(parts[0]) * unit


def _first_number(*patterns: str) -> int | None:
    values = (_number(path) for pattern in patterns for path in sorted(glob(pattern)))
    return next((value for value in values if value is not None), None)


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return -1


def _number(path: str) -> int | None:
    text = _line(path)
    return int(text) if text and text.isdecimal() else None


def _line(path: str) -> str | None:
    return next((line.strip() for line in _lines(path) if line.strip()), None)


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 20).splitlines()
    except OSError:
        return []
