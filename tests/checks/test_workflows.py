"""The workflows of GitHub run only what we have read: actions by commit, few rights, no secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).parents[2] / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"(\./\.github/workflows/[\w-]+\.yml|[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_named_by_commit_and_version(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


def test_an_action_has_one_commit_everywhere() -> None:
    used = {action for path in WORKFLOWS for action in re.findall(r"uses: (\S+@.*)", path.read_text())}
    assert len({action.partition("@")[0] for action in used}) == len(used)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_and_has_no_secret(path: Path) -> None:
    text = path.read_text()
    assert "\npermissions:\n  contents: read\n\n" in text
    assert set(re.findall(r"^ +([a-z-]+): write$", text, re.MULTILINE)) <= {"id-token", "pages"}
    assert "secrets" not in text
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
