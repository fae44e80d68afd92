"""The AMD probe reads sysfs and fdinfo below a directory; what is not there is None."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulease.errors import NoDevices
from gpulease.system.amd import AmdProbe

STAT = "4242 (python (x) 1) S 1 4242 4242 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        if path.parent.name == "fdinfo":
            (path.parents[1] / "fd").mkdir(exist_ok=True)
            (path.parents[1] / "fd" / path.name).symlink_to("/dev/dri/renderD128")


def card(number: int, slot: str, **more: str) -> dict[str, str]:
    files = {"vendor": "0x1002", "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={slot}", "mem_info_vram_total": "68702699520"}
    return {f"sys/class/drm/card{number}/device/{name}": text for name, text in {**files, **more}.items()}


def test_a_full_card_is_read_whole(tmp_path: Path) -> None:
    write(
        tmp_path,
        card(
            0,
            "0000:43:00.0",
            mem_info_vram_used="1073741824",
            gpu_busy_percent="37",
            mem_busy_percent="12",
            unique_id="abc123",
            product_name="AMD Instinct MI210",
        ),
    )
    write(tmp_path, {"sys/class/drm/card0/device/hwmon/hwmon3/temp1_input": "54000"})
    write(tmp_path, {"sys/class/drm/card0/device/hwmon/hwmon3/power1_average": "121000000"})
    write(tmp_path, {"sys/class/drm/card0/device/hwmon/hwmon3/power1_cap": "300000000"})
    write(tmp_path, {"sys/class/drm/card0/device/hwmon/hwmon3/pwm1": "102"})
    device = AmdProbe(str(tmp_path)).snapshot().devices[0]
    assert (device.power_limit, device.fan_speed, device.throttling) == (300000, 40, None)
    assert (device.uuid, device.name, device.vendor) == ("GPU-abc123", "AMD Instinct MI210", "amd")
    assert (device.memory_total, device.memory_used) == (68702699520, 1073741824)
    assert (device.utilization, device.memory_utilization) == (37, 12)
    assert (device.temperature, device.power, device.pci_bus_id) == (54, 121000, "0000:43:00.0")


def test_what_is_not_there_is_none_and_order_is_by_bus(tmp_path: Path) -> None:
    write(tmp_path, card(1, "0000:03:00.0"))
    write(tmp_path, card(0, "0000:83:00.0"))
    write(tmp_path, {"sys/class/drm/card2/device/vendor": "0x8086", "sys/class/drm/card0-DP-1/enabled": "enabled"})
    devices = AmdProbe(str(tmp_path)).snapshot().devices
    assert [device.pci_bus_id for device in devices] == ["0000:03:00.0", "0000:83:00.0"]
    assert [device.index for device in devices] == [0, 1]
    assert devices[0].utilization is devices[0].memory_used is devices[0].temperature is devices[0].power is None
    assert devices[0].power_limit is devices[0].fan_speed is None
    assert [device.display_active for device in devices] == [None, True]


def test_a_client_with_several_descriptors_counts_once(tmp_path: Path) -> None:
    write(tmp_path, card(0, "0000:03:00.0"))
    client = "drm-driver: amdgpu\ndrm-pdev: 0000:03:00.0\ndrm-client-id: 7\ndrm-memory-vram: 2048 KiB"
    other = client.replace("client-id: 7", "client-id: 8").replace("2048 KiB", "1 MiB")
    write(tmp_path, {"proc/4242/stat": STAT, "proc/4242/cmdline": "python\0train.py\0"})
    write(tmp_path, {"proc/4242/fdinfo/5": client, "proc/4242/fdinfo/6": client, "proc/4242/fdinfo/9": other})
    process = (AmdProbe(str(tmp_path)).snapshot().devices[0].processes or ())[0]
    assert (process.pid, process.start_time, process.command) == (4242, 777, "python train.py")
    assert process.memory == 3 * 1024 * 1024
    assert process.graphics is False


def test_a_process_that_only_draws_is_marked(tmp_path: Path) -> None:
    write(tmp_path, card(0, "0000:03:00.0"))
    client = "drm-driver: amdgpu\ndrm-pdev: 0000:03:00.0\ndrm-client-id: 7\ndrm-engine-gfx: 99 ns"
    write(tmp_path, {"proc/4242/stat": STAT, "proc/4242/fdinfo/5": client})
    process = (AmdProbe(str(tmp_path)).snapshot().devices[0].processes or ())[0]
    assert process.graphics is True
    assert process.command == "[python (x) 1]"


def test_the_name_comes_from_the_catalogue_where_the_card_tells_none(tmp_path: Path) -> None:
    write(tmp_path, card(0, "0000:03:00.0", device="0x73bf", revision="0xc1"))
    write(tmp_path, {"usr/share/libdrm/amdgpu.ids": "# list\n1.0.0\n73BF,\tC1,\tAMD Radeon RX 6800 XT"})
    assert AmdProbe(str(tmp_path)).snapshot().devices[0].name == "AMD Radeon RX 6800 XT"


def test_a_card_without_memory_is_lost_and_no_card_is_no_device(tmp_path: Path) -> None:
    with pytest.raises(NoDevices):
        AmdProbe(str(tmp_path)).snapshot()
    write(tmp_path, card(0, "0000:03:00.0", mem_info_vram_total=""))
    assert AmdProbe(str(tmp_path)).snapshot().devices[0].lost
