"""The real, unmodified gpustat and nvitop see in a simulated machine what `gpulease status` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MEBIBYTE = 1024**2
MACHINE = (
    "gpu.0.utilization=93",
    "gpu.0.memory_utilization=41",
    "gpu.0.temperature=67",
    "gpu.0.power=311W",
    "gpu.1.memory_used=700M",
    "gpu.2.utilization=none",
    "gpu.3.temperature=none",
    "gpu.3.power=none",
)
NVITOP = """
import json
from nvitop import Device
def number(value): return value if isinstance(value, int) else None
print(json.dumps([{
    "uuid": d.uuid(), "name": d.name(),
    "memory_total": number(d.memory_total()), "memory_used": number(d.memory_used()),
    "utilization": number(d.gpu_utilization()), "temperature": number(d.temperature()),
    "power": number(d.power_usage()), "processes": {p.pid: p.gpu_memory() for p in d.processes().values()},
} for d in Device.all()]))
"""


def read_all(tmp_path: Path, *commands: list[str]) -> list[Any]:
    """What each command prints as JSON, all run in one machine on which two processes sit."""
    gpulease = [sys.executable, "-m", "gpulease"]
    settings = [word for assignment in MACHINE for word in ("--set", assignment)]
    run_all = tmp_path / "run_all.py"
    run_all.write_text(
        "import json, subprocess, sys\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    ended = subprocess.run(command, capture_output=True, text=True, check=True)\n"
        "    print(json.dumps(json.loads(ended.stdout)))\n"
    )
    machine = [*gpulease, "simulate", "-n", "4", "--profile", "mixed", *settings, "--"]
    occupying = [*gpulease, "simulate", "use", "0,2", "--memory", "5G", "--"]
    drawing = [*gpulease, "simulate", "use", "1", "--memory", "300M", "--graphics", "--"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPULEASE", "CUDA"))}
    ended = subprocess.run(
        [*machine, *occupying, *waiting_for(drawing), sys.executable, str(run_all), json.dumps(commands)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def waiting_for(drawing: list[str]) -> list[str]:
    """Start the process that draws, wait until it does, then go on beside it."""
    script = (
        "import subprocess, sys\n"
        "beside = subprocess.Popen([*sys.argv[2:2 + int(sys.argv[1])], 'sh', '-c', 'echo ready; read x'],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "beside.stdout.readline()\n"
        "code = subprocess.call(sys.argv[2 + int(sys.argv[1]):])\n"
        "beside.communicate(b'\\n')\n"
        "sys.exit(code)\n"
    )
    return [sys.executable, "-c", script, str(len(drawing)), *drawing]


STATUS = [sys.executable, "-m", "gpulease", "status", "--json"]


def test_gpustat_sees_what_status_says(tmp_path: Path) -> None:
    gpustat = [sys.executable, "-m", "gpustat", "--json"]
    status, seen = read_all(tmp_path, STATUS, gpustat)
    assert len(seen["gpus"]) == len(status["devices"]) == 4
    assert sum(len(device["processes"]) for device in status["devices"]) == 3
    for device, gpu in zip(status["devices"], seen["gpus"], strict=True):
        assert gpu == gpu | {
            "index": device["index"],
            "uuid": device["uuid"],
            "name": device["name"],
            "memory.total": device["memory_total"] // MEBIBYTE,
            "memory.used": device["memory_used"] // MEBIBYTE,
            "utilization.gpu": device["utilization"],
            "temperature.gpu": device["temperature"],
            "power.draw": None if device["power"] is None else device["power"] // 1000,
        }
        assert {process["pid"]: process["gpu_memory_usage"] for process in gpu["processes"]} == {
            process["pid"]: process["memory"] // MEBIBYTE for process in device["processes"]
        }
        assert {process["username"] for process in gpu["processes"]} == {
            process["user"] for process in device["processes"]
        }


def test_nvitop_sees_what_status_says(tmp_path: Path) -> None:
    status, seen = read_all(tmp_path, STATUS, [sys.executable, "-c", NVITOP])
    fields = ("uuid", "name", "memory_total", "memory_used", "utilization", "temperature", "power")
    assert len(seen) == 4
    for device, gpu in zip(status["devices"], seen, strict=True):
        assert {field: gpu[field] for field in fields} == {field: device[field] for field in fields}
        assert gpu["processes"] == {str(process["pid"]): process["memory"] for process in device["processes"]}
