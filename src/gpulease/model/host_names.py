"""PURE: names of many hosts as one short text."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def folded(names: Sequence[str]) -> str:
    """`gpu[01-03,7], login`, in the order of the first of each kind."""
    found: dict[str, list[str]] = {}
    for name in names:
        prefix = name.rstrip("0123456789")
        found.setdefault(prefix, []).append(name[len(prefix) :])
    return ", ".join(
        f"{prefix}[{_spans(ends)}]" if len(ends) > 1 else prefix + ends[0] for prefix, ends in found.items()
    )


def _spans(ends: list[str]) -> str:
    parts: list[list[str]] = []
    for end in sorted(ends, key=lambda end: (int(end or -1), len(end))):
        last = parts[-1][-1] if parts else ""
        alike = len(last) == len(end) or "0" not in (last[:1], end[:1])
        if last and end and alike and int(end) == int(last) + 1:
            parts[-1][1:] = [end]
        else:
            parts.append([end])
    return ",".join("-".join(part) for part in parts)
