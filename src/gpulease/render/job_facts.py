"""PURE: all that is known of a job, each fact with its name."""

from __future__ import annotations

from gpulease.model.quantities import format_bytes
from gpulease.render.jobs import command_text, end_text, state_text
from gpulease.render.times import span, stamp, start_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def facts(job: dict[str, Any], now: float) -> list[tuple[str, str]]:
    """What is known of a job, each with its name; empty where it has none of that."""
    rows = [
        ("job", str(job["id"])),
        ("state", _state(job)),
        ("command", command_text(job["command"])),
        ("folder", job["cwd"]),
    ]
    rows += [("script", _script(job))] if job.get("script") else []
    rows += [(name, str(job[name])) for name in ("name", "label", "note", "user") if job[name]]
    rows += [("wants", _wants(job["request"])), ("GPUs", ",".join(job["devices"])), ("log", job["log"])]
    rows += [("pid", str(job["pid"]))] if job["pid"] and job["state"] in ("running", "paused") else []
    rows += [(name, stamp(job[name])) for name in ("added", "started", "ended") if job[name]]
    rows += [("tries", f"{job['tries']} of {max(job['retry'] + 1, job['tries'])}")]
    if job["after"]:
        rows.append(("after", f"{','.join(map(str, job['after']))}{', however they end' * job['after_any']}"))
    if job.get("expected_start"):
        latest = job.get("expected_latest")
        until = "" if latest is None else f" to {stamp(latest)}"
        near = start_in(job["expected_start"], latest, now)
        rows.append(("expected", f"{stamp(job['expected_start'])}{until} ({near})"))
    missed, sure = job.get("expected_missed"), job.get("sure_by")
    if missed is not None:
        rows.append(("late", f"it should have started by {stamp(missed)}; when it will is unknown"))
    if sure is not None:
        rows.append(("at the latest", f"{stamp(sure)}, if nobody comes who goes first"))
    if job.get("usual"):
        rows.append(("usually", _usually(job)))
    if job["at_most"]:
        rows.append(("at most", f"{job['at_most']} of its sweep at a time"))
    if job["time_limit"]:
        rows.append(("time limit", span(job["time_limit"])))
    if job["request"]["not_before"]:
        rows.append(("not before", stamp(job["request"]["not_before"])))
    if job["peak_memory"]:
        rows.append(("peak memory", format_bytes(job["peak_memory"])))
    if job.get("packed"):
        rows.append(("packed", job["packed"]))
    return rows


def _script(job: dict[str, Any]) -> str:
    """Empty if nobody had changed the file between `add` and the start."""
    changed = job.get("script_changed")
    return f"{job['script']} was changed at {stamp(changed / 1000)}, after the job was added" if changed else ""


def _usually(job: dict[str, Any]) -> str:
    """How long its like ran, and what they used."""
    usual, memory = job["usual"], job["usual"]["memory"]
    parts = [] if usual["seconds_50"] is None else [f"{span(usual['seconds_50'])} to {span(usual['seconds_90'])}"]
    if memory:
        parts.append(f"{format_bytes(memory)} of GPU memory")
        if usual["shares"] > 1 and job["request"]["gpus"] == 1 and not job["request"]["memory"]:
            parts.append(f"--mem {usual['mem']} would let {usual['shares']} share a GPU")
    return "; ".join(parts)


def _state(job: dict[str, Any]) -> str:
    parts = [state_text(job)]
    if job["exit_code"] is not None:
        parts.append(end_text(job["exit_code"], job["signal"]))
    if job["out_of_memory"]:
        parts.append("out of memory")
    why = job["why_waiting"] or job.get("ending") or job["why"]
    return ", ".join(parts) + (f": {why}" if why else "")


def _wants(request: dict[str, Any]) -> str:
    what = f"{format_bytes(request['memory'])} of a GPU" if request["memory"] else _gpus(request["gpus"])
    models = f", {','.join(request['models'])}" if request["models"] else ""
    long = f", for {span(request['duration'])} as declared" if request.get("duration") else ""
    return f"{what}{models}{long}, priority {request['priority']}"


def _gpus(number: int) -> str:
    if not number:
        return "no GPU"
    return f"{number} GPU" if number == 1 else f"{number} GPUs"
