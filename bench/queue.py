"""The queue beside task-spooler, simple_gpu_scheduler and xargs; one job from the shell; a hundred thousand at once.

    python bench/queue.py [ROUNDS] [JOBS]

JOBS times /bin/true, two at once, on two simulated GPUs. task-spooler must be installed (Debian: apt-get install
task-spooler); simple_gpu_scheduler is installed into a temporary venv, and left out where that does not work.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))
if __name__ == "queue":
    # A bench beside this one, or a library that it loads, wants the standard library's module of that name.
    import os
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("queue", Path(os.__file__).with_name("queue.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["queue"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["queue"])

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from interleaved import command, compile_everything, interleave, medians, own_command, show, to_reach

MANY, FEW = 100_000, 100
TRIALS = 15  # of each thing that is measured with few and with many queued

numbers = itertools.count()


def shell(script: str) -> None:
    subprocess.run(["sh", "-ec", script], stdout=subprocess.DEVNULL, check=True)


class Sides:
    """Each runs all jobs to their end."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.gpulease = own_command()
        self.jobs = jobs
        self.file = folder / "jobs.txt"
        self.file.write_text("/bin/true\n" * jobs)
        self.folder = folder

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
        shell(f"{self.folder}/peer/bin/simple_gpu_scheduler --gpus 0 1 < {self.file}")

    def shells(self) -> None:
        """What stands above each job, started by a bare loop: what is left is the broker's."""
        from gpulease.broker import journal, spawn

        logs = self.folder / f"logs{next(numbers)}"
        logs.mkdir()
        for number in range(self.jobs):
            if number >= 2:
                os.wait()
            log = str(logs / str(number))
            journal.prepare(f"{log}.note")
            output = spawn.open_log(log)
            spawn.start(spawn.words_for(f"{log}.note", str(logs), ["/bin/true"]), dict(os.environ), output)
            os.close(output)
        for _ in range(min(2, self.jobs)):
            os.wait()

    def xargs(self) -> None:
        shell(f"seq {self.jobs} | xargs -P2 -n1 /bin/true")


def install_peer(folder: Path) -> bool:
    try:
        subprocess.run([sys.executable, "-m", "venv", folder / "peer"], check=True, capture_output=True)
        pip = [f"{folder}/peer/bin/pip", "install", "-q", "simple_gpu_scheduler", "setuptools<81"]
        subprocess.run(pip, check=True, capture_output=True, timeout=120)
        return (folder / "peer" / "bin" / "simple_gpu_scheduler").exists()
    except (OSError, subprocess.SubprocessError):
        return False


def short_jobs(folder: Path, rounds: int, jobs: int) -> None:
    if shutil.which("tsp") is None:
        sys.exit("This bench needs task-spooler (Debian: apt-get install task-spooler).")
    sides = Sides(folder, jobs)
    things: dict[str, Callable[[], object]] = {
        "xargs -P2": sides.xargs,
        "task-spooler, tsp -S 2": sides.spooler,
        "our shells, no broker": sides.shells,
        "gpulease, add --file": sides.batch,
    }
    if install_peer(folder):
        things["simple_gpu_scheduler"] = sides.scheduler
    timings = interleave(things, rounds)
    begin = time.perf_counter()
    sides.loop()
    timings["gpulease, add in a loop"] = [time.perf_counter() - begin]
    print(f"{jobs} x /bin/true, two at once")
    show(timings, "xargs -P2")
    middle = medians(timings)
    ours = middle["gpulease, add --file"]
    to_reach("add --file / task-spooler", ours / middle["task-spooler, tsp -S 2"], 1.0)
    to_reach("add --file / xargs", ours / middle["xargs -P2"], 2.2)


def one_add(rounds: int) -> None:
    things = {
        "python -c pass": command([sys.executable, "-c", "pass"]),
        "gpulease add": command([own_command(), "add", "--hold", "--", "/bin/true"]),
    }
    timings = interleave(things, rounds)
    print("\none job from the shell")
    show(timings, "python -c pass")
    middle = medians(timings)
    to_reach("add / python -c pass", middle["gpulease add"] / middle["python -c pass"], 3.0)


class Place:
    """A broker of its own, with jobs that want all three GPUs, of which one is held: all of them wait."""

    def __init__(self, folder: Path, name: str) -> None:
        from gpulease.backends import BackendConnection
        from gpulease.client import Client

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
        self._run("add", "-n", "3", "--file", str(self.file))

    def ls(self) -> None:
        self._run("ls")

    def add(self) -> None:
        self._run("add", "-n", "3", "--", "/bin/true")

    def release(self) -> None:
        """Take a GPU and give it back, which is planned for all that wait."""
        from gpulease.client import acquire

        granted, self.client = acquire({"request": {}, "kind": "acquire", "wait": None}, None, self.client)
        self.client.ask("release", what=[granted["id"]])

    def stop(self) -> None:
        self._run("stop")


def resident(pid: int) -> int:
    """KiB of memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


def hundred_thousand(folder: Path) -> None:
    few, many = Place(folder, "few"), Place(folder, "many")
    few.queue(FEW)
    many.queue(FEW)
    before = resident(many.pid)
    begin = time.perf_counter()
    many.queue(MANY)
    seconds = time.perf_counter() - begin
    grown = (resident(many.pid) - before) * 1024 / MANY
    print(f"\n{MANY} jobs in one batch")
    to_reach(f"seconds for {MANY} jobs", seconds, 10.0)
    to_reach("bytes of memory for a job", grown, 1024)
    for name in ("ls", "add", "release"):
        timings = interleave({f"{name}, {FEW}": getattr(few, name), f"{name}, {MANY}": getattr(many, name)}, TRIALS)
        show(timings, f"{name}, {FEW}")
        small, large = medians(timings).values()
        to_reach(f"{name} with {MANY} queued / with {FEW}", large / small, 2.0)
    few.stop()
    many.stop()


def main(rounds: int, jobs: int) -> None:
    compile_everything()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.update(GPULEASE_DIR=str(folder / "broker"), GPULEASE_SIMULATE="2")
        short_jobs(folder, rounds, jobs)
        one_add(max(10, rounds * 5))
        shell(f"{own_command()} stop")
        hundred_thousand(folder)


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    main(words[0] if words else 3, words[1] if len(words) > 1 else 500)
