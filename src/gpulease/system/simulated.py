"""Seeing devices: what each of them is and does at one moment."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def simulated(environ: Mapping[str, str]) -> bool:
    """Whether the devices to see are simulated ones."""
    return bool(environ.get("GPULEASE_SIMULATION") or environ.get("GPULEASE_SIMULATE", "0") not in ("", "0"))
