"""Every parameter, every state and every field of a job is in the reference; so is every command of gpulimit."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulease.broker.core.jobs import SHOWN
from gpulease.model.job_selection import STATES
from gpulease.model.jobs import Job, JobSpec
from gpulease.planner import Policy
from gpulease.planner.settings import PARAMETERS, Settings

DOCS = Path(__file__).parents[2] / "docs"
GPULIMIT = ["help", "add", "ls", "show", "rm", "kill", "move", "set", "start", "log", "status", "debug"]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_is_documented_with_its_name_at_gpulimit_its_default_and_its_bounds(name: str) -> None:
    parameter = PARAMETERS[name]
    default = parameter.text_of(getattr(Policy() if parameter.policy else Settings(), parameter.field))
    seed = f"`{parameter.seed}`" if parameter.seed else ""
    row = f"| `{name}` | {seed} | `{default}` | {parameter.bounds} | {parameter.meaning} |"
    assert row in (DOCS / "reference" / "parameters.md").read_text()


@pytest.mark.parametrize("state", STATES)
def test_a_state_is_documented(state: str) -> None:
    assert f"| `{state}` |" in (DOCS / "concepts" / "jobs.md").read_text()


@pytest.mark.parametrize("field", sorted(SHOWN & {*Job._fields, *JobSpec._fields}))
def test_a_field_of_a_job_is_documented(field: str) -> None:
    assert f"`{field}`" in (DOCS / "reference" / "json.md").read_text()


@pytest.mark.parametrize("command", GPULIMIT)
def test_a_command_of_gpulimit_has_its_counterpart(command: str) -> None:
    assert f"`gpulimit {command}" in (DOCS / "how-to" / "from-gpulimit.md").read_text()
