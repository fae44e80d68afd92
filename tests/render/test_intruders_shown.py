"""A process on a leased GPU that its holder did not start is marked wherever the GPU is shown."""

from __future__ import annotations

from io import StringIO
from typing import Any

from gpulease.cli.commands.doctor import _device
from gpulease.model.values import Device, Process
from gpulease.render.metrics import text
from gpulease.render.status import lines
from gpulease.render.terminal import Terminal
from gpulease.tui.entries import _holder
from gpulease.web.cards import card
from gpulease.web.picture import PagePicture

MINE, THEIRS = (
    Process(7, 1, "ada", "python train.py", 1 << 30).shown("L1"),
    Process(8, 1, "bob", "python sneaky.py", 1 << 30).shown(None),
)
LEASE = {
    "id": "L1",
    "kind": "run",
    "user": "ada",
    "pid": 7,
    "memory": None,
    "until": None,
    "since": 0.0,
    "note": None,
} | {
    "devices": ["GPU-0"],
    "labels": ["0"],
}


def row(*outside: int) -> dict[str, Any]:
    device = Device(
        0, "GPU-0", "A100", memory_total=1 << 33, memory_used=1 << 31, utilization=5, temperature=1, power=1
    )
    more = {"label": "0", "state": "leased", "note": None, "leases": ["L1"], "outside": list(outside)}
    return {**device._asdict(), **more, "processes": [MINE, THEIRS]}


def shown(device: dict[str, Any]) -> dict[str, str]:
    document = {
        "host": "h", "simulated": False, "driver": None, "time": 1.0, "broker": None, "trouble": None, "line": [],
        "devices": [device], "leases": [LEASE], "line_length": 0,
    }  # fmt: skip
    return {
        "status": "\n".join(lines(document, Terminal(StringIO()), 1.0)),
        "top": _holder(device, document),
        "page": card(device, PagePicture(document, leases=(LEASE,)), "x"),
        "doctor": _device(device, "").text,
    }


def test_it_is_marked_in_status_top_page_and_doctor() -> None:
    for face, reply in shown(row(8)).items():
        assert "without a lease" in reply.lower(), face
        assert "bob" in reply, face
    for face, reply in shown(row()).items():
        assert "without a lease" not in reply.lower(), face
    assert _device(row(8), "").level == "warning"
    assert _device(row(), "").level == "ok"


def test_metrics_count_such_processes_though_the_gpu_is_leased() -> None:
    reply = text({"broker": {}, "devices": [row(8)], "leases": []}, None)
    assert 'gpulease_gpu_outside_processes{uuid="GPU-0"} 1\n' in reply
