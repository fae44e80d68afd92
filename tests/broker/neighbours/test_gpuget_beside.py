"""Users of GPU.py and ours on the same GPUs: a real broker, a real Redis, and what GPU.py does to its keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import gpuget_user
from support.redis_server import RedisServer, redis_server  # noqa: F401
from support.site import Site, devices_of
from support.waiting import wait_until


@pytest.fixture
def client(server: RedisServer) -> Any:
    client = server.client()
    gpuget_user.manage(client, [0, 1, 2, 3])
    return client


@pytest.fixture
def site(server: RedisServer, client: Any) -> Iterator[Site]:
    site = Site()
    configure(site, server.url)
    try:
        site.ensure_broker()
        yield site
        assert "Traceback" not in site.log(), site.log()
    finally:
        site.close()


def configure(site: Site, url: str) -> None:
    Path(site.directory).mkdir(mode=0o700, exist_ok=True)
    Path(site.directory, "config.toml").write_text(f'neighbours.gpuget = "{url}"\n')


def ours(client: Any) -> list[int]:
    return sorted(int(gpu) for key in client.keys("GPU_GPULEASE:*[^s]") for gpu in client.lrange(key, 0, -1))


def blocked(client: Any) -> int:
    return int(client.info("clients")["blocked_clients"])


def test_a_granted_gpu_is_not_idle_to_gpuget_until_the_lease_ends(site: Site, client: Any) -> None:
    holder = site.holder("-n", "2")
    assert (gpuget_user.idle(client), ours(client)) == ([2, 3], [0, 1])
    gpuget_user.purge(client)
    assert gpuget_user.idle(client) == [2, 3]
    holder.kill()
    wait_until(lambda: gpuget_user.idle(client) == [0, 1, 2, 3])
    assert ours(client) == []


def test_what_gpu_py_holds_is_shown_and_not_granted(site: Site, client: Any) -> None:
    taken = [gpuget_user.get(client, os.getpid()) for _ in range(3)]
    assert taken == [0, 1, 2]
    wait_until(lambda: devices_of(site, "outside") == [0, 1, 2])
    refused = site.run("run", "-n", "2", "--no-wait", "--", "true")
    assert refused.returncode == 75
    assert site.run("run", "--", "sh", "-c", "echo $GPULEASE_DEVICES$CUDA_VISIBLE_DEVICES").returncode == 0
    assert f"gpuget, process {os.getpid()}" in site.run("status").stdout.replace("\n", " ") + str(site.status())


def test_a_leased_gpu_that_gpu_py_took_too_is_shown(site: Site, client: Any) -> None:
    """As after `--release` of a GPU that is not theirs, or `--force`, and a `--get` that was quicker."""
    site.holder("--devices", "0")
    wait_until(lambda: 0 not in gpuget_user.idle(client))
    client.hset("GPU_GPU0", "PID", os.getpid())
    note = f"held by gpuget, process {os.getpid()}"
    wait_until(lambda: note in (site.status()["devices"][0]["note"] or ""))
    assert site.status()["devices"][0]["state"] == "leased"
    assert note in site.run("status").stdout
    assert f"leased, and {note}" in " ".join(site.run("doctor").stdout.split())

    def recorded() -> list[str]:
        return [one["why"] for one in site.json("events")["events"] if one["what"] == "outside"]

    assert wait_until(recorded) == ["it is leased, and held by gpuget too"]


def test_both_lines_are_served_in_the_order_in_which_they_came(site: Site, client: Any, server: RedisServer) -> None:
    for _ in range(4):
        gpuget_user.get(client, os.getpid())
    wait_until(lambda: len(devices_of(site, "outside")) == 4)
    waiting = site.start("run", "--", "sh", "-c", "echo mine; read end")
    wait_until(lambda: blocked(client) == 1)
    theirs = site.popen(["redis-cli", "-s", str(server.path), "BRPOP", "GPU_IDLE", "0"])
    wait_until(lambda: blocked(client) == 2)
    gpuget_user.release(client, 2, os.getpid())
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "mine\n"
    assert ours(client) == [2]
    again = site.start("run", "--", "echo", "again")  # behind theirs
    wait_until(lambda: blocked(client) == 2)
    waiting.communicate("\n")
    assert theirs.communicate(timeout=30)[0].split() == ["GPU_IDLE", "2"]
    assert again.poll() is None
    gpuget_user.release(client, 0, os.getpid())
    assert again.communicate(timeout=30)[0] == "again\n"
    wait_until(lambda: gpuget_user.idle(client) == [0])


def test_a_wide_request_gathers_what_comes(site: Site, client: Any) -> None:
    for _ in range(4):
        gpuget_user.get(client, os.getpid())
    wait_until(lambda: len(devices_of(site, "outside")) == 4)
    waiting = site.start("run", "-n", "2", "--", "echo", "mine")
    wait_until(lambda: blocked(client) == 2)
    gpuget_user.release(client, 1, os.getpid())
    wait_until(lambda: ours(client) == [1])
    gpuget_user.release(client, 3, os.getpid())
    assert waiting.communicate(timeout=30)[0] == "mine\n"
    wait_until(lambda: gpuget_user.idle(client) == [1, 3])


def test_a_broker_that_is_killed_gives_nothing_away_and_loses_nothing(site: Site, client: Any) -> None:
    site.holder()
    other = site.holder()
    assert site.kill_broker()
    other.kill()  # nobody notices
    other.wait()
    assert ours(client) == [0, 1]
    site.ensure_broker()
    wait_until(lambda: (gpuget_user.idle(client), ours(client)) == ([1, 2, 3], [0]))


def test_while_redis_is_away_nothing_that_it_manages_is_granted(site: Site, server: RedisServer) -> None:
    site.holder()
    server.kill()
    wait_until(lambda: len(devices_of(site, "outside")) >= 3)
    refused = site.run("run", "--no-wait", "--", "true")
    assert refused.returncode == 75
    server.start()
    gpuget_user.manage(server.client(), [0, 1, 2, 3])
    assert site.run("run", "--", "true").returncode == 0
    wait_until(lambda: (gpuget_user.idle(server.client()), ours(server.client())) == ([1, 2, 3], [0]))


def test_gpuget_gets_no_gpu_back_on_which_somebody_still_computes(site: Site, client: Any) -> None:
    holder = site.holder()
    with site.occupied("0", "1G"):
        holder.kill()
        wait_until(lambda: devices_of(site, "draining") == [0])
        assert (gpuget_user.idle(client), ours(client)) == ([1, 2, 3], [0])
    wait_until(lambda: gpuget_user.idle(client) == [0, 1, 2, 3])


def test_a_gpu_that_gpuget_does_not_manage_is_granted_without_it(site: Site, client: Any) -> None:
    gpuget_user.manage(client, [2, 3], force=True)
    site.holder("-n", "3")
    assert (len(gpuget_user.idle(client)), len(ours(client))) == (1, 1)


def test_without_the_setting_gpuget_gets_everything_back(site: Site, client: Any) -> None:
    site.holder()
    assert ours(client) == [0]
    assert site.run("set", "neighbours.gpuget", "none").returncode == 0
    wait_until(lambda: gpuget_user.idle(client) == [0, 1, 2, 3])
    assert site.run("run", "-n", "3", "--", "true").returncode == 0
    assert site.run("set", "neighbours.gpuget", "default").returncode == 0
    wait_until(lambda: ours(client) == [0])


def test_another_way_to_the_same_redis_hands_no_leased_gpu_to_gpuget(
    site: Site, client: Any, server: RedisServer
) -> None:
    site.holder()
    theirs = [gpuget_user.get(client, os.getpid()) for _ in range(3)]
    waiting = site.popen(["redis-cli", "-s", str(server.path), "BRPOP", "GPU_IDLE", "0"])
    wait_until(lambda: blocked(client) == 1)
    turn = turns(client)
    assert site.run("set", "neighbours.gpuget", f"{server.url}&prefix=GPU").returncode == 0
    wait_until(lambda: turns(client) != turn)
    assert site.run("run", "--no-wait", "--", "true").returncode == 75  # the new one answers
    assert (sorted(map(str, theirs)), ours(client), waiting.poll()) == (["1", "2", "3"], [0], None)
    gpuget_user.release(client, 1, os.getpid())
    assert waiting.communicate(timeout=30)[0].split() == ["GPU_IDLE", "1"]


def test_a_brokers_list_is_named_by_a_word_in_its_state(site: Site, client: Any) -> None:
    """Containers are all alike, and hosts are renamed."""
    site.holder()
    (before,) = client.keys("GPU_GPULEASE:*[^s]")
    assert site.directory not in before
    assert os.uname().nodename not in before
    assert site.kill_broker()
    site.ensure_broker()
    assert site.run("run", "--", "true").returncode == 0
    assert client.keys("GPU_GPULEASE:*[^s]") == [before]


def turns(client: Any) -> list[str]:
    return [client.hget(key, "turn") for key in client.keys("GPU_GPULEASE:*:notes")]


def test_no_password_of_the_address_is_shown_or_logged(site: Site, server: RedisServer) -> None:
    assert site.run("set", "neighbours.gpuget", f"unix://:hush-hush@{server.path}?db=0").returncode == 0
    refused = site.run("run", "--no-wait", "--", "true")
    assert refused.returncode == 75
    assert "assword" in site.log()
    shown = "".join(site.run(*words).stdout for words in (["status"], ["status", "--json"], ["doctor"], ["events"]))
    assert "hush" not in shown + refused.stderr + site.log()
    wrong = site.run("set", "neighbours.gpuget", "redis://:hush-hush/x@host")
    assert wrong.returncode == 2
    assert "hush" not in wrong.stderr + site.log()
