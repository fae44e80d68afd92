"""A broker that answers nonsense makes no verb show a traceback: it is told as the broker's mistake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import nonsense
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

from gpulease.protocol.check import misfit

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


class Hostile(nonsense.Between):
    """A shared broker of a user with bad intentions: `change` is done to each answer."""

    def __init__(self, site: Site, change: Callable[[dict[str, Any]], None]) -> None:
        self.folder = site.folder / "hostile"
        self.folder.mkdir(mode=0o700)
        self._change = change
        super().__init__(self.folder, f"{site.directory}/socket")

    def _changed(self, message: dict[str, Any]) -> dict[str, Any]:
        self._change(message)
        return message


def test_names_of_states_clear_nobodys_screen(site: Site) -> None:
    site.run("add", "--hold", "--", "true")
    hostile = Hostile(site, lambda message: message["ok"].setdefault("counts", {}).update({"\x1b[2Jgone": 7}))
    done = site.run("ls", GPULEASE_DIR=str(hostile.folder))
    assert "gone" in done.stdout, done.stderr
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["id", "uuid", "label"])
def test_what_is_granted_is_no_option(site: Site, name: str) -> None:
    """A name goes into shells and command lines, as that of `release $GPULEASE_LEASE`."""

    def change(message: dict[str, Any]) -> None:
        if "granted" in message and name == "id":
            message["granted"]["id"] = "-n"
        elif "granted" in message:
            message["granted"]["devices"][0][name] = "-n"

    site.ensure_broker()
    done = site.run("get", "--for", "1m", GPULEASE_DIR=str(Hostile(site, change).folder))
    assert done.returncode != 0
    assert (done.stdout, "is not a device" in done.stderr) == ("", True)


def test_why_of_a_lease_that_is_held_is_answered(site: Site) -> None:
    site.ensure_broker()
    raw = site.raw()
    granted = raw.ask("acquire", request={}, kind="acquire")["granted"]
    assert raw.ask("taken", id=granted["id"])["ok"]["taken"] is True
    assert "is granted" in raw.ask("why", id=granted["id"])["error"]["what"]
