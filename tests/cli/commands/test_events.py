"""Events answer who had what: of leases and of jobs, chosen by user, GPU, use and time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

from gpulease.api.history import DAY, EventChoice, ago
from gpulease.errors import UsageError
from gpulease.render.events import line_of, table_rows
from gpulease.render.hidden import of_event

BLOCK = "while ! [ -e go ]; do sleep 0.05; done"


def events(queue: QueueSite, *words: str) -> list[Any]:
    found: list[Any] = queue.json("events", *words)["events"]
    return found


def test_events_tell_who_had_what_from_when_to_when(queue: QueueSite) -> None:
    me = queue.ask("ping")["user"]
    job = queue.shell(BLOCK, note="sweep of rates")
    queue.until(job, "running")
    held = queue.run("get", "--devices", "2", "--for", "1h", "--note", "debugging").stdout.strip()
    queue.run("kill", str(job))
    queue.end(job)
    granted, ended = events(queue, "--job", str(job), "--kind", "job")[1:]
    assert (granted["what"], ended["what"], granted["note"]) == ("granted", "ended", "sweep of rates")
    assert granted["waited"] >= 0
    assert ended["since"] == pytest.approx(granted["time"], abs=5)
    assert (ended["releaser"], ended["user"]) == (me, me)
    assert [event["kind"] for event in events(queue, "--gpu", held)] == ["reservation"]
    assert events(queue, "--user", "nobody-else") == []
    assert len(events(queue, "--user", me, "--since", "2h", "--until", "0s")) == len(events(queue))
    assert events(queue, "--until", "1h") == []
    reply = queue.run("events", COLUMNS="80").stdout
    assert max(map(len, reply.splitlines())) <= 80
    heading, of_job, of_lease = queue.run("events").stdout.splitlines()
    assert heading.split() == ["START", "END", "LONG", "USER", "GPU", "WHAT"]
    assert of_job.endswith(f"job {job} is killed: killed by {me}, sweep of rates")
    assert of_lease.split()[1] == "-"
    assert of_lease.endswith("reservation, debugging")
    assert f"granted J{job} on GPU" in queue.run("log", "main").stdout


def test_of_old_events_what_is_not_known_is_a_dash() -> None:
    old: Any = [
        {
            "time": 1e9,
            "what": "ended",
            "id": "J1",
            "kind": "job",
            "user": "ada",
            "devices": ["0"],
            "why": "job 1 is lost: x",
        },
        {"time": 2e9, "what": "granted", "id": "L1", "kind": "run", "user": "ada", "devices": ["1"], "waited": 75.0},
        {
            "time": 2e9 + 60,
            "what": "ended",
            "id": "L1",
            "kind": "run",
            "user": "ada",
            "devices": ["1"],
            "why": "it ended",
        },
        {"time": 2e9 + 61, "what": "excluded", "user": "root", "devices": ["3"], "note": "fan"},
    ]
    lost, ended, excluded = table_rows(old, False, time.time())
    assert (lost[0], lost[2], lost[5]) == ("-", "-", "job 1 is lost: x")
    assert ended[2:] == ("1m00s", "ada", "1", "L1 run, waited 1m15s, it ended")
    assert excluded[1:] == ("", "", "root", "3", "excluded: fan")
    assert line_of(old[3]).endswith(" excluded on GPU 3 (root): fan")
    assert line_of({"time": 1.0, "what": "granted", "user": "ada"}).endswith(" granted (ada): -, waited - s")


def test_strangers_notes_and_commands_are_hidden() -> None:
    row = {"what": "ended", "kind": "job", "user": "ada", "note": "secret", "why": "job 1 is failed: secret-program"}
    assert "secret" not in str(of_event(row, "bob"))
    assert of_event(row, "ada") == row


def test_times_are_lengths_or_moments_that_have_been() -> None:
    assert ago("2h", "since") == 7200
    assert ago(90, "since") == 90
    midnight = time.strftime("%Y-%m-%d")
    assert 0 <= ago(midnight, "since") <= DAY + 3700
    assert 0 <= ago("00:00", "since") <= DAY + 3700
    assert ago("2999-01-01", "until") == 0
    with pytest.raises(UsageError, match="is not a time"):
        ago("yesterday", "since")


def test_a_gpu_stands_for_its_instances() -> None:
    choice = EventChoice.of(until=None, user=None, gpu="0,2", kind=None, job=None)
    assert [choice.has({"time": 1.0, "devices": [label]}) for label in ("0", "0:1", "1", "2")] == [
        True,
        True,
        False,
        True,
    ]
    assert not choice.has({"time": 1.0})
