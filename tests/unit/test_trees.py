"""A tree whose root is not known has no processes but those that carry its mark: never a whole session of the host."""

from __future__ import annotations

import pytest

from gpulease.broker.runs import Root
from gpulease.broker.trees import Census


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_a_run_without_a_shell_has_no_session(pid: int) -> None:
    assert Census().tree(Root(pid, None, "nobody-carries-this;", 0)) == {}
