"""What the history costs: time on the processor while 8 simulated GPUs are held, bytes on the disk, and time to answer.

python bench/history.py [SECONDS]

The first figure is of a broker and its sampler, whole, by the kernel's count of nanoseconds, interleaved: a span with
8 GPUs held, a span with nothing held, again and again. The others are of the history alone, in this process.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))

import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import tempfile
import time

from interleaved import own_command, to_reach

from gpulease.broker.history import History
from gpulease.broker.instructions import Began, Observed
from gpulease.model import Device, Lease, Owner
from gpulease.spans import DAY, KEPT, Activity, DeviceName, Span, SpanHolder, SpanUse, asked
from gpulease.stores.history_file import HistoryFile

GPUS = 8
ROUNDS = 3
NOW = 1_800_000_000
DEVICES = tuple(Device(at, f"GPU-{at}", "A100", utilization=40 + at, memory_used=at << 30, power=1) for at in range(8))
PLACES = tuple(DeviceName(device.uuid, device.label, device.name) for device in DEVICES)
OWNER = Owner(1000, "ada", "host", "boot", groups=("users", "lab"))


# -------------------------------------------------------------------- the processor


def on_processor(pids: list[int]) -> float:
    """Seconds, of all of them."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def measure_broker(span: float) -> tuple[float, float]:
    """Percent of a core with all GPUs held, and with none."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "GPULEASE_DIR": folder, "GPULEASE_SIMULATE": str(GPUS)}

        def gpulease(*words: str) -> str:
            done = subprocess.run([own_command(), *words], env=environ, capture_output=True, text=True, check=True)
            return done.stdout

        gpulease("set", "neighbours.safe-gpu", "off")  # for whose users held devices are looked at each second
        pid = json.loads(gpulease("status", "--json"))["broker"]["pid"]
        found: dict[str, list[float]] = {"held": [], "free": []}
        for _ in range(ROUNDS):
            for state, words in (("held", ("get", "-n", str(GPUS), "--for", "1h")), ("free", ("release", "--mine"))):
                gpulease(*words)
                time.sleep(1)
                before = on_processor(family(pid))
                time.sleep(span)
                found[state].append((on_processor(family(pid)) - before) / span * 100)
        gpulease("stop")
    return statistics.median(found["held"]), statistics.median(found["free"])


def measure_own(folder: str) -> float:
    """Percent of a core of the history alone where a sample comes each second, as while jobs run."""
    history = History(f"{folder}/own.db", False, print)
    for device in DEVICES:
        lease = Lease(f"L{device.index}", "get", (device.uuid,), OWNER, NOW)
        history.began(Began(NOW, lease, (PLACES[device.index],), None, 0.0))
    begin = time.process_time()
    seconds = 1800
    for second in range(seconds):
        history.observed(Observed(NOW + second, DEVICES, {}))
        if second % 5 == 0:
            history.keep(NOW + second)
    return (time.process_time() - begin) / seconds * 100


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


def days_90() -> list[int]:
    return [at for step, younger in ((3600, 14), (600, 2), (60, 0)) for at in _moments(step, younger)]


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
            told = history.history(asked(start, NOW, step, NOW), NOW)
            longest = max(longest, time.process_time() - piece)
            start = told["next"]
        whole = time.perf_counter() - begin
    return longest * 1000, whole * 1000


def main(span: float) -> None:
    held, free = measure_broker(span)
    print(f"a broker with {GPUS} GPUs held: {held:.3f} % of a core; with none held: {free:.3f} %")
    to_reach("of a core with 8 GPUs held, %", held, 0.2)
    with tempfile.TemporaryDirectory() as folder:
        own = measure_own(folder)
        print(f"the history alone, with a sample each second: {own:.3f} % of a core")
        to_reach("of a core for the history alone, %", own, 0.2)
        hours = list(_moments(3600, 15))
        year = fill(f"{folder}/hours.db", hours) / len(hours) * 24 * 365 / GPUS
        print(f"a GPU-year in hours: {year / 1000:.0f} kB")
        size = fill(f"{folder}/full.db", days_90())
        print(f"90 days of {GPUS} GPUs: {size / 1e6:.1f} MB, {size / GPUS / 1000:.0f} kB a GPU")
        to_reach("90 days of a GPU, kB", size / GPUS / 1000, 1000)
        longest, day = slowest(f"{folder}/full.db")
        print(f"the longest piece of an answer {longest:.1f} ms of the processor; a day in hours {day:.1f} ms")
        to_reach("longest piece of an answer, ms", longest, 20)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
