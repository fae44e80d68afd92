"""Users of safe-gpu and of gpulease on the same simulated GPUs, each in a loop of processes, and somebody who looks.

    python -m support.beside_safe_gpu ROLE TURNS FOLDER    prints what it counted as JSON

`safe-gpu` is the real one, with a CUDA context by ctypes as its placeholder; `run`, `get` and `acquire` are ours, each
with a program that makes a context; `observe` reads the machine's own files and knows of no broker.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

HOLD = "0.2"  # seconds that a program computes
GPULEASE = [sys.executable, "-m", "gpulease"]
PROGRAM = [sys.executable, "-m", "support.beside_safe_gpu", "compute"]


Pair = tuple[int, tuple[int, int]]  # a device, and two who compute on it


def context(number: int = 0) -> object:
    """As a framework makes one: the process is on the device when this returns."""
    library, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    for code in (library.cuInit(0), library.cuDevicePrimaryCtxRetain(ctypes.byref(handle), number)):
        if code:
            raise RuntimeError(f"CUDA error {code}")
    return handle


def compute() -> None:
    context()
    time.sleep(float(HOLD))


def claim_with_safe_gpu() -> None:
    import logging

    from safe_gpu import safe_gpu

    logging.disable()
    safe_gpu.claim_gpus(1, placeholder_fn=context)
    time.sleep(float(HOLD))


def acquire() -> None:
    import gpulease

    with gpulease.acquire(1, wait=60, placeholder=context) as lease:
        assert len(lease.placeholders) == 1
        time.sleep(float(HOLD))
        os._exit(0)  # the context ends with the process, and so does the lease


TURNS = {
    "safe-gpu": [sys.executable, "-m", "support.beside_safe_gpu", "claim-with-safe-gpu"],
    "acquire": [sys.executable, "-m", "support.beside_safe_gpu", "acquire-once"],
    "run": [*GPULEASE, "run", "--wait", "60", "--", *PROGRAM],
    "get": ["bash", "-c", 'g=$("$0" -m gpulease get --wait 60) && CUDA_VISIBLE_DEVICES=$g "$0" "${@:1}"; code=$?; '
            '"$0" -m gpulease release $g; exit $code', *PROGRAM],
}  # fmt: skip


def loop(role: str, least: int, folder: Path) -> dict[str, int]:
    """A process after the other, until all loops had their turns: each goes on to be in the others' way.

    Safe-gpu's fail at once where no GPU is free.
    """
    done, failed = 0, 0
    while not (folder / "over").exists():
        code = subprocess.run(TURNS[role], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False).returncode
        done, failed = done + (code == 0), failed + (code != 0)
        if done == least:
            (folder / f"done-{os.getpid()}").touch()
        time.sleep(random.uniform(0, 0.1))
    return {"done": done, "failed": failed}


def observe(loops: int, folder: Path) -> dict[str, object]:
    """Two who compute on one device in two looks in a row were there together. Placeholders of ours do not compute."""
    before, looks = set[Pair](), 0
    found: dict[Pair, str] = {}
    while len(list(folder.iterdir())) < loops:
        together = set(_together())
        for pair in together & before:
            found.setdefault(pair, " | ".join(_command(pid) for pid in pair[1]))
        before, looks = together, looks + 1
        time.sleep(0.002)
    (folder / "over").touch()
    return {"looks": looks, "collisions": sorted(found.values())}


def _together() -> list[Pair]:
    from gpulease.simulator.state import live_uses

    on: dict[int, list[int]] = {}
    for use in live_uses(Path(os.environ["GPULEASE_SIMULATION"])):
        if "gpulease.broker.children.placeholder" not in _command(use.pid):
            on.setdefault(use.gpu, []).append(use.pid)
    return [(gpu, (pids[0], pids[1])) for gpu, pids in on.items() if len(pids) > 1]


@cache
def _command(pid: int) -> str:
    """As it was when it was first seen: a process that is ending has none any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[-120:]
    except OSError:
        return ""


ONCE = {"compute": compute, "claim-with-safe-gpu": claim_with_safe_gpu, "acquire-once": acquire}

if __name__ == "__main__":
    asked = sys.argv[1]
    if asked in ONCE:
        ONCE[asked]()
    else:
        count, shared = int(sys.argv[2]), Path(sys.argv[3])
        told = observe(count, shared) if asked == "observe" else loop(asked, count, shared)
        print(json.dumps(told), flush=True)
