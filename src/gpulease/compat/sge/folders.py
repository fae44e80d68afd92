"""The communication folders below a base folder, and the pool that stands for an agent there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

FOLDERS = ("log", "agent_pool", "job_pool", "result_pool", "data")


def make(base: str) -> None:
    for name in FOLDERS:
        os.makedirs(os.path.join(base, name), exist_ok=True)


def pool_name(base: str, agent: str) -> str:
    """One for each base folder and agent, from wherever it is asked."""
    return f"sge-{hashlib.sha256(os.path.realpath(base).encode()).hexdigest()[:8]}-{agent}"


def agent_file(base: str, agent: str) -> Path:
    """There while the agent lives; empty while it has nothing to do."""
    return Path(base, "agent_pool", f"{agent}.POOL")


def job_file(base: str, agent: str) -> Path:
    return Path(base, "job_pool", f"{agent}.npz")


def result_file(base: str, job: str) -> Path:
    return Path(base, "result_pool", f"{job}.npz")


def agents(base: str) -> list[str]:
    """In the order of their GPUs."""
    found = [path.stem for path in Path(base, "agent_pool").glob("*.POOL")]
    return sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
