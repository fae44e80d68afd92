"""Every policy setting, reason code and verdict of the planner is in the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulease.planner import Policy
from gpulease.planner.device_states import DRAINING, EXCLUDED, LOST, OUTSIDE
from gpulease.planner.reasons import SENTENCES
from gpulease.planner.why import FILTERS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
VERDICTS = (
    *FILTERS,
    DRAINING,
    EXCLUDED,
    LOST,
    OUTSIDE,
    "leased",
    "crowded",
    "memory",
    "held",
    "quota",
    "fits",
)


@pytest.mark.parametrize("name", Policy._fields)
def test_a_setting_is_documented_with_its_default(name: str) -> None:
    default = getattr(Policy(), name)
    assert f"| `{name}` | `{default!r}` |" in (REFERENCE / "policy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", [*SENTENCES, *VERDICTS])
def test_a_reason_is_documented(code: str) -> None:
    assert f"`{code}`" in (REFERENCE / "reasons.md").read_text(encoding="utf-8")
