"""Limits of users and groups: what can never be met is refused at once, what is only reached now waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.me import GROUP, USER
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

from gpulease.errors import GpuleaseError, NotPermitted, TooMuch
from gpulease.system import identity


def limit(queue: QueueSite, text: str) -> None:
    queue.ask("set", name="limits", value=text)


@pytest.mark.parametrize("words", ["get -n 3", "run -n 3 -- true", "add -n 3 -- true", "get -n 3 --no-wait"])
def test_what_a_limit_never_allows_is_refused_at_once_and_the_limit_is_named(queue: QueueSite, words: str) -> None:
    """It waited for ever, with `The limit of 2 GPUs is reached: 0 in use`."""
    limit(queue, "user:*:gpus=2")
    done = queue.run(*words.split())
    assert done.returncode == 77
    assert f"The limit of 2 GPUs for user {USER} never allows that." in done.stderr
    assert queue.run("get", "-n", "2", "--for", "1h").returncode == 0
    done = queue.run("get", "--no-wait")
    assert (done.returncode, "is reached: 2 in use" in done.stderr) == (75, True)


def test_large_shares_of_every_gpu_are_stopped_by_a_limit_of_one_gpu(queue: QueueSite) -> None:
    limit(queue, "user:*:gpus=1")
    assert queue.run("get", "--mem", "70G", "--for", "1h").returncode == 0
    done = queue.run("get", "--mem", "70G", "--for", "1h", "--no-wait")
    assert done.returncode == 75
    assert f"the limit of 1 GPUs for user {USER} is reached" in done.stderr


def test_a_limit_of_a_priority_that_is_no_number_is_refused_and_everything_goes_on(queue: QueueSite) -> None:
    """It was kept, and then nothing could be planned, after a restart neither."""
    with pytest.raises(GpuleaseError, match="has no number"):
        limit(queue, "priority:*:gpus=1")
    queue.restart()
    assert queue.end(queue.submit("true"))[0]["state"] == "complete"


def test_jobs_that_are_not_over_are_counted_by_user_through_restarts(queue: QueueSite) -> None:
    limit(queue, "user:*:jobs=3")
    ids = queue.submit_all([["true"]] * 2, hold=True)
    with pytest.raises(TooMuch, match="may have 3 unfinished jobs; it has 2, and asks for 2 more"):
        queue.submit_all([["true"]] * 2)
    queue.submit("true", hold=True)
    queue.restart()
    with pytest.raises(TooMuch):
        queue.submit("true")
    queue.act("kill", ids[0])
    queue.submit("true", hold=True)
    with pytest.raises(TooMuch):
        queue.act("retry", ids[0])


def test_a_priority_outside_of_the_range_is_refused_also_by_edit(queue: QueueSite) -> None:
    limit(queue, "user:*:priorities=5-9")
    done = queue.run("add", "--priority", "1", "--", "true")
    assert (done.returncode, "may ask for priority 5 to 9, not 1" in done.stderr) == (77, True)
    assert queue.run("get", "--priority", "4", "--no-wait").returncode == 77
    id = queue.submit("true", request={"priority": 9}, hold=True)
    with pytest.raises(NotPermitted):
        queue.act("edit", id, changes={"request": {"priority": 0}})


def test_the_longest_reservation_bounds_asking_and_renewing(queue: QueueSite) -> None:
    """All GPUs were had for 1000 days."""
    limit(queue, "user:*:longest-reservation=2h")
    done = queue.run("get", "-n", "4", "--for", "1000d")
    assert (done.returncode, f"The longest reservation of user {USER} is 2 h" in done.stderr) == (77, True)
    assert queue.run("get", "--for", "1h").returncode == 0
    assert queue.run("renew", "--for", "3h").returncode == 77
    assert queue.run("renew", "--for", "90m").returncode == 0


def test_the_longest_lease_bounds_what_is_declared_and_ends_the_others(queue: QueueSite) -> None:
    limit(queue, "user:*:longest-lease=1h")
    assert queue.run("run", "--for", "2h", "--", "true").returncode == 77
    assert queue.run("add", "--time-limit", "2h", "--", "true").returncode == 77
    assert queue.job(queue.submit("true", hold=True))["time_limit"] == 3600
    holder = queue.holder()
    (lease,) = queue.status()["leases"]
    assert abs(lease["until"] - lease["since"] - 3600) < 1
    holder.kill()


def test_whoever_is_cut_by_the_longest_lease_is_told_at_the_grant_and_in_events(queue: QueueSite) -> None:
    limit(queue, "user:*:longest-lease=2m")
    reply = "gpulease: this lease ends after 2m00s, by the limit `longest-lease`.\n"
    assert queue.run("run", "--", "true").stderr == reply
    assert queue.run("run", "-q", "--", "true").stderr == ""
    assert queue.run("get", "--for", "1m").stderr == ""
    limit(queue, "user:*:longest-lease=0.1s")
    holder = queue.holder()
    wait_until(lambda: any("longest-lease" in (event.get("why") or "") for event in queue.json("events")["events"]))
    holder.kill()


def test_a_job_without_a_time_limit_gets_the_default(queue: QueueSite) -> None:
    limit(queue, f"user:*:time-limit=4h user:@{GROUP}:time-limit=5h")
    assert queue.job(queue.submit("true", hold=True))["time_limit"] == 5 * 3600
    assert queue.job(queue.submit("true", hold=True, time_limit=60.0))["time_limit"] == 60
    limit(queue, f"user:*:time-limit=4h user:{USER}:time-limit=none")
    assert queue.job(queue.submit("true", hold=True))["time_limit"] is None


def test_limits_in_the_config_file_are_in_force(queue: QueueSite) -> None:
    queue.kill_broker()
    Path(queue.directory, "config.toml").write_text('[limits.user."*"]\ngpus = 1\njobs = 2\n')
    wait_until(lambda: queue.run("get", "-n", "2").returncode == 77)
    assert queue.json("set", "limits")["parameters"][0]["value"] == "user:*:gpus=1:jobs=2"


def test_a_user_or_group_that_is_not_there_is_warned_of_and_accepted(queue: QueueSite) -> None:
    text = "user:nobody-such:gpus=1 user:@no-such:gpus=2 group:neither:gpus=3 user:*:gpus=4 user:4711:gpus=1"
    done = queue.run("set", "limits", text)
    assert done.returncode == 0
    for name in ("user 'nobody-such'", "group 'no-such'", "group 'neither'"):
        assert f"There is no {name} here now" in done.stderr
        assert f"There is no {name}" in " ".join(queue.run("doctor").stdout.split())
    assert done.stderr.count("There is no") == 3
    assert queue.run("set", "grace", "5s").stderr == ""
    queue.run("set", "limits", "default")
    Path(queue.directory, "config.toml").write_text("[limits.group.neither]\ngpus = 1\n")
    queue.restart()
    assert "There is no group 'neither'" in Path(queue.directory, "broker.log").read_text()


def test_ids_of_a_users_namespaces_count_as_that_user(tmp_path: Path) -> None:
    """Each user has thousands of them, and so had as many times the limit of one."""
    ranges = tmp_path / "subuid"
    ranges.write_text("# ours\nada:100000:65536\nwrong\nben:x:1\n")
    assert identity.subordinate(100_000, str(ranges)) == "ada"
    assert identity.subordinate(165_535, str(ranges)) == "ada"
    assert identity.subordinate(165_536, str(ranges)) is None
    assert identity.subordinate(1, str(tmp_path / "none")) is None
