"""PURE: Slurm's nodes as devices, `node1:0` and so on, with who holds each: the document of `status`."""

from __future__ import annotations

from gpulease.slurm import fields
from gpulease.slurm.rows import indices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gpulease.protocol.messages import LeaseRow

    Raw = Mapping[str, Any]  # a node as `sinfo --json` has it

DOWN = {"DOWN", "NOT_RESPONDING", "FAIL", "FAILING", "POWERED_DOWN", "POWER_DOWN", "UNKNOWN", "ERROR", "REBOOT"}
AWAY = {"DRAIN", "DRAINING", "DRAINED", "MAINTENANCE", "MAINT", "PLANNED_DOWN"}


def gpu_types(gres: str) -> list[tuple[str, int]]:
    """`gpu:a100:4(S:0-1),gpu:v100:2,shard:8`: a100 4, v100 2."""
    found = []
    for part in fields.split(gres.replace("(", "[").replace(")", "]")):
        words = part.partition("[")[0].split(":")
        if words[0] == "gpu" and words[-1].isdecimal():
            found.append((words[1] if len(words) > 2 else "gpu", int(words[-1])))
    return found


def node_states(node: Raw) -> set[str]:
    """All that is told of its state, in capitals; 23.02 and later have one list, before it is a text and flags."""
    return {*fields.states(node.get("state")), *fields.states(node.get("state_flags") or [])}


def trouble_of(node: Raw) -> tuple[str, str] | None:
    """The state of its devices and why, when the node gives none: `lost` or `excluded`."""
    states = node_states(node)
    reason = fields.text(node.get("reason"))
    for names, state, word in ((DOWN, "lost", "down"), (AWAY, "excluded", "drained")):
        if states & names:
            return state, f"node {node.get('name')} is {word}" + (f": {reason}" if reason else "")
    return None


def device_rows(nodes: Sequence[Raw], leases: list[LeaseRow]) -> list[dict[str, Any]]:
    """A row for each GPU of each node, in their order."""
    holders: dict[str, list[str]] = {}
    for lease in leases:
        for label in lease["labels"]:
            holders.setdefault(label, []).append(lease["id"])
    rows: list[dict[str, Any]] = []
    for node in nodes:
        used = set(indices(fields.text(node.get("gres_used"))))
        trouble, index = trouble_of(node), 0
        for name, count in gpu_types(fields.text(node.get("gres"))):
            for _ in range(count):
                label = f"{node.get('name')}:{index}"
                held = holders.get(label, [])
                rows.append(_device(label, len(rows), name, held, trouble, str(index) in used))
                index += 1
    return rows


def _device(
    label: str, index: int, name: str, leases: list[str], trouble: tuple[str, str] | None, used: bool
) -> dict[str, Any]:
    state = trouble[0] if trouble else "leased" if leases or used else "free"
    return {
        "index": index,
        "uuid": label,
        "name": name,
        "vendor": "",
        "instance": None,
        "label": label,
        "state": state,
        "memory_total": None,
        "memory_used": None,
        "utilization": None,
        "temperature": None,
        "power": None,
        "lost": trouble[1] if trouble and trouble[0] == "lost" else None,
        "note": trouble[1] if trouble and trouble[0] == "excluded" else None,
        "leases": leases,
        "outside": [],
        "processes": [],
        "throttling": None,
    }


def matching_type(model: str, nodes: Sequence[Raw]) -> str | None:
    """The name that Slurm has for a model, as `nvidia_a100-sxm4-80gb` for A100."""
    names = dict.fromkeys(name for node in nodes for name, _ in gpu_types(fields.text(node.get("gres"))))
    wanted = _letters(model)
    exact = [name for name in names if _letters(name) == wanted]
    return next(iter([*exact, *(name for name in names if wanted and wanted in _letters(name))]), None)


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
