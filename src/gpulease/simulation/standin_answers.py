"""What the pure-Python stand-in answers to each NVML call, as `native/nvmlsim.c` does in C: all of it."""

from __future__ import annotations

from gpulease.simulation import standin_identity, standin_instances, standin_readings
from gpulease.simulation.standin_view import ANSWERS

__all__ = ["ANSWERS", "standin_identity", "standin_instances", "standin_readings"]
