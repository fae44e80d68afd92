"""`--export`: variables as lines that a shell evaluates."""

from __future__ import annotations

from gpulease.model.shell_text import quoted


def export_lines(variables: dict[str, str]) -> str:
    """Quoted: names of devices come from a broker, which may be another user's program."""
    return "\n".join(f"export {name}={quoted(value)}" for name, value in variables.items())
