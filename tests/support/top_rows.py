"""Rows as the broker tells them to `top`, for tests without a broker."""

from __future__ import annotations

import os
from typing import Any

from gpulease.tui.entries import MachineSeen

NOW = 1_800_000_000.0


# fmt: off
def device(index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "index": index, "instance": None, "label": str(index), "uuid": f"GPU-{index}", "name": "NVIDIA A100",
        "memory_total": 80 << 30, "memory_used": 8 << 30, "utilization": 50, "temperature": 40, "power": 100_000,
        "state": "free", "outside": [], "note": None, "leases": [], "lost": None, "processes": [], **more,
    }


def lease(id: str = "L1", **more: Any) -> dict[str, Any]:
    return {
        "id": id, "kind": "run", "labels": ["0"], "user": "ada", "pid": 7, "since": NOW - 70, "until": None,
        "memory": None, "priority": 5, "note": None, "ending": None, "job": None, **more,
    }


def waiting(id: str = "L9", **more: Any) -> dict[str, Any]:
    return {
        "id": id, "kind": "run", "user": "bob", "gpus": 2, "memory": None, "priority": 5, "since": NOW - 5,
        "why": "needs two", "why_short": "needs 2", "expected_start": NOW + 600, "note": None, **more,
    }


def job(id: int = 3, state: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "id": id, "command": ["python", "train.py"], "uid": os.getuid(), "user": "ada", "cwd": "/home/ada",
        "request": {"gpus": 1, "memory": None, "priority": 5}, "state": state, "name": None, "note": None,
        "started": NOW - 70, "ended": None, "exit_code": None, "signal": None, "why": None, "devices": ["0"],
        "packed": None, "why_waiting": None, "why_short": None, "ending": None, "removing": False,
        "log": "/nowhere/3.log", "runs": 1, **more,
    }


def seen(devices: list[dict[str, Any]], *jobs: dict[str, Any], **more: Any) -> MachineSeen:
    status = {
        "host": "lab", "simulated": True, "driver": "550", "trouble": None, "broker": {}, "line_length": 0,
        "devices": devices, "leases": [], "line": [], **more,
    }
    return MachineSeen(status, jobs)
# fmt: on


STRANGER = {"pid": 77, "user": "eve\x07", "command": "/opt/x y", "memory": None, "lease": None}
EVERYTHING = seen(
    [
        device(0, state="leased", leases=["J3"]),
        device(1, state="leased", leases=["L2"], utilization=None, memory_used=None),
        device(2, state="outside", outside=[77], processes=[STRANGER]),
        device(3, state="lost", lost="fell off the bus"),
    ],
    job(3),
    job(4, "waiting"),
    job(5, "held"),
    job(6, "failed", exit_code=1, ended=NOW - 10),
    leases=[lease("J3", kind="job"), lease("L2", kind="reservation", until=NOW + 60, note="\x1b[2Jpaper\nnight")],
    line=[waiting("J4", kind="job"), waiting("L9")],
)
