"""`gpulease show`: all about jobs, with the end of their output at hand."""

from __future__ import annotations

import sys
import time

from gpulease.api.log import shown_line, tail
from gpulease.cli.options import add_choice, filters, say_missing
from gpulease.cli.parsing import Any, ArgumentParser, Namespace, add_json, clean, print_json
from gpulease.render.jobs import facts

EXAMPLES = """\
examples:
  gpulease show 12
  gpulease show 12 --env       with its environment (your own jobs only)
  gpulease show last --json
"""
LINES = 10


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.add_argument("--env", action="store_true", help="show the environment variables too")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import show

    reply = show(*arguments.ids, **filters(arguments), environment=arguments.env)
    rows = [{**job, "output": tail(job["log"], LINES, job["uid"]) if job["runs"] else []} for job in reply]
    if arguments.json:
        print_json({"jobs": rows}, 2)
        return say_missing(reply, arguments.ids)
    print("\n\n".join(_text(job) for job in rows))
    kept = [str(job["id"]) for job in reply if arguments.env and job.get("environment") is None]
    if kept:
        sys.stdout.flush()
        print(f"gpulease: only the submitter sees the environment of job {','.join(kept)}", file=sys.stderr)
    return say_missing(reply, arguments.ids)


def _text(job: dict[str, Any]) -> str:
    variables = [("variable", f"{name}={value}") for name, value in sorted((job.get("environment") or {}).items())]
    known = facts({**job, **_script_now(job)}, time.time())
    text = "\n".join(f"{name:<12} {clean(value)}" for name, value in [*known, *variables] if value)
    output = "\n".join(shown_line(line) for line in job["output"])
    return f"{text}\n--- last lines of its output ---\n{output}" if output else text


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
