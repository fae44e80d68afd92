"""MIG instances are counted apart from GPUs, and in the same way wherever devices are counted."""

from __future__ import annotations

from typing import Any

from gpulease.render.metrics import text
from gpulease.render.status import totals
from gpulease.web.fragments import sections
from gpulease.web.picture import PagePicture, Viewer


def device(index: int, instance: int | None, state: str) -> dict[str, Any]:
    label = str(index) if instance is None else f"{index}:{instance}"
    unknown = ("utilization", "memory_used", "memory_total", "temperature", "power", "lost", "note", "processes")
    row = {"index": index, "instance": instance, "label": label, "uuid": label, "name": "A100", "state": state}
    return {**row, **dict.fromkeys(unknown), "leases": [], "outside": []}


DEVICES = [
    device(0, None, "leased"),
    device(1, None, "free"),
    device(2, 0, "leased"),
    device(2, 1, "free"),
    device(2, 2, "free"),
]
STATUS = {"simulated": False, "broker": {}, "leases": [], "line": [], "line_length": 0}


def test_the_page_counts_as_status_does() -> None:
    reply = totals(DEVICES, "")
    assert reply == "3 GPUs, 1 free; 3 MIG instances, 2 free"
    summary = sections(PagePicture(STATUS, devices=tuple(DEVICES)), Viewer(""))["summary"]["now"]
    assert summary == f'<p id="summary-now">{reply}; 2 held; 0 waiting</p>'
    simulated = PagePicture({**STATUS, "simulated": True}, devices=tuple(DEVICES))
    assert "3 <strong" in sections(simulated, Viewer(""))["summary"]["now"]


def test_metrics_count_gpus_and_instances_apart() -> None:
    reply = text({**STATUS, "devices": DEVICES}, None).splitlines()
    assert 'gpulease_gpus{state="free"} 1' in reply
    assert 'gpulease_gpus{state="leased"} 1' in reply
    assert 'gpulease_mig_instances{state="free"} 2' in reply
    assert 'gpulease_mig_instances{state="leased"} 1' in reply
    without = text({**STATUS, "devices": DEVICES[:2]}, None)
    assert "gpulease_mig_instances" not in without
