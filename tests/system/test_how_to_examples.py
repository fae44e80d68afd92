"""The scripts in docs/how-to run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from support.machine import Machine

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def example(page: str) -> str:
    found = re.search(r"```bash\n(.*?)```", (HOW_TO / page).read_text(), re.DOTALL)
    assert found
    return found.group(1)


def environment(machine: Machine, folder: Path) -> dict[str, str]:
    """With `gpulease` and this Python first on the PATH."""
    for name, words in {"gpulease": "-m gpulease", "python3": ""}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (folder / name).chmod(0o755)
    return {**machine.environ, "PATH": f"{folder}{os.pathsep}{machine.environ['PATH']}"}


def test_gpugets_script_runs_ten_tasks_each_alone_on_its_gpu(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    script = tmp_path / "task.sh"
    script.write_text(example("from-gpuget.md"))
    environ = environment(machine, folder)
    tasks = [
        subprocess.Popen(["bash", str(script), str(number)], env=environ, stdout=subprocess.PIPE, text=True)
        for number in range(10)
    ]
    texts = [task.communicate(timeout=60)[0] for task in tasks]
    assert all(re.search(rf"task {number} runs on GPU [0-3]\n", text) for number, text in enumerate(texts))
    events = machine.json("events")["events"]
    assert [event["what"] for event in events].count("granted") == 10
    holders: dict[str, str] = {}
    for event in events:  # nobody is granted what somebody still has
        for device in event["devices"]:
            if event["what"] == "granted":
                assert device not in holders
                holders[device] = event["id"]
            else:
                assert holders.pop(device) == event["id"]
    machine.run("stop")


def test_safe_gpus_two_processes_get_gpus_of_their_own(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    environ = environment(machine, folder)
    done = subprocess.run(
        ["bash", "-c", f"cd {shlex.quote(str(tmp_path))}; {example('from-safe-gpu.md').strip()}; wait"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = re.findall(r"got ([\d,]+) (\d)", done.stdout)
    assert sorted(count for _, count in lines) == ["1", "2"], done.stderr
    devices = ",".join(indices for indices, _ in lines).split(",")
    assert len(set(devices)) == 3
    machine.run("stop")
