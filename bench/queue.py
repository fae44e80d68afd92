"""The queue beside task-spooler, simple_gpu_scheduler and xargs; one job from the shell; a hundred thousand at once.

    python bench/queue.py [--rounds N] [--jobs N] [--peer SCHEDULER]

Many times /bin/true, two at once, on two simulated GPUs. task-spooler is left out where it is not installed (Debian:
apt-get install task-spooler), and simple_gpu_scheduler where --peer does not name its command.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from interleaved import command, compile_everything, interleave, own_command, show
from processes import resident
from report import Report, Size, bench
from scratch import scratch

from gpulease.client.connection import Client, acquire

if TYPE_CHECKING:
    from gpulease.client.engines import BackendConnection

FEW = 100

numbers = itertools.count()


def shell(script: str) -> None:
    subprocess.run(["sh", "-ec", script], stdout=subprocess.DEVNULL, check=True)


class Sides:
    """Each runs all jobs to their end."""

    def __init__(self, folder: Path, jobs: int, peer: str) -> None:
        self.gpulease = own_command()
        self.jobs = jobs
        self.file = folder / "jobs.txt"
        self.file.write_text("/bin/true\n" * jobs)
        self.folder, self.peer = folder, peer

    def batch(self) -> None:
        label = f"batch{next(numbers)}"
        shell(f"{self.gpulease} add --label {label} --file {self.file}; {self.gpulease} wait -q --label {label}")

    def loop(self) -> None:
        label = f"loop{next(numbers)}"
        add = f"{self.gpulease} add --label {label} -- /bin/true"
        shell(f"for i in $(seq {self.jobs}); do {add}; done; {self.gpulease} wait -q --label {label}")

    def spooler(self) -> None:
        os.environ["TS_SOCKET"] = str(self.folder / f"tsp{next(numbers)}")
        os.environ["TMPDIR"] = str(self.folder)
        done = "while tsp | grep -q -e running -e queued; do :; done"
        shell(f"tsp -S 2; for i in $(seq {self.jobs}); do tsp /bin/true; done; tsp -w; {done}; tsp -K")
        del os.environ["TMPDIR"]

    def scheduler(self) -> None:
        shell(f"{self.peer} --gpus 0 1 < {self.file}")

    def shells(self) -> None:
        """What stands above each job, started by a bare loop: what is left is the broker's."""
        from gpulease.broker.agent import files, runner

        logs = self.folder / f"logs{next(numbers)}"
        logs.mkdir()
        for number in range(self.jobs):
            if number >= 2:
                os.wait()
            log = str(logs / str(number))
            files.prepare_note(f"{log}.note")
            output = runner.open_log(log)
            runner.start_shell(runner.words_for(f"{log}.note", str(logs), ["/bin/true"]), dict(os.environ), output)
            os.close(output)
        for _ in range(min(2, self.jobs)):
            os.wait()

    def xargs(self) -> None:
        shell(f"seq {self.jobs} | xargs -P2 -n1 /bin/true")


def short_jobs(report: Report, folder: Path, rounds: int, jobs: int, peer: str) -> None:
    sides = Sides(folder, jobs, peer)
    things: dict[str, Callable[[], object]] = {
        "xargs -P2": sides.xargs,
        "our shells, no broker": sides.shells,
        "gpulease, add --file": sides.batch,
    }
    if shutil.which("tsp"):
        things["task-spooler"] = sides.spooler
    else:
        report.leave_out("task-spooler")
    if peer:
        things["simple_gpu_scheduler"] = sides.scheduler
    timings = interleave(things, rounds)
    print(f"{jobs} x /bin/true, two at once")
    show(timings, "xargs -P2")
    begin = time.perf_counter()
    sides.loop()
    print(f"gpulease, add in a loop: {time.perf_counter() - begin:.2f} s")
    what = f"{jobs} times /bin/true, two at once: add --file and wait"
    report.ratio(f"{what} / xargs -P2", timings, "gpulease, add --file", ["xargs -P2"], 2.2)
    if "task-spooler" in timings:
        report.ratio(f"{what} / task-spooler", timings, "gpulease, add --file", ["task-spooler"], 1.0)


def one_add(report: Report, rounds: int) -> None:
    things = {
        "python -c pass": command([sys.executable, "-c", "pass"]),
        "gpulease add": command([own_command(), "add", "--hold", "--", "/bin/true"]),
    }
    timings = interleave(things, rounds)
    print("\none job from the shell")
    show(timings, "python -c pass")
    report.ratio("gpulease add / python -c pass", timings, "gpulease add", ["python -c pass"], 3.0)


class Place:
    """A broker of its own, with jobs that want all three GPUs, of which one is held: all of them wait."""

    def __init__(self, folder: Path, name: str) -> None:
        os.environ.update(GPULEASE_DIR=str(folder / name), GPULEASE_SIMULATE="3")
        self.environ = dict(os.environ)
        self.file = folder / f"{name}.txt"
        self._run("get", "--for", "1h")
        self.client: BackendConnection = Client()
        self.pid = int(self.client.ask("ping")["pid"])

    def _run(self, *words: str) -> None:
        subprocess.run([own_command(), *words], env=self.environ, stdout=subprocess.DEVNULL, check=True)

    def queue(self, jobs: int) -> None:
        self.file.write_text("python train.py --lr 0.1 --seed 1234\n" * jobs)
        self._run("add", "-n", "3", "--force", "--file", str(self.file))

    def ls(self) -> None:
        self._run("ls")

    def add(self) -> None:
        self._run("add", "-n", "3", "--", "/bin/true")

    def release(self) -> None:
        """Take a GPU and give it back, which is planned for all that wait."""
        granted, self.client = acquire({"request": {}, "kind": "acquire", "wait": None}, None, self.client)
        self.client.ask("release", what=[granted["id"]])


def long_queue(report: Report, folder: Path, many: int, trials: int) -> None:
    short, long = Place(folder, "short"), Place(folder, "long")
    short.queue(FEW)
    long.queue(FEW)
    before = resident(long.pid)
    begin = time.perf_counter()
    long.queue(many)
    seconds = time.perf_counter() - begin
    print(f"\n{many:,} jobs in one batch")
    report.value(f"add --file of {many:,} jobs", [seconds], "s", 10.0)
    report.value("memory of the broker for a job", [(resident(long.pid) - before) * (1 << 20) / many], "bytes", 1024)
    for name in ("ls", "add", "release"):
        words = [f"{name}, {FEW} queued", f"{name}, {many:,} queued"]
        timings = interleave(dict(zip(words, (getattr(short, name), getattr(long, name)), strict=True)), trials)
        show(timings, words[0])
        report.ratio(f"{name} with {many:,} queued / with {FEW}", timings, words[1], words[:1], 2.0)


def main(report: Report, rounds: int, jobs: int, many: int, trials: int, peer: str) -> None:
    compile_everything(report.quick)
    with scratch() as folder:
        os.environ.update(GPULEASE_DIR=str(folder / "broker"), GPULEASE_SIMULATE="2")
        short_jobs(report, folder, rounds, jobs, peer)
        one_add(report, trials)
        shell(f"{own_command()} stop")
        long_queue(report, folder, many, trials)


if __name__ == "__main__":
    bench(
        __doc__,
        main,
        rounds=Size(3, 1, "rounds of short jobs"),
        jobs=Size(500, 5, "short jobs"),
        many=Size(100_000, 500, "jobs of the long queue"),
        trials=Size(15, 1, "rounds of single commands"),
        peer=Size("", "", "the command simple_gpu_scheduler, in a venv with setuptools<81"),
    )
