"""Whoever came first is served first, exactly once, through whatever happens to the broker."""

from __future__ import annotations

import random
import resource
import threading
from collections.abc import Iterator

import pytest
from support.raw import Raw
from support.site import Site
from support.waiting import wait_until

CROWD = 500
KILLS = 12  # at most: on a slow machine a broker may need longer for one grant than the next kill lets it


@pytest.fixture(name="site")
def one_gpu() -> Iterator[Site]:
    site = Site(1)
    try:
        yield site
        assert "Traceback" not in site.log(), site.log()
    finally:
        site.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    """For this test alone, where the process may have that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2048, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def waiting_clients(site: Site, count: int) -> list[Raw]:
    clients = []
    for number in range(count):
        client = site.raw()
        client.acquire(id=f"client-{number}")
        assert client.receive()["waiting"]["place"] == number + 1
        clients.append(client)
    return clients


@pytest.mark.usefixtures("many_files")
def test_500_waiting_clients_are_served_in_order_each_exactly_once(site: Site) -> None:
    site.ensure_broker()
    first = site.raw()
    first.acquire()
    held = first.granted()["id"]
    clients = waiting_clients(site, CROWD)
    assert first.ask("status")["ok"]["line_length"] == CROWD
    releasing, ids = first, [held]
    for client in clients:
        assert releasing.ask("release", what=[held])["ok"]["released"][0]["id"] == held
        held, releasing = client.granted()["id"], client
        ids.append(held)
    assert len(set(ids)) == CROWD + 1
    assert releasing.ask("release", what=[held])["ok"]["released"]
    shown = site.status()
    assert (shown["leases"], shown["line"], shown["devices"][0]["state"]) == ([], [], "free")
    events = site.json("events", "--since", "1d")["events"]
    assert [event["id"] for event in events if event["what"] == "granted"] == ids
    for client in clients:
        client.close()


def test_the_line_keeps_its_order_through_killed_brokers(site: Site) -> None:
    """Threads of one process wait through `client.acquire`, as every client does; each writes down its turn."""
    served: list[int] = []
    script = """
import os, sys, threading
from gpulease.client import connection
def fail(told):
    sys.excepthook(told.exc_type, told.exc_value, told.exc_traceback)
    os._exit(3)
threading.excepthook = fail
count, served, ready = 20, [], threading.Event()
def one(number):
    fields = {"request": {"gpus": 1}, "kind": "acquire", "wait": None, "note": str(number)}
    granted, client = connection.acquire(fields, lambda told: ready.set())
    print(number, flush=True)
    while True:
        try:
            client.ask("release", what=[granted["id"]]); break
        except ConnectionError:
            client = connection.again(client)
        except connection.by_code("not-found", "", None, {}).__class__:
            break
threads = []
for number in range(count):
    ready.clear()
    threads.append(threading.Thread(target=one, args=(number,)))
    threads[-1].start()
    ready.wait(30)
print("all wait", flush=True)
for thread in threads:
    thread.join()
"""
    holder = site.holder()
    process = site.python(script)
    assert process.stdout is not None
    assert process.stdout.readline() == "all wait\n"
    site.kill_broker()
    wait_until(lambda: len(site.status()["line"]) == 20)
    stop, dice = threading.Event(), random.Random(12)

    def kill() -> None:
        kills = 0
        while kills < KILLS and not stop.wait(dice.random() * 0.2):
            kills += site.kill_broker()

    killer = threading.Thread(target=kill)
    holder.kill()
    killer.start()
    try:
        served = [int(process.stdout.readline()) for _ in range(20)]
    finally:
        stop.set()
        killer.join()
    assert process.wait(60) == 0
    assert served == list(range(20))
    wait_until(lambda: site.status()["devices"][0]["state"] == "free")
    assert site.status()["leases"] == []


def test_a_smaller_priority_goes_first_and_the_rest_in_order(site: Site) -> None:
    site.ensure_broker()
    first = site.raw()
    first.acquire()
    held = first.granted()["id"]
    clients = {}
    for name, priority in (("a", 5), ("b", 5), ("urgent", 1), ("c", 5)):
        clients[name] = site.raw()
        clients[name].send("acquire", request={"gpus": 1, "priority": priority}, kind="acquire")
        clients[name].receive()
    for name in ("urgent", "a", "b", "c"):
        first.ask("release", what=[held])
        held = clients[name].granted()["id"]


def test_a_deadline_that_passed_while_no_broker_ran_is_kept(site: Site) -> None:
    holder = site.holder()
    process = site.start("run", "--wait", "2s", "--", "true")
    with site.raw() as looking:  # which is quick: it waits for a short while only
        wait_until(lambda: looking.ask("status")["ok"]["line_length"])
    site.kill_broker()
    assert process.wait(30) == 75
    assert site.status()["line"] == []
    holder.kill()
