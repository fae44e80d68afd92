"""The verbs that people wait for load only what they need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here

HEAVY = {"asyncio", "rich", "redis", "dataclasses", "psutil", "logging", "inspect"}
# What would double the time of a verb that only asks the broker.
SLOW = {
    "argparse",
    "json",
    "re",
    "typing",
    "enum",
    "random",
    "pathlib",
    "shutil",
    "subprocess",
    "threading",
    "importlib",
}
PROGRAM = """
import sys
before = set(sys.modules)
from gpulease.cli.main import main
try:
    main({words!r})
finally:
    print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}), file=sys.stderr)
"""


def loaded(words: list[str], simulated: dict[str, str]) -> set[str]:
    program = PROGRAM.format(words=words)
    done = subprocess.run([sys.executable, "-c", program], env=simulated, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["select"]])
def test_hot_verbs_load_nothing_heavy(words: list[str], simulated: dict[str, str]) -> None:
    assert loaded(words, simulated) & HEAVY == set()


def test_the_version_loads_next_to_nothing(simulated: dict[str, str]) -> None:
    assert loaded(["--version"], simulated) <= {"gpulease", "__future__"}


@pytest.mark.parametrize(
    "words",
    ["status", "get --owner 1 --devices 0", "release 0", "ls", "explain 1", "events", "add --hold -- true", "kill 1"],
)
def test_verbs_that_ask_a_broker_load_only_what_asks(words: str, site: Site) -> None:
    site.ensure_broker()
    assert site.run("add", "--at", "in 1h", "--", "true").returncode == 0
    assert site.run("get", "--devices", "0", "--for", "1h").returncode == 0
    if words.startswith("get"):
        words = words.replace("0", "1").replace("--owner 1", f"--owner {os.getpid()}")
    assert loaded(words.split(), site.environ) & (HEAVY | SLOW) == set()
