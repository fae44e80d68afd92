"""A broker that answers nonsense makes no verb show a traceback: it is told as the broker's mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import nonsense
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

from gpulease.answers import misfit

DEADLINE = 100


def test_no_verb_shows_a_traceback_whatever_the_broker_answers(site: Site) -> None:
    site.run("get", "--devices", "0", "--for", "1h", "--note", "n")
    site.run("add", "--", "echo", "x")
    site.run("wait", "1")
    site.run("add", "-n", "4", "--", "true")
    with site.occupied("1"):
        folder = site.folder / "between"
        folder.mkdir(mode=0o700)
        words = [sys.executable, nonsense.__file__, str(folder), "12"]
        environ = {**site.environ, "PYTHONPATH": str(Path(nonsense.__file__).parents[1])}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    wait_until(lambda: site.status()["devices"])


def test_the_message_names_the_verb_and_what_is_wrong(site: Site) -> None:
    good: dict[str, Any] = {"ok": {"jobs": [], "counts": {"failed": 2}, "paused": False, "simulated": True}}
    assert misfit("ls", good) == "state_trouble is missing"
    good["ok"]["state_trouble"] = None
    assert misfit("ls", good) is None
    good["ok"]["counts"]["failed"] = "many"
    assert misfit("ls", good) == "counts.failed is 'many'"


@pytest.mark.parametrize("verb", ["status", "ls", "events", "set", "ping"])
def test_what_a_sound_broker_answers_fits(site: Site, verb: str) -> None:
    site.run("get", "--for", "1h")
    site.run("add", "--", "sleep", "1000")
    site.run("add", "-n", "4", "--", "sleep", "1000")
    with site.occupied("2"):
        assert misfit(verb, site.raw().ask(verb)) is None
