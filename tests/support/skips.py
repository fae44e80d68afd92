"""What was not tested, said in one short list at the end of a run.

Root's run installs everything that tests need. There, a skip that tests/allowed_skips.toml does not name is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ALLOWED = Path(__file__).parents[1] / "allowed_skips.toml"


def allowed() -> dict[str, str]:
    """Reasons of skips that every run may have, and why each is right."""
    return dict(tomllib.loads(ALLOWED.read_text())["skips"])


def is_strict() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def reasons(reports: list[Any]) -> Counter[str]:
    """How many tests were skipped for each reason."""
    reply = (report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr) for report in reports)
    return Counter(reason.removeprefix("Skipped: ") for reason in reply)


def unexpected(counted: Counter[str]) -> list[str]:
    """The reasons that fail a strict run."""
    return [reason for reason in counted if reason not in allowed()] if is_strict() else []


def summary(counted: Counter[str]) -> list[str]:
    if not counted:
        return []
    lines = [f"{sum(counted.values())} tests were skipped:"]
    lines += [f"  {count:4}  {reason}" for reason, count in counted.most_common()]
    packages = sorted(set(re.findall(r"\(Debian: (\S+)\)", " ".join(counted))))
    if packages:
        lines.append(f"To test these too: apt-get install {' '.join(packages)}")
    return lines
