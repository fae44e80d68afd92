"""`--export`: variables as lines that a shell evaluates."""

from __future__ import annotations

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-,./:")


def export_lines(variables: dict[str, str]) -> str:
    """Quoted: names of devices come from a broker, which may be another user's program."""
    return "\n".join(f"export {name}={_quoted(value)}" for name, value in variables.items())


def _quoted(text: str) -> str:
    return text if text and PLAIN.issuperset(text) else "'" + text.replace("'", "'\\''") + "'"
