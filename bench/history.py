"""What the history costs: time on the processor while 8 simulated GPUs are held, bytes on the disk, and time to answer.

python bench/history.py [--span SECONDS] [--rounds N] [--days N]

The first figure is of a broker and its sampler, whole, by the kernel's count of nanoseconds, interleaved: a span with
8 GPUs held, a span with nothing held, again and again. The others are of the history alone, in this process.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import contextlib
import json
import os
import sqlite3
import subprocess
import tempfile
import time

from interleaved import Timings, compile_everything, own_command
from processes import seconds, with_children
from report import Report, Size, bench
from scratch import scratch

from gpulease.broker.core.instructions import AnswerHistory, DevicesSampled, LeaseStarted
from gpulease.broker.edge.history import History
from gpulease.broker.store.history import HistoryFile
from gpulease.model.peer import Account, Peer
from gpulease.model.spans import DAY, KEPT, Activity, DeviceName, Span, SpanHolder, SpanUse, asked
from gpulease.model.values import Device, Lease, Owner

GPUS = 8
SAMPLES = 1800
ROOT = Peer(1, 0, Account("root"))
NOW = 1_800_000_000
DEVICES = tuple(Device(at, f"GPU-{at}", "A100", utilization=40 + at, memory_used=at << 30, power=1) for at in range(8))
PLACES = tuple(DeviceName(device.uuid, device.label, device.name) for device in DEVICES)
OWNER = Owner(1000, "ada", "host", "boot", groups=("users", "lab"))


# -------------------------------------------------------------------- the processor


def measure_broker(span: float, rounds: int) -> Timings:
    """Percent of a core with all GPUs held, and with none."""
    with scratch() as folder:
        environ = {**os.environ, "GPULEASE_DIR": str(folder), "GPULEASE_SIMULATE": str(GPUS)}

        def gpulease(*words: str) -> str:
            done = subprocess.run([own_command(), *words], env=environ, capture_output=True, text=True, check=True)
            return done.stdout

        gpulease("set", "neighbours.safe-gpu", "off")  # for whose users held devices are looked at each second
        pid = json.loads(gpulease("status", "--json"))["broker"]["pid"]
        found: Timings = {"held": [], "free": []}
        for _ in range(rounds):
            for state, words in (("held", ("get", "-n", str(GPUS), "--for", "1h")), ("free", ("release", "--mine"))):
                gpulease(*words)
                time.sleep(min(1.0, span))
                before = seconds(with_children(pid))
                time.sleep(span)
                found[state].append((seconds(with_children(pid)) - before) / span * 100)
    return found


def measure_own(folder: str) -> float:
    """Percent of a core of the history alone where a sample comes each second, as while jobs run."""
    history = History(f"{folder}/own.db", False, print)
    for device in DEVICES:
        lease = Lease(f"L{device.index}", "get", (device.uuid,), OWNER, NOW)
        history.lease_started(LeaseStarted(NOW, lease, (PLACES[device.index],), None, 0.0))
    begin = time.process_time()
    for second in range(SAMPLES):
        history.devices_sampled(DevicesSampled(NOW + second, DEVICES, {}))
        if second % 5 == 0:
            history.keep(NOW + second)
    return (time.process_time() - begin) / SAMPLES * 100


# -------------------------------------------------------------------- the disk, and answers


def fill(path: str, moments: list[int]) -> int:
    """A file as it is when each GPU was held through all of them, by two users in each hour; its bytes."""
    file = HistoryFile(path)
    seen = Activity(60_000, 60_000, 31_234, 4_321, 40_000, 61_000, 312_345)
    users = [SpanHolder(f"user{at}", ("users", f"lab{at % 4}"), f"sweep-{at}") for at in range(24)]
    for first in range(0, len(moments), 100):
        some = moments[first : first + 100]
        minutes = {at: {p.uuid: Span(seen, _uses(users, at, p)) for p in PLACES} for at in some}
        file.write(minutes, {}, PLACES, 0)
        file.forget(some[-1])
    file.forget(NOW)
    file.close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("VACUUM")  # what was forgotten meanwhile is room for what comes
    return os.path.getsize(path)


def all_moments(days: int) -> list[int]:
    moments = [at for step, younger in ((3600, 14), (600, 2), (60, 0)) for at in _moments(step, younger)]
    return [at for at in moments if at >= NOW - days * DAY]


def _moments(step: int, younger: int) -> range:
    """As far back as this step is the shortest that is kept; a minute of each stands for the whole."""
    return range(NOW - KEPT[step], NOW - younger * DAY, step)


def _uses(users: list[SpanHolder], at: int, place: DeviceName) -> dict[SpanHolder, SpanUse]:
    first = (at // 3600 + int(place.label)) % len(users)
    return {
        users[first]: SpanUse(34_567, 34_567, 20_123, 2_345),
        users[first - 1]: SpanUse(25_433, 25_433, 11_111, 1_976),
    }


def slowest(path: str) -> tuple[float, float]:
    """Milliseconds of the longest piece of an answer, on the processor; and of a day in hours, until it is there."""
    history = History(path, False, print)
    longest, whole = 0.0, 0.0
    for since, step in ((NOW - 90 * DAY, 3600), (NOW - 2 * DAY, 60), (NOW - 14 * DAY, 86400), (NOW - DAY, 3600)):
        start: float | None = since
        begin = time.perf_counter()
        while start is not None:
            piece = time.process_time()
            reply = history.answer(AnswerHistory(ROOT, "history", NOW, asked(start, NOW, step, NOW)))
            longest = max(longest, time.process_time() - piece)
            start = reply["next"]
        whole = time.perf_counter() - begin
    return longest * 1000, whole * 1000


def main(report: Report, span: float, rounds: int, days: int) -> None:
    compile_everything(report.quick)
    found = measure_broker(span, rounds)
    for state, values in found.items():
        target = 0.2 if state == "held" else None
        report.value(f"broker with all of {GPUS} GPUs {state}, processor", values, "% of a core", target)
    with tempfile.TemporaryDirectory() as folder:
        report.value("history alone, with a sample each second, processor", [measure_own(folder)], "% of a core", 0.2)
        hours = list(_moments(3600, 15))[-24 * days :]
        year = fill(f"{folder}/hours.db", hours) / len(hours) * 24 * 365 / GPUS
        report.value("a GPU-year in hours on disk", [year / 1000], "kB")
        size = fill(f"{folder}/full.db", all_moments(days))
        report.value(f"{days} days of a GPU on disk", [size / GPUS / 1000], "kB", 1000)
        longest, day = slowest(f"{folder}/full.db")
        report.value("longest piece of an answer, processor", [longest], "ms", 20)
        report.value("a day in hours, answered", [day], "ms")


if __name__ == "__main__":
    bench(
        __doc__,
        main,
        span=Size(8.0, 0.3, "seconds of each measurement"),
        rounds=Size(3, 1, "rounds"),
        days=Size(90, 1, "days of the history on disk"),
    )
