"""`gpulease show`: all about jobs, with the end of their output at hand."""

from __future__ import annotations

import sys

from gpulease.api.log import shown_line, tail
from gpulease.cli.job_selection import add_choice, filters, say_missing
from gpulease.cli.parsing import Any, ArgumentParser, Namespace, add_json, clean, print_json
from gpulease.render.jobs import end_text, state_text
from gpulease.render.times import stamp, start_in

EXAMPLES = """\
examples:
  gpulease show 12
  gpulease show 12 --env       its environment, for its own user only
  gpulease show last --json
"""
LINES = 10


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.add_argument("--env", action="store_true", help="its environment too")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import show

    told = show(*arguments.ids, **filters(arguments), environment=arguments.env)
    rows = [{**job, "output": tail(job["log"], LINES, job["uid"]) if job["runs"] else []} for job in told]
    if arguments.json:
        print_json({"jobs": rows}, 2)
        return say_missing(told, arguments.ids)
    print("\n\n".join(_text(job) for job in rows))
    kept = [str(job["id"]) for job in told if arguments.env and job.get("environment") is None]
    if kept:
        sys.stdout.flush()
        print(f"gpulease: only the submitter sees the environment of job {','.join(kept)}", file=sys.stderr)
    return say_missing(told, arguments.ids)


def _text(job: dict[str, Any]) -> str:
    variables = [("variable", f"{name}={value}") for name, value in sorted((job.get("environment") or {}).items())]
    known = facts({**job, **_script_now(job)})
    text = "\n".join(f"{name:<12} {clean(value)}" for name, value in [*known, *variables] if value)
    output = "\n".join(shown_line(line) for line in job["output"])
    return f"{text}\n--- last lines of its output ---\n{output}" if output else text


def facts(job: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known of a job, each with its name; empty where it has none of that."""
    from gpulease.cli.commands.ls import command_text, span

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
        rows.append(("expected", f"{stamp(job['expected_start'])}{until} ({start_in(job['expected_start'], latest)})"))
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
        from gpulease.model.quantities import format_bytes

        rows.append(("peak memory", format_bytes(job["peak_memory"])))
    if job.get("packed"):
        rows.append(("packed", job["packed"]))
    return rows


def _script(job: dict[str, Any]) -> str:
    """Empty if nobody had changed the file between `add` and the start."""
    changed = job.get("script_changed")
    return f"{job['script']} was changed at {stamp(changed / 1000)}, after the job was added" if changed else ""


def _script_now(job: dict[str, Any]) -> dict[str, Any]:
    """Of a job of one's own that waits: whether its script was changed until now. Nobody else's files are touched."""
    import os

    if not job.get("script") or job["uid"] != os.geteuid() or job["state"] not in ("waiting", "held"):
        return {}
    try:
        seen = os.stat(job["script"]).st_mtime_ns // 1_000_000
    except OSError:
        return {}
    return {"script_changed": seen if seen != job["script_time"] else None}


def _usually(job: dict[str, Any]) -> str:
    """How long its like ran, and what they used."""
    from gpulease.cli.commands.ls import span
    from gpulease.model.quantities import format_bytes

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
    from gpulease.model.quantities import format_bytes

    what = f"{format_bytes(request['memory'])} of a GPU" if request["memory"] else _gpus(request["gpus"])
    models = f", {','.join(request['models'])}" if request["models"] else ""
    from gpulease.cli.commands.ls import span

    long = f", for {span(request['duration'])} as declared" if request.get("duration") else ""
    return f"{what}{models}{long}, priority {request['priority']}"


def _gpus(number: int) -> str:
    if not number:
        return "no GPU"
    return f"{number} GPU" if number == 1 else f"{number} GPUs"
