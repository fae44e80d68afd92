"""PURE: what people type by habit or by mistake, and what it is called here."""

from __future__ import annotations

from collections.abc import Iterable

# an option of another tool, or an older one of ours -> options here; the first that the verb has is meant
OPTIONS = {
    "--name": ("--model",),
    "--name-like": ("--model",),
    "--name-job": ("--name",),
    "--job-name": ("--name",),
    "-J": ("--name",),
    "--gpu": ("--gpus", "--devices"),
    "--gres": ("--gpus",),
    "--num-gpus": ("--gpus",),
    "--ngpus": ("--gpus",),
    "--count": ("--gpus",),
    "-c": ("--gpus",),
    "-g": ("--gpus",),
    "-G": ("--gpus",),
    "--gpu-id": ("--devices",),
    "--gpu-ids": ("--devices",),
    "--ids": ("--devices",),
    "--memory": ("--mem", "--min-memory"),
    "--gpu-memory": ("--mem", "--min-memory"),
    "--gpu-mem": ("--mem", "--min-memory"),
    "--time": ("--time-limit", "--for"),
    "-t": ("--time-limit", "--for", "--tail"),
    "--duration": ("--for",),
    "--timeout": ("--wait", "--time-limit"),
    "--dependency": ("--after",),
    "--begin": ("--at",),
    "--output": ("--log",),
    "-o": ("--log",),
    "--chdir": ("--cwd",),
    "--workdir": ("--cwd",),
    "--retries": ("--retry",),
    "--array": ("--sweep",),
    "--nice": ("--priority",),
    "--export-env": ("--export",),
    "--comment": ("--note",),
    "--watch": ("--follow",),
    "--exclude-devices": ("--exclude",),
}


def option_meant(typed: str, there: Iterable[str]) -> str | None:
    """The option of a verb that somebody means who types one that it has not."""
    options = set(there)
    typed = typed.partition("=")[0]
    known = [option for option in OPTIONS.get(typed, ()) if option in options]
    return known[0] if known else near(typed, options) if typed.startswith("--") else None


def near(typed: str, there: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    found = get_close_matches(typed, sorted(there), 1, 0.75)
    return found[0] if found else None
