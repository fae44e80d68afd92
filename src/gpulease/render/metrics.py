"""PURE: the status document and sums that only grow, in Prometheus' text format.

Labels are UUIDs, states, reasons, leases and users: each has a bound. No process and no command is one.

They are kept by name beside the history, in the commit that writes it: what is told once is never taken back, however
a broker ends. So the minute that has not been written yet is not in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpulease.model.spans import Span
from gpulease.planner import reasons
from gpulease.protocol.messages import Totals

BOUNDS = (1, 10, 60, 300, 900, 3600, 14400, 86400)  # seconds that were waited; the last bucket has no bound
KINDS = ("held", "known", "busy", "idle")  # of time, by user; `known`: of which the driver told what the GPU did
Amounts = dict[str, int]  # by name: milliseconds, or a number of grants


def of_spans(spans: Iterable[Span]) -> Amounts:
    found: Amounts = {}
    for span in spans:
        for holder, use in span.uses.items():
            if not holder.outside:
                add(found, {f"{kind} {holder.user}": getattr(use, kind) for kind in KINDS})
    return found


def of_wait(milliseconds: int) -> Amounts:
    bucket = sum(milliseconds > 1000 * bound for bound in BOUNDS)
    return {f"granted {bucket}": 1, "waited": milliseconds}


def add(amounts: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + amount


def shown(amounts: Mapping[str, int], user: str | None) -> Totals:
    """Of one user; None: of all. Waits are of all together."""
    by_user: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for name, amount in sorted(amounts.items()):
        kind, _, whose = name.partition(" ")
        if kind in by_user and user in (None, whose):
            by_user[kind][whose] = amount / 1000
    buckets = [amounts.get(f"granted {bucket}", 0) for bucket in range(len(BOUNDS) + 1)]
    waits = [[bound, sum(buckets[: at + 1])] for at, bound in enumerate(BOUNDS)]
    return {
        "held": by_user["held"],
        "known": by_user["known"],
        "busy": by_user["busy"],
        "idle": by_user["idle"],
        "waits": waits,
        "granted": sum(buckets),
        "waited": amounts.get("waited", 0) / 1000,
        "everybody": user is None,
    }


# -------------------------------------------------------------------- text

STATES = ("free", "leased", "shared", "outside", "draining", "excluded", "lost", "unknown")
REASONS = (
    reasons.BLOCKED, reasons.CLOSED, reasons.NOT_YET, reasons.IMPOSSIBLE, reasons.OVER_LIMIT, reasons.QUOTA,
    reasons.CAPPED, reasons.NO_SLOT, reasons.HOLDING, reasons.HELD, reasons.UNAVAILABLE, reasons.BUSY,
)  # fmt: skip
TIMES = {
    "held": "Time that a user held GPUs, summed over them.",
    "known": "The part of it with a known utilization.",
    "busy": "The part of it that they computed, by their utilization.",
    "idle": "The part of the known time at a utilization of 1 % or less, as usage counts it.",
}
FURTHER = "further-back"  # in the line than reasons are worked out for
MOST = 1000  # leases and users that are told of
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricSample(NamedTuple):
    labels: Mapping[str, str]
    value: float
    suffix: str = ""


class MetricFamily(NamedTuple):
    name: str
    kind: str
    help: str
    samples: Iterable[MetricSample]


def text(document: Mapping[str, Any], totals: Mapping[str, Any] | None) -> str:
    """Of a broker that does not run, only that, and what is seen without it."""
    up = MetricSample({}, float(document.get("broker") is not None and totals is not None))
    families = [MetricFamily("gpulease_up", "gauge", "Whether the broker answers.", [up]), *_devices(document)]
    if totals is not None:
        families += [*_line(document), *_sums(totals)]
    return "".join(map(_family, families))


def _devices(document: Mapping[str, Any]) -> list[MetricFamily]:
    devices = document.get("devices", [])
    whole = [row["state"] for row in devices if row.get("instance") is None]
    parts = [row["state"] for row in devices if row.get("instance") is not None]
    names = [MetricSample({"uuid": row["uuid"], "index": row["label"], "name": row["name"]}, 1) for row in devices]
    counts = [MetricSample({"state": state}, whole.count(state)) for state in STATES]
    instances = [MetricSample({"state": state}, parts.count(state)) for state in STATES if parts]
    return [
        MetricFamily("gpulease_gpu_info", "gauge", "A GPU, or a MIG instance of one.", names),
        MetricFamily("gpulease_gpus", "gauge", "GPUs in each state, except GPUs with MIG instances.", counts),
        MetricFamily("gpulease_mig_instances", "gauge", "MIG instances in each state.", instances),
        _gauge("gpulease_gpu_utilization_ratio", "Share of time that it computes.", devices, "utilization", 100),
        _gauge("gpulease_gpu_memory_used_bytes", "Memory in use.", devices, "memory_used"),
        _gauge("gpulease_gpu_memory_total_bytes", "Memory that it has.", devices, "memory_total"),
        MetricFamily(
            "gpulease_gpu_outside_processes", "gauge", "Processes on it that no lease explains.", _outside(devices)
        ),
        MetricFamily("gpulease_lease_info", "gauge", "Which lease of which user has a GPU.", _leases(document)),
    ]


def _gauge(name: str, help: str, devices: Iterable[Mapping[str, Any]], field: str, divisor: float = 1) -> MetricFamily:
    """What is unknown is left out: it is not zero."""
    known = [row for row in devices if row[field] is not None]
    return MetricFamily(
        name, "gauge", help, [MetricSample({"uuid": row["uuid"]}, row[field] / divisor) for row in known]
    )


def _outside(devices: Iterable[Mapping[str, Any]]) -> list[MetricSample]:
    known = [row for row in devices if row["processes"] is not None and row["state"] != "unknown"]
    return [MetricSample({"uuid": row["uuid"]}, len(row["outside"])) for row in known]


def _leases(document: Mapping[str, Any]) -> list[MetricSample]:
    leases = document.get("leases", [])[:MOST]
    pairs = [(uuid, lease) for lease in leases for uuid in lease["devices"]]
    return [MetricSample({"uuid": uuid, "lease": lease["id"], "user": lease["user"]}, 1) for uuid, lease in pairs]


def _line(document: Mapping[str, Any]) -> list[MetricFamily]:
    counts = dict.fromkeys(REASONS, 0)
    for row in document["line"]:
        counts[row["code"]] = counts.get(row["code"], 0) + 1
    counts[FURTHER] = max(0, document["line_length"] - len(document["line"]))
    samples = [MetricSample({"reason": reason}, number) for reason, number in counts.items()]
    return [MetricFamily("gpulease_waiting", "gauge", "Requests and jobs in the queue, by why they wait.", samples)]


def _sums(totals: Mapping[str, Any]) -> list[MetricFamily]:
    times = {
        name: [MetricSample({"user": user}, seconds) for user, seconds in list(totals[name].items())[:MOST]]
        for name in TIMES
    }
    buckets = [(f"{bound}", number) for bound, number in totals["waits"]] + [("+Inf", totals["granted"])]
    waits = [MetricSample({"le": bound}, number, "_bucket") for bound, number in buckets]
    waits += [MetricSample({}, totals["waited"], "_sum"), MetricSample({}, totals["granted"], "_count")]
    return [
        *(
            MetricFamily(f"gpulease_gpu_{name}_seconds_total", "counter", help, times[name])
            for name, help in TIMES.items()
        ),
        MetricFamily("gpulease_wait_seconds", "histogram", "Time from a request to its lease.", waits),
    ]


def _family(family: MetricFamily) -> str:
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{family.name}{one.suffix}{_labels(one.labels)} {_number(one.value)}" for one in family.samples]
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    plain = value.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
