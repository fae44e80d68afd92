"""tools/setup.sh installs no system package that nobody asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.other_users import needs_root

SCRIPT = Path(__file__).parents[2] / "tools" / "setup.sh"


@pytest.fixture
def without_compiler(tmp_path: Path) -> Path:
    """Programs of a machine without a C compiler, whose apt-get writes down what it is told."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "id", "rm", "grep"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "python3").symlink_to(sys.executable)
    (programs / "apt-get").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\nexit 1\n')
    (programs / "apt-get").chmod(0o755)
    return programs


def setup(programs: Path, **environ: str) -> tuple[subprocess.CompletedProcess[str], str]:
    done = subprocess.run(
        ["sh", str(SCRIPT), ".[test]"],
        env={"PATH": str(programs), **environ},
        cwd=programs.parent,
        capture_output=True,
        text=True,
    )
    told = programs.parent / "told"
    return done, told.read_text() if told.exists() else ""


def test_a_missing_compiler_is_named_and_not_installed(without_compiler: Path) -> None:
    """As root, apt-get ran unasked and with its output hidden."""
    done, told = setup(without_compiler)
    assert (done.returncode, told) == (1, "")
    assert "apt-get install gcc libc6-dev" in done.stderr


@needs_root
@pytest.mark.parametrize("name", ["CI", "GPULEASE_SETUP_APT"])
def test_it_is_installed_where_that_is_asked_for(name: str, without_compiler: Path) -> None:
    _, told = setup(without_compiler, **{name: "1"})
    assert told.startswith("install -y gcc libc6-dev\n")
