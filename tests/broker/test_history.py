"""The history of a real broker: who held what and how busy it was, through a kill, a damaged file and a full disk."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue, inside, on_a_small_disk  # noqa: F401  # pytest finds these
from support.waiting import wait_for_end, wait_until

import gpulease
from gpulease.errors import StateError, UsageError


def history(queue: QueueSite, step: float = 60.0) -> tuple[float, dict[str, Any]]:
    """The broker's time, and the rows of this hour or two by device, added up."""
    reply = queue.ask("history", step=step)
    assert reply["next"] is None
    found: dict[str, Any] = {}
    for row in reply["rows"]:
        before = found.setdefault(row["device"], {**dict.fromkeys(("held", "known", "busy", "idle"), 0), "holders": []})
        for name in ("held", "known", "busy", "idle"):
            before[name] += row[name]
        before["holders"] += row["holders"]
    return reply["now"], found


def held_whole(queue: QueueSite, device: str) -> None:
    """It was held from when its lease began until now, as far as a broker can tell."""
    since = next(lease["since"] for lease in queue.ask("status")["leases"] if device in lease["labels"])
    now, found = history(queue)
    assert found[device]["held"] == pytest.approx(now - since, abs=0.1)
    assert history(queue, 3600)[1][device]["held"] == pytest.approx(now - since, abs=60)


def stop(queue: QueueSite) -> None:
    broker = wait_until(queue.broker_pid)
    assert queue.run("stop").returncode == 0
    wait_for_end(broker)  # it answers, and then it writes


def test_what_is_held_is_looked_at_while_nobody_else_looks(queue: QueueSite) -> None:
    queue.run("set", "neighbours.safe-gpu", "off")  # for whose users held devices are looked at each second
    assert queue.run("get", "-n", "2", "--devices", "0,1", "--for", "1h").returncode == 0
    queue.set("gpu.1.utilization=80")  # which nobody who looked before can have seen

    def later() -> Any:
        found = history(queue)[1]
        return found if found["1"]["busy"] else None

    found = wait_until(later, pause=0.5)
    idle, busy = found["0"]["holders"][-1], found["1"]["holders"][-1]
    me = queue.ask("ping")["user"]
    assert (idle["user"], idle["outside"], idle["busy"], idle["idle"]) == (me, False, 0, idle["known"])
    assert 0 < busy["busy"] <= 0.81 * busy["known"]
    assert busy["idle"] + busy["busy"] / 0.8 == pytest.approx(busy["known"], abs=0.01)
    assert found.get("2", {"held": 0})["held"] == 0
    held_whole(queue, "0")


def test_what_nobody_holds_is_known_while_somebody_looks(queue: QueueSite) -> None:
    queue.set("gpu.3.utilization=40")
    with queue.raw() as raw:
        raw.send("subscribe", topics=["devices"])
        wait_until(lambda: history(queue)[1].get("3", {"known": 0})["known"] > 1)
    found = history(queue)[1]["3"]
    assert (found["held"], found["holders"]) == (0, [])
    assert found["busy"] / found["known"] == pytest.approx(0.4, abs=0.05)


def test_use_without_a_lease_is_known_as_such(queue: QueueSite) -> None:
    with queue.occupied("2"):
        queue.run("status")
        wait_until(lambda: [one for one in history(queue)[1]["2"]["holders"] if one["held"]])
    found = history(queue)[1]["2"]
    assert [(one["outside"], one["user"]) for one in found["holders"]] == [(True, queue.ask("ping")["user"])]
    assert found["held"] == 0


def test_a_broker_that_is_killed_costs_nothing_of_what_was_held(queue: QueueSite) -> None:
    job = queue.shell("sleep 600", label="sweep")
    queue.until(job, "running")
    assert queue.run("get", "--devices", "3", "--for", "1h").returncode == 0
    for _ in range(2):
        queue.restart()
        held_whole(queue, "3")
    device = queue.job(job)["devices"][0]
    held_whole(queue, device)
    assert {one["label"] for one in history(queue)[1][device]["holders"]} == {"sweep"}


def test_a_broker_that_was_stopped_has_written_all(queue: QueueSite) -> None:
    assert queue.run("get", "--devices", "3", "--for", "1h").returncode == 0
    wait_until(lambda: history(queue)[1]["3"]["held"] > 0)
    queue.run("release", "--mine")
    before = history(queue)[1]["3"]["held"]
    stop(queue)
    queue.ensure_broker()
    assert history(queue)[1]["3"]["held"] == pytest.approx(before)


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_damaged_history_stops_nobody(queue: QueueSite, size: int) -> None:
    assert queue.run("get", "--devices", "0", "--for", "1h").returncode == 0
    stop(queue)
    Path(queue.directory, "history.db").write_bytes(os.urandom(size))
    queue.ensure_broker()
    held_whole(queue, "0")
    assert "damaged" in queue.log()
    lost = queue.json("usage")["note"]
    assert "history.db.damaged" in lost
    assert lost in queue.run("usage").stdout
    assert lost in queue.run("usage", "--csv").stderr
    found = [one for one in queue.json("doctor")["findings"] if one["subject"] == "history"]
    assert [one["level"] for one in found] == ["warning"]
    os.unlink(Path(queue.directory, "history.db.damaged"))
    assert queue.json("usage")["note"] is None


def test_a_full_disk_costs_nothing_of_what_was_held(small: QueueSite) -> None:
    assert small.run("get", "--devices", "0", "--for", "1h").returncode == 0
    filler = Path(small.directory, "filler")
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], capture_output=True)  # until there is no room
    with pytest.raises(StateError):
        small.submit("true", hold=True)
    stop(small)
    filler.unlink()
    small.ensure_broker()
    held_whole(small, "0")


@pytest.mark.usefixtures("inside")
def test_python_asks_for_steps_and_moments_as_events_does(queue: QueueSite) -> None:
    queue.run("get", "--devices", "0", "--for", "1h")
    queue.run("status")
    [row, *_] = wait_until(lambda: gpulease.history(since="2h", step="1h")["rows"])
    assert row["device"] == "0"
    assert gpulease.history(since="2h", until="1h")["rows"] == []
    assert gpulease.history(since="30d")["step"] == 3600
    for wrong in ({"since": "soon"}, {"step": -1}, {"since": "1h", "until": "2h"}):
        with pytest.raises(UsageError):
            gpulease.history(**wrong)


def test_a_history_that_cannot_be_read_is_told_to_who_asks_and_to_nobody_else(queue: QueueSite) -> None:
    stop(queue)
    path = Path(queue.directory, "history.db")
    path.unlink(missing_ok=True)
    path.mkdir()
    queue.ensure_broker()
    done = queue.run("usage")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpulease: The history cannot be read: Is a directory.\n")
    assert queue.run("get", "--devices", "0", "--for", "1h").stdout == "0\n"
    assert queue.ask("status")["broker"]["state_trouble"] is None
    path.rmdir()
    held_whole(queue, "0")
