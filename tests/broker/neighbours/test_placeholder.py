"""The process that shows a leased GPU as taken, by itself."""

from __future__ import annotations

import os
import subprocess
import sys

from support.machine import Machine


def test_it_ends_without_a_word_when_its_broker_is_gone(machine: Machine) -> None:
    """A broker that was killed left a traceback of each in the next one's log."""
    uuid = machine.json("status")["devices"][0]["uuid"]
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "gpulease.broker.children.placeholder", uuid]
    done = subprocess.run(
        words, env=machine.environ, stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
