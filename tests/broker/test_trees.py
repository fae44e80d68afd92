"""A tree whose root is not known has no processes but those that carry its mark: never a whole session of the host."""

from __future__ import annotations

import os
import resource
import subprocess

import pytest

from gpulease.broker.core.events import Root
from gpulease.broker.trees import Census


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_a_run_without_a_shell_has_no_session(pid: int) -> None:
    assert Census().tree(Root(pid, None, "nobody-carries-this;", 0)) == {}


def test_processes_that_cannot_be_looked_at_are_no_proof_that_a_tree_is_gone() -> None:
    """Before, a process whose environment could not be opened for want of a descriptor counted as none of the job's."""
    other = subprocess.Popen(["sleep", "60"])  # one of this user's that is to be read
    census, before = Census(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            census.tree(Root(0, None, "nobody-carries-this;", os.getuid()))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        other.kill()
        other.wait()
