"""The picture of the page in the docs: a simulated machine with two users, in a real browser.

    python tools/page_picture.py [PATH]      as root, with chromium and chromedriver

The last day is written into the history beforehand, since nobody waits a day for a picture; all else happens.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import os
import random
import time

from support.accounts import BROKER, SystemSite
from support.browser import Browser
from support.site import MARK
from support.users import shared_cache
from support.waiting import PATIENCE, wait_until
from support.web_site import Web

from gpulease.broker.store.history import HistoryFile
from gpulease.model.spans import Activity, DeviceName, Span, SpanHolder, SpanUse

PICTURE = ROOT / "docs" / "pictures" / "page.png"
WIDTH, HEIGHT = 1280, 1330
STEP = 600  # seconds
DAY = 86400
USERS = ("alice", "bob", "carol", "dave")
IDLE = 5  # the GPU that is held and does nothing
# user -> the jobs that run, each with its GPU and memory; then those that wait, with how many GPUs
RUNNING = {"alice": (("resnet50 lr=0.1", 0, "62G"), ("resnet50 lr=0.01", 1, "61G"), ("resnet50 lr=1e-3", 4, "62G")),
           "bob": (("llama finetune", 2, "74G"), ("notebook", IDLE, "9G"))}  # fmt: skip
WAITING = {"alice": (("evaluate all", 4), ("resnet50 lr=1e-4", 3)), "bob": (("pretrain", 8),)}
BUSY = {0: 97, 1: 95, 2: 88, 4: 99, 6: 71}


class Machine(SystemSite):
    """Eight GPUs and a system broker, whose users are those of the tests."""

    def queue(self, user: str, name: str, command: str, **request: object) -> None:
        environ = {**self.environ, "XDG_CACHE_HOME": shared_cache(self), MARK: str(self.folder)}
        options = {"cwd": "/tmp", "environment": environ, "name": name}
        commands = [["sh", "-c", command]]
        reply = self.told(self.accounts.users[user], "add", request=request, options=options, commands=commands)
        assert "ok" in reply, reply

    def use(self, memory: str) -> str:
        return f"exec {self.python_of_all} -m gpulease simulate use --memory {memory} -- sleep 600"


def write_history(machine: Machine, devices: list[dict[str, str]]) -> None:
    """A day of four users, some of whom held a GPU and did nothing."""
    chance = random.Random(7)
    now = int(time.time()) // STEP * STEP
    rows: dict[int, dict[str, Span]] = {}
    for device in devices:
        begin = now - DAY
        while begin < now:
            end = begin + chance.randrange(1, 9) * 3600
            user, idle = chance.choice((*USERS, None)), chance.random() < 0.2
            for moment in range(begin, min(end, now), STEP) if user else ():
                rows.setdefault(moment, {})[device["uuid"]] = span(
                    str(user), 0.0 if idle else chance.uniform(0.6, 0.98)
                )
            begin = end
    rows.setdefault(now, {})[devices[IDLE]["uuid"]] = span("bob", 0.0)
    path = f"{machine.directory}/state/history.db"
    file = HistoryFile(path)
    file.write(rows, {}, [DeviceName(one["uuid"], one["label"], one["name"]) for one in devices], now * 1000)
    file.close()
    os.chown(path, BROKER, BROKER)


def span(user: str, share: float) -> Span:
    whole = STEP * 1000
    busy, idle = int(share * whole), 0 if share else whole
    use = SpanUse(whole, whole, busy, idle)
    return Span(Activity(whole, whole, busy, idle, 40_000, 60_000, 250_000), {SpanHolder(user): use})


def fill(machine: Machine) -> None:
    for user, jobs in RUNNING.items():
        for name, gpu, memory in jobs:
            machine.queue(user, name, machine.use(memory), devices=[str(gpu)], duration=7200.0)
    wait_until(lambda: len(machine.status()["leases"]) == sum(map(len, RUNNING.values())))
    machine.set(*(f"gpu.{gpu}.utilization={busy}" for gpu, busy in BUSY.items()))
    machine.set(*(f"gpu.{gpu}.power={1000 * (150 + 2 * busy)}" for gpu, busy in BUSY.items()))
    for user, waiting in WAITING.items():
        for name, gpus in waiting:
            machine.queue(user, name, "true", gpus=gpus, duration=3600.0)


def main(path: Path) -> None:
    machine = Machine(8)
    browser = Browser()
    try:
        broker = machine.start_broker()
        devices = machine.status()["devices"]
        broker.terminate()
        broker.wait(PATIENCE)
        write_history(machine, devices)
        machine.start_broker()
        machine.ask("set", name="usage-shown", value="all")
        machine.start("simulate", "use", "6", "--memory", "18G", "--", "sleep", "600")
        wait_until(lambda: machine.status()["devices"][6]["state"] == "outside")
        fill(machine)
        words = machine.gpulease("web", "--json", "--port", "0", "--actions")
        web = Web(machine.popen(words, cwd="/"))
        browser.size(WIDTH, HEIGHT)
        browser.open(web.address)
        browser.shows("3 waiting", "1 idle", "1 outside")
        path.parent.mkdir(exist_ok=True)
        browser.driver.save_screenshot(str(path))
    finally:
        browser.close()
        machine.close()
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
