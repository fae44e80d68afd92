"""tools/setup.sh says what it installs and why, before it does; no system package unless that was asked for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.other_users import needs_root

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "setup.sh"
# A Python that answers questions, and whose venv and pip only say that they run.
PYTHON = """#!/bin/sh
case "$*" in
"-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/pip; echo "venv RUNS" >&2 ;;
"-m pip"*) echo "pip RUNS: $*" >&2 ;;
*gpulease*) ;;
*) exec {} "$@" ;;
esac
"""


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


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """Programs of a machine that lacks nothing; apt-get would write down what it is told."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "id", "rm", "grep", "mkdir", "cp", "cat"):
        (programs / name).symlink_to(str(shutil.which(name)))
    stubs = {"python3": PYTHON.format(sys.executable), "cc": "#!/bin/sh\ncat >/dev/null\n"}
    stubs |= dict.fromkeys(("chromium", "chromedriver", "promtool", "tmux"), "#!/bin/sh\n")
    stubs |= dict.fromkeys(("ssh", "ssh-keygen", "sshd", "ip", "slurmctld", "munged"), "#!/bin/sh\n")
    for name, text in {**stubs, "apt-get": f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return programs


def setup(programs: Path, **environ: str) -> tuple[subprocess.CompletedProcess[str], str]:
    done = subprocess.run(
        ["sh", str(SCRIPT), ".[test]"],
        env={"PATH": str(programs), **environ},
        cwd=programs.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # in the order in which it is said
        text=True,
    )
    told = programs.parent / "told"
    return done, told.read_text() if told.exists() else ""


def test_a_missing_compiler_is_named_and_not_installed(without_compiler: Path) -> None:
    """As root, apt-get ran unasked and with its output hidden."""
    done, told = setup(without_compiler)
    assert (done.returncode, told) == (1, "")
    assert "apt-get install gcc libc6-dev" in done.stdout


@needs_root
@pytest.mark.parametrize("name", ["CI", "GPULEASE_SETUP_APT"])
def test_it_is_installed_where_that_is_asked_for(name: str, without_compiler: Path) -> None:
    _, told = setup(without_compiler, **{name: "1"})
    assert told.startswith("install -y gcc libc6-dev\n")


def test_what_is_installed_is_said_first_with_its_reason(complete: Path) -> None:
    done, told = setup(complete, GPULEASE_SETUP_APT="1")
    assert (done.returncode, told) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert [line for line in lines if "RUNS" in line][1].startswith("pip RUNS: -m pip install")
    making, venv, needed, tests, _ = lines
    assert "making .venv with Python 3" in making
    assert venv == "venv RUNS"
    assert "what gpulease needs: " in needed
    assert "nvidia-ml-py" in needed
    assert "tests" in tests
    assert "pytest" in tests


def test_what_is_there_is_not_made_again(complete: Path) -> None:
    setup(complete)
    done, told = setup(complete, GPULEASE_SETUP_APT="1")
    assert (done.returncode, told) == (0, "")
    assert "making .venv" not in done.stdout


def test_a_compiler_that_does_not_work_is_no_compiler(complete: Path) -> None:
    (complete / "cc").write_text("#!/bin/sh\nexit 1\n")
    done, _ = setup(complete)
    assert done.returncode == 1
    assert "apt-get install gcc libc6-dev" in done.stdout


def test_an_old_python_is_refused_with_the_way_to_a_newer_one(complete: Path) -> None:
    (complete / "python3").write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.10.12; exit 1\n')
    done, _ = setup(complete)
    assert done.returncode == 1
    assert "Python 3.10.12 is too old" in done.stdout
    assert "uv python install 3.12" in done.stdout


def test_ci_runs_what_the_readme_says_to_try() -> None:
    commands = re.findall(r"^make \w+", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    assert [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make")] == commands
