"""tools/setup.sh says what it installs and why, before it does; only root's run installs system packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.needs import needs_root
from support.packages import PACKAGES

ROOT = Path(__file__).parents[2]
# A Python that answers questions, and whose venv and pip only say that they run.
PYTHON = """#!/bin/sh
case "$*" in
"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/pip; echo "venv RUNS" >&2 ;;
"-m pip"*) echo "pip RUNS: $*" >&2 ;;
*"import gpulease"*) ;;
*"import ziglang"*) exit 1 ;;
*"import ensurepip"*) {ensurepip} ;;
*packages.py) printf %s '{missing}' ;;
*) exec {python} "$@" ;;
esac
"""
TOOLS = ("sh", "id", "rm", "grep", "mkdir", "cp", "cat", "tr", "mktemp", "tail")


class Computer:
    """Programs of a machine whose apt-get only writes down what it is told, and a checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        for name in TOOLS:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.put("apt-get", f'echo "$@" >> {folder}/told; exit ${{APT_FAILS:-0}}')
        self.put("cc", "cat >/dev/null")
        self.python()
        shutil.copy(ROOT / "pyproject.toml", folder)
        (folder / "tests/support").mkdir(parents=True)
        shutil.copy(ROOT / "tests/support/packages.py", folder / "tests/support")

    def put(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def python(self, ensurepip: str = ":", missing: str = "") -> None:
        self.put("python3", PYTHON.format(python=sys.executable, ensurepip=ensurepip, missing=missing))

    def user(self) -> None:
        (self.bin / "id").unlink()
        self.put("id", "echo 1000")

    def setup(self, wanted: str = ".[test]", **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(ROOT / "tools/setup.sh"), wanted],
            env={"PATH": str(self.bin), **environ},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # in the order in which it is said
            text=True,
        )

    @property
    def told(self) -> str:
        """What apt-get was told."""
        return (self.folder / "told").read_text() if (self.folder / "told").exists() else ""


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


@needs_root
def test_root_is_told_what_apt_get_installs_and_it_does(computer: Computer) -> None:
    (computer.bin / "cc").unlink()
    computer.python(missing="tmux")
    done = computer.setup()
    assert done.returncode == 0, done.stdout
    assert re.findall(r"setup: apt-get installs, for (.*)", done.stdout) == [
        "simulated GPUs: gcc libc6-dev",
        "the tests: tmux",
    ]
    assert [line.split()[-1] for line in computer.told.splitlines()] == ["libc6-dev", "tmux"]


@needs_root
def test_a_demo_installs_nothing_for_tests(computer: Computer) -> None:
    computer.python(missing="tmux")
    assert computer.setup(".").returncode == 0
    assert computer.told == ""


@needs_root
def test_tests_run_though_apt_get_fails(computer: Computer) -> None:
    computer.python(missing="tmux")
    done = computer.setup(APT_FAILS="1")
    assert done.returncode == 0, done.stdout
    assert "going on without" in done.stdout


def test_another_user_gets_a_compiler_inside_the_venv_and_nothing_outside(computer: Computer) -> None:
    computer.user()
    (computer.bin / "cc").unlink()
    computer.python(missing="tmux")
    done = computer.setup()
    assert (done.returncode, computer.told) == (0, ""), done.stdout
    assert "there is no C compiler" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("install -q --disable-pip-version-check -e .[simulate]")


def test_a_compiler_that_does_not_work_is_no_compiler(computer: Computer) -> None:
    computer.user()
    computer.put("cc", "exit 1")
    assert "-e .[simulate]" in computer.setup().stdout


def test_what_is_installed_is_said_first_with_its_reason(computer: Computer) -> None:
    done = computer.setup()
    assert (done.returncode, computer.told) == (0, ""), done.stdout
    making, venv, needed, tests, _ = done.stdout.splitlines()
    assert "making .venv with Python 3" in making
    assert venv == "venv RUNS"
    assert "what gpulease needs: " in needed
    assert "nvidia-ml-py" in needed
    assert "pytest" in tests


def test_what_is_there_is_not_made_again(computer: Computer) -> None:
    computer.setup()
    done = computer.setup()
    assert (done.returncode, computer.told) == (0, "")
    assert "making .venv" not in done.stdout


def test_without_ensurepip_and_without_apt_get_the_package_is_named(computer: Computer) -> None:
    computer.user()
    (computer.bin / "apt-get").unlink()
    computer.python(ensurepip="exit 1")
    done = computer.setup()
    assert done.returncode == 1
    assert "apt-get install python3-venv" in done.stdout


def test_an_old_python_is_refused_with_the_way_to_a_newer_one(computer: Computer) -> None:
    computer.put("python3", '[ "$1" = --version ] && echo Python 3.10.12; exit 1')
    done = computer.setup()
    assert done.returncode == 1
    assert "Python 3.10.12 is too old" in done.stdout
    assert "uv python install 3.12" in done.stdout


def test_ci_runs_what_the_readme_says_to_try_and_sets_nothing() -> None:
    commands = re.findall(r"^make \w+", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    script = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert script == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', *commands]


def test_the_table_of_packages_can_be_read_before_anything_is_installed() -> None:
    words = [sys.executable, "-I", "-S", str(ROOT / "tests/support/packages.py")]
    reply = subprocess.run(words, capture_output=True, text=True, check=True, env={"PATH": "/nowhere"}).stdout.split()
    assert set(reply) <= set(PACKAGES)
    assert "tmux" in reply
