"""The documents of `ls`, `status`, `explain`, `events` and `usage` on Slurm."""

from __future__ import annotations

import os
import time

from gpulease.errors import NotEnoughDevices, NotFound, WrongState
from gpulease.model.job_selection import ENDED, line_id
from gpulease.slurm import add, commands, fields, options, rows
from gpulease.slurm.known_jobs import SlurmJobs, moment_of, nodes
from gpulease.slurm.rows import indices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gpulease.protocol.messages import EventRow, JobRow, LeaseRow
    from gpulease.slurm.records import Records

    Raw = Mapping[str, Any]

SOON = 10.0  # seconds; Slurm looks at its line every now and then
MAX_NAMED = 3  # nodes that are named
RECENT = 10  # ended jobs that are listed unasked
KINDS = (("running", "paused"), ("waiting",), ("held",))


def listing(jobs: list[JobRow], chosen: bool, all: bool, most: int, now: float) -> dict[str, Any]:
    """PURE: what runs, what waits, what ended: of each kind at most so many; the counts are of all."""
    states = [row["state"] for row in jobs]
    shown = [row for kind in KINDS for row in [row for row in jobs if row["state"] in kind][:most]]
    ended = [row for row in jobs if row["state"] in ENDED]
    ended.sort(key=lambda row: row["ended"] or 0.0)
    shown += ended[-(most if all or chosen else RECENT) :]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    document = {"jobs": shown, "counts": counts, "paused": False, "simulated": False, "state_trouble": None}
    return {**document, "time": now}


def status(records: Records) -> dict[str, Any]:
    seen, there = SlurmJobs(records), nodes(records)
    kept = {str(row["id"]): row for row in seen.jobs()}
    leases = _leases(seen, kept)
    line = [rows.line_row(raw, id, seen.time) for id, raw in seen.raw if rows.state_of(raw) in ("waiting", "held")]
    return {
        "host": _cluster(seen),
        "simulated": False,
        "driver": None,
        "time": seen.time,
        "sample_age": 0.0,
        "trouble": None,
        "broker": about(seen),
        "devices": device_rows(there, leases),
        "leases": leases,
        "line": line,
        "line_length": len(line),
    }


def _leases(seen: SlurmJobs, kept: Mapping[str, JobRow]) -> list[LeaseRow]:
    found = []
    for id, raw in seen.raw:
        if rows.state_of(raw) in ("running", "paused"):
            row = kept.get(id)
            found.append(rows.lease_row(raw, id, row["name"] or " ".join(row["command"]) if row else None))
    return found


def _cluster(seen: SlurmJobs) -> str:
    return next((fields.text(raw.get("cluster")) for _, raw in seen.raw), "") or "Slurm"


def about(seen: SlurmJobs) -> dict[str, Any]:
    version = "" if seen.version is None else f"{seen.version[0]}.{seen.version[1]:02d}"
    document = {"pid": 0, "kind": "slurm", "user": "", "directory": "", "version": version, "uptime": 0.0}
    return {**document, "config_trouble": None, "state_trouble": None, "visible": "index"}


def explain(records: Records, id: str) -> dict[str, Any]:
    seen = SlurmJobs(records)
    found = next((raw for known, raw in seen.raw if known == id), None)
    if found is None:
        first = next((known for known, _ in seen.raw if known.startswith(f"{id}_")), None)
        if first is None:
            raise NotFound(f"Slurm knows no job {id[:40]}.", "It forgets ended jobs after some minutes.")
        return explain(records, first)
    state = rows.state_of(found)
    if state in ("running", "paused"):
        return {"id": id, "lease": rows.lease_row(found, id, None), "why": None, "devices": []}
    if state not in ("waiting", "held"):
        raise WrongState(f"Job {id} is not waiting: it is {state}.", "See `gpulease show`.")
    line = rows.line_row(found, id, seen.time)
    return {
        "id": id,
        "lease": None,
        "why": line["why"],
        "why_short": line["why_short"],
        "code": line["why_short"],
        "place": _place(seen, found),
        "expected_start": rows.expected_start(found, seen.time),
        "devices": [_verdict(node) for node in nodes(records)],
    }


def estimate_start(records: Records, request: dict[str, Any], count: int) -> dict[str, Any]:
    """When Slurm would start such a request, of which it keeps nothing; of more than one alike it does not say."""
    kind, own = add.model(records, request), add.extra()
    words = ["sbatch", "--test-only", *options.resources(request, kind, own), *own]
    ran = commands.run(words, b"#!/bin/sh\n", environ=add.job_environment(os.environ))
    there, now = nodes(records), time.time()
    devices = device_rows(there, [])
    document: dict[str, Any] = {
        "id": "",
        "lease": None,
        "place": 0,
        "devices": [_verdict(node) for node in there],
        "gpus": len(devices),
        "load": sum(row["state"] == "leased" for row in devices) / max(1, len(devices)),
    }
    moment = parse_start(ran.complaint)
    if moment is None:
        trouble = commands.refusal("sbatch", ran.complaint)
        if not isinstance(trouble, NotEnoughDevices):
            raise trouble
        away = nodes_away(there, request.get("gpus", 1), kind)
        if away:
            why = f"The nodes that could serve it give no GPUs now: {'; '.join(away)}."
            document |= {"possible": True, "starts": [None] * count, "expected_start": None}
            return {**document, "code": "ReqNodeNotAvail", "why": why, "why_short": "ReqNodeNotAvail"}
        return {**document, "possible": False, "starts": [], "code": "never", "why": trouble.what, "why_short": "never"}
    soon = moment - now < SOON
    start = None if moment - now > rows.YEAR else max(0.0, 0.0 if soon else moment - now)
    document |= {"possible": True, "starts": [start] + [None] * (count - 1), "expected_start": None if soon else moment}
    if soon:
        return {**document, "code": "fits", "why": "Slurm would start it now.", "why_short": "fits"}
    return {**document, "code": "Resources", "why": "Slurm would let it wait.", "why_short": "Resources"}


def nodes_away(there: list[dict[str, Any]], gpus: int, kind: str | None) -> list[str]:
    """PURE: what keeps those nodes from giving GPUs that have enough of them: they are down or drained."""
    found = []
    for node in there:
        types = [(name, count) for name, count in gpu_types(fields.text(node.get("gres"))) if kind in (None, name)]
        trouble = trouble_of(node)
        if trouble is not None and sum(count for _, count in types) >= max(1, gpus):
            found.append(trouble[1])
    return found[:MAX_NAMED] + ([f"and {len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else [])


def parse_start(said: str) -> float | None:
    """PURE: of `sbatch: Job 58 to start at 2026-11-18T01:16:38 using 1 processors …`."""
    found = said.partition(" to start at ")[2].split()
    return moment_of(found[0]) if found else None


def _place(seen: SlurmJobs, raw: Mapping[str, Any]) -> int:
    """In the order of Slurm's priorities; an array that waits is one."""
    waiting = {id(one): one for _, one in seen.raw if rows.state_of(one) == "waiting"}.values()
    return 1 + sum(_rank(one) < _rank(raw) for one in waiting)


def _rank(raw: Mapping[str, Any]) -> tuple[float, int]:
    """Of two with the same priority, the older one comes first."""
    return -(fields.number(raw.get("priority")) or 0), fields.whole(raw.get("job_id")) or 0


def _verdict(node: Mapping[str, Any]) -> dict[str, Any]:
    name = str(node.get("name"))
    trouble = trouble_of(node)
    there = sum(count for _, count in gpu_types(fields.text(node.get("gres"))))
    used = len(rows.indices(fields.text(node.get("gres_used"))))
    why = trouble[1] if trouble else f"{used} of {there} GPUs are held" if there else "it has no GPUs"
    return {"label": name, "uuid": name, "code": trouble[0] if trouble else "node", "why": why}


def events(jobs: list[JobRow], since: float | None, most: int, now: float) -> list[EventRow]:
    """PURE: how jobs began and ended, in the order of time; `since` so long ago."""
    found: list[EventRow] = []
    for row in jobs:
        document: dict[str, Any] = {
            "user": row["user"],
            "id": line_id(row["id"]),
            "kind": "job",
            "devices": row["devices"],
        }
        document["note"] = row["name"]
        if row["started"] is not None:
            waited = max(0.0, row["started"] - row["added"])
            found.append({**document, "time": row["started"], "what": "granted", "waited": waited})  # type: ignore[typeddict-item]
        if row["ended"] is not None:
            why = row["why"] or row["state"]
            end = {"time": row["ended"], "what": "ended", "since": row["started"] or row["ended"], "why": why}
            found.append({**document, **end})  # type: ignore[typeddict-item]
    found.sort(key=lambda event: event["time"])
    earliest = 0.0 if since is None else now - since
    return [event for event in found if event["time"] >= earliest][-most:]


# -------------------------------------------------------------------- usage

UNKNOWN = "-"  # Slurm forgets which GPUs an ended job had
HOW_ENDED = ("complete", "failed", "killed", "lost", "invalid")


def usage_piece(
    jobs: list[JobRow], since: float | None, until: float | None, step: float, now: float
) -> dict[str, Any]:
    """All of it in one piece. Without accounting, only what was submitted from here and what Slurm still remembers."""
    begin, end = (now - 86400.0 if since is None else since), (now if until is None else until)
    meant = [row for row in jobs if row["started"] is not None and row["request"]["gpus"]]
    rows = [use for row in meant for use in _uses(row, begin, end, now)]
    counts = [_count(row) for row in meant if begin <= (row["started"] or 0.0) < end]
    about = {"since": begin, "until": end, "step": int(step), "now": now, "next": None}
    return {**about, "rows": rows, "counts": counts}


def _uses(row: JobRow, begin: float, end: float, now: float) -> list[dict[str, Any]]:
    started = max(row["started"] or 0.0, begin)
    held = min(row["ended"] or now, end) - started
    if held <= 0:
        return []
    devices = row["devices"] or [UNKNOWN] * row["request"]["gpus"]
    whose: dict[str, Any] = {"user": row["user"], "groups": [], "label": row["label"], "outside": False}
    times = {"time": started, "held": held, "known": 0.0, "busy": 0.0, "idle": 0.0}
    return [{**whose, **times, "device": device} for device in devices]


def _count(row: JobRow) -> dict[str, Any]:
    started = row["started"] or 0.0
    return {
        "time": started,
        "devices": row["devices"] or [UNKNOWN],
        "user": row["user"],
        "groups": [],
        "label": row["label"],
        "granted": 1,
        "waited": max(0.0, started - row["added"]),
        "jobs": {row["state"]: 1} if row["state"] in HOW_ENDED else {},
    }


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
