"""PURE: what a job's state, command and end are called, and all that is known of it, each fact with its name."""

from __future__ import annotations

from gpulease.model.job_selection import ranges
from gpulease.model.quantities import format_bytes
from gpulease.render.times import span, stamp, start_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from gpulease.model.job_selection import JobId
    from gpulease.protocol.messages import JobEnd, JobRow

ALL_IDS = 60  # characters of ids in a sentence; of more, the first
# Letters that need no quoting in a shell.
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
COLOURS = {
    "running": "green",
    "paused": "yellow",
    "ending": "yellow",
    "removing": "yellow",
    "waiting": "",
    "held": "dim",
    "complete": "cyan",
    "failed": "red",
    "invalid": "red",
    "killed": "yellow",
    "lost": "red",
}


def end_text(exit_code: int | None, signal: int | None = None) -> str:
    """`exit code 3`, or `signal 11 (SIGSEGV)` for the code 139, which is that signal as shells have it."""
    number = signal or signal_in(exit_code)
    if number is None:
        return f"exit code {exit_code}" if exit_code is not None else ""
    from signal import Signals  # loaded for those alone that ended so

    name = next((f" ({one.name})" for one in Signals if one.value == number), "")
    return f"signal {number}{name}"


def signal_in(exit_code: int | None) -> int | None:
    return exit_code - 128 if exit_code is not None and 128 < exit_code < 193 else None


def state_text(job: Mapping[str, Any]) -> str:
    """Its state; of one that was told to end and still runs, that it is ending."""
    if job.get("ending") is None:
        return str(job["state"])
    return "removing" if job["removing"] else "ending"


def ends_text(ended: Iterable[JobEnd], reasons: Mapping[JobId, str] | None = None) -> str:
    """`53 complete, 7 failed: 12,15-20`: how many ended how, and which of them not well; of one, how.

    `reasons`, by id, are told where they are known: `2 killed (time limit): 3,4`.
    """
    rows, reasons = list(ended), reasons or {}
    if len(rows) == 1:
        code, why = rows[0]["exit_code"], reasons.get(rows[0]["id"])
        how = f", {end_text(code)}" if code else ""
        return f"{rows[0]['id']} {rows[0]['state']}{how}{f' ({why})' if why else ''}"
    by_state: dict[str, list[JobId]] = {}
    for row in rows:
        why = reasons.get(row["id"])
        by_state.setdefault(f"{row['state']} ({why})" if why else row["state"], []).append(row["id"])
    names = sorted(by_state, key=lambda state: (state != "complete", state))
    return ", ".join(f"{len(by_state[name])} {name}{_which(name, by_state[name])}" for name in names)


def _which(state: str, ids: list[JobId]) -> str:
    return "" if state == "complete" else f": {some(ids)}"


def some(ids: Iterable[JobId]) -> str:
    """As ranges; of very many the first, and a mark."""
    text = ranges(ids)
    return text if len(text) <= ALL_IDS else f"{text[:ALL_IDS].rpartition(',')[0]},..."


def left_text(skipped: Iterable[str]) -> str:
    """Sentences as `7 is complete`, together: `1-3,7 complete, 9 failed`."""
    by_reason: dict[str, list[JobId]] = {}
    for text in skipped:
        id, _, reason = text.partition(" is ")
        by_reason.setdefault(reason, []).append(id)
    return "; ".join(f"{some(ids)} {reason}" for reason, ids in by_reason.items())


def wants(job: JobRow) -> str:
    from gpulease.model.quantities import format_bytes

    memory = job["request"]["memory"]
    return f"({format_bytes(memory)})" if memory else f"({job['request']['gpus']})"


def command_text(words: list[str]) -> str:
    """As it may be typed; what is hidden from others is not a command."""
    if words == ["(hidden)"] or all(word and PLAIN.issuperset(word) for word in words):
        return " ".join(words)
    from shlex import join

    return join(words)


def job_text(job: JobRow) -> str:
    """The reason of what waits stands first: on a terminal the end is cut."""
    text = job["name"] or command_text(job["command"])
    waits = job.get("why_short") or job["why_waiting"]
    if waits:
        return f"[{waits}] {text}"
    why = job.get("ending") or job["why"]
    if job.get("packed") and job["state"] == "running" and not why:
        return f"{text} [packed: {job['packed']}]"
    end = f" [{end_text(job['exit_code'], job['signal'])}]" if job["state"] == "failed" and not why else ""
    return text + (f" [{why}]" if why else end)


# -------------------------------------------------------------------- all that is known of a job


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
        rows.append(("at the latest", f"{stamp(sure)}, unless new requests go first"))
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
