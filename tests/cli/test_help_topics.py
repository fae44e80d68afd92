"""What messages and docstrings name can be read after `pip install`: `gpulease help TOPIC`."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.machine import Machine, plain_environment
from support.needs import needs
from support.waiting import read_terminal

from gpulease.cli.commands import help
from gpulease.cli.install.manifest import man_page
from gpulease.cli.main import VERBS

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_every_topic_that_the_code_names_is_there() -> None:
    named = {
        (path.name, topic)
        for path in SOURCES
        for topic in re.findall(r"gpulease help ([a-z0-9][\w/-]*)", path.read_text())
    }
    assert len(named) > 10
    assert [(path, topic) for path, topic in named if not help.find(topic) and topic not in VERBS] == []


@pytest.mark.parametrize("topic", ["中文", "zh"])
def test_there_is_a_page_in_chinese(machine: Machine, topic: str) -> None:
    """For the users of gpulimit, whose own document is in Chinese."""
    assert machine.run("help", topic).stdout.startswith("# 从 gpulimit 迁移到 gpulease\n")


def test_no_text_of_the_code_names_a_path_that_pip_does_not_install() -> None:
    assert [path.name for path in SOURCES if re.search(r"\bdocs/\w", path.read_text())] == []


def test_the_pages_are_listed_and_printed(machine: Machine) -> None:
    listed = machine.run("help").stdout
    named = re.findall(r"^  (\S+) ", listed, re.MULTILINE)
    assert {"queue", "how-to/pool", "reference/pool", "containers", "first-steps", "figures"} <= set(named)
    assert all(len(help.find(name)) == 1 for name in named)
    assert max(map(len, listed.splitlines())) <= 80
    assert machine.run("help", "limits").stdout == (ROOT / "docs" / "how-to" / "limits.md").read_text()
    assert machine.run("help", "figures").stdout == (ROOT / "docs" / "figures.md").read_text()
    assert machine.run("help", "docs/how-to/limits.md").stdout == machine.run("help", "how-to/limits").stdout


def test_a_verb_has_its_options_and_the_pages_about_it(machine: Machine) -> None:
    reply = machine.run("help", "pool").stdout
    assert "usage: gpulease pool" in reply
    assert "`gpulease help reference/pool`" in reply


def test_an_unknown_topic_is_refused_with_the_nearest(machine: Machine) -> None:
    done = machine.run("help", "containres")
    assert (done.returncode, done.stdout) == (1, "")
    assert "`gpulease help containers`" in done.stderr
    assert "`gpulease help`" in machine.run("help", "zzzz").stderr


def test_on_a_terminal_a_page_is_rendered(machine: Machine) -> None:
    environ = {**machine.environ, "PAGER": "cat", "TERM": "xterm"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(machine.words("help", "limits"), env=environ, stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        shown = read_terminal(ours, b"no such text, so until it is closed").decode()
    os.close(ours)
    assert process.returncode == 0
    assert "Limits for users and groups" in shown
    assert "```" not in shown


def test_an_installed_wheel_has_its_pages_and_prompts(tmp_path: Path) -> None:
    words = ["wheel", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    made = subprocess.run([sys.executable, "-m", "pip", *words, str(ROOT)], capture_output=True, text=True, timeout=100)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    environ = {**plain_environment(), "PYTHONPATH": str(site)}

    def gpulease(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "gpulease", *words]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "containers" in gpulease("help")
    assert gpulease("help", "parameters").startswith("# Parameters")
    where = subprocess.run(
        [sys.executable, "-P", "-c", "from gpulease.cli.commands import help, shell; "
         "print(help.folder(), shell.FILES)"],
        env=environ, cwd=tmp_path, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    assert where == [str(site / "gpulease" / "docs"), str(site / "gpulease" / "cli" / "prompts")]
    assert (site / "gpulease" / "cli" / "prompts" / "zsh" / ".zshrc").exists()


# ---- the manual page


def test_the_manual_page_has_verbs_exit_codes_variables_and_files() -> None:
    text = man_page().replace("\\-", "-").replace("\\(ti", "~")
    assert [verb for verb in VERBS if f".SS gpulease {verb}\n" not in text] == []
    for part in ("EXIT STATUS\n.TP\n.B 0\n", "ENVIRONMENT\n.TP\n.B GPULEASE_DIR\n", "FILES\n.TP\n.B /etc/gpulease/"):
        assert f".SH {part}" in text
    documented = re.findall(r"^\| `([A-Z_]+)`", (ROOT / "docs" / "reference" / "settings.md").read_text(), re.MULTILINE)
    assert [name for name in documented if name not in text.partition(".SH ENVIRONMENT")[2]] == []


@needs("mandoc")
def test_mandoc_has_nothing_to_say_about_it(tmp_path: Path) -> None:
    (tmp_path / "gpulease.1").write_text(man_page())
    words = ["mandoc", "-Tlint", "-W", "warning", str(tmp_path / "gpulease.1")]
    reply = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    assert [line for line in reply if "missing date" not in line] == []


@needs("man", "groff")
def test_man_shows_it_without_warnings(tmp_path: Path) -> None:
    (tmp_path / "gpulease.1").write_text(man_page())
    words = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(tmp_path / "gpulease.1")]
    done = subprocess.run(words, env={**os.environ, "LC_ALL": "C.UTF-8"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
