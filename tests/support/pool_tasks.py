"""Functions that tests run in workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from threading import Timer
from typing import Any

import gpulease


def double(value: int) -> int:
    return value * 2


def add(left: int, right: int = 0) -> int:
    return left + right


def fail(value: object) -> None:
    raise ValueError(f"no {value}")


def fail_odd(value: int) -> int:
    if value % 2:
        raise ValueError(f"odd {value}")
    return value


def environment(name: str) -> str | None:
    return os.environ.get(name)


def pid() -> int:
    return os.getpid()


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def die_soon() -> None:
    """As `init`: its worker is ready, and is ended a moment later."""
    Timer(0.05, die, (signal.SIGKILL,)).start()


def die_and_count(path: str) -> None:
    """Ends its worker each time, and leaves a mark for it."""
    with open(path, "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path: str, value: int) -> int:
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return value


def leave(code: int) -> None:
    os._exit(code)


def wait_for(path: str, seconds: float = 30) -> str:
    """Runs until the file is there."""
    until = time.monotonic() + seconds
    while not Path(path).exists():
        if time.monotonic() > until:
            raise TimeoutError(path)
        time.sleep(0.005)
    return path


def mark_and_wait(mark: str, path: str) -> int:
    Path(mark).touch()
    wait_for(path)
    return os.getpid()


def short_or_wait(path: str, value: int) -> tuple[int, int]:
    """The first one waits; the others are short."""
    if value == 0:
        wait_for(path)
    return value, os.getpid()


def out_of_memory() -> None:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


def who() -> Any:
    current = gpulease.worker()
    return current._replace(shared={}, state=None)


def shared_sum(name: str) -> float:
    return float(gpulease.worker().shared[name].sum())


def write_shared(name: str) -> None:
    gpulease.worker().shared[name][0] = 1


def state() -> Any:
    return gpulease.worker().state


def initialise(path: str) -> str:
    """Counts its runs in a folder."""
    Path(path, str(os.getpid())).touch()
    return f"state of {os.getpid()}"


def initialise_badly() -> None:
    raise RuntimeError("no model here")


def initialise_badly_later(path: str) -> None:
    """Once the file is there."""
    wait_for(path)
    initialise_badly()


class Unloadable(Exception):
    """Pickles, and cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def raise_unloadable() -> None:
    raise Unloadable(1, 2)


def raise_it(kind: type[BaseException]) -> None:
    raise kind("while it was read")


class RaisesWhenRead:
    """A result that pickles in the worker; to unpickle it raises."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __reduce__(self) -> Any:
        return raise_it, (self.kind,)


class ErrorThatExits(Exception):
    def __reduce__(self) -> Any:
        return raise_it, (SystemExit,)


def raise_error_that_exits() -> None:
    raise ErrorThatExits("no")


def nested(gpus: int) -> list[int]:
    with gpulease.Pool(gpus=gpus) as pool:
        return list(pool.map(double, range(5)))


def nested_death() -> list[tuple[str, str | None]]:
    with gpulease.Pool(gpus=1) as pool:
        before = pool.submit(own_gpu).result(30)
        pool.submit(die, signal.SIGKILL).exception(30)
        return [before, pool.submit(own_gpu).result(30)]


def own_gpu() -> tuple[str, str | None]:
    return gpulease.worker().gpus, gpulease.worker().lease


def kill_at_random(value: int, seed: int) -> int:
    """One in fifty ends its worker, on its first try only: whether it does is drawn from the process too."""
    if (value * 2654435761 + os.getpid() * 40503 + seed) % 50 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return value * value


def state_after(value: int) -> Any:
    time.sleep(0.001)
    return gpulease.worker().state


def mark_and_maybe_die(folder: str, value: int, every: int) -> int:
    """Leaves a mark for each time that it runs; one in `every` ends its worker."""
    with open(f"{folder}/{value}", "a") as file:
        file.write("x")
    if value % every == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def count_run(path: str) -> str:
    with open(path, "a") as file:
        file.write("x")
    return path


def count_run_slowly(path: str) -> str:
    time.sleep(0.01)
    return count_run(path)


def mapping_at(address: int) -> tuple[int, int]:
    """(KiB of the mapped memory that are a copy of this process's own, the mapped file's identity)."""
    private, inside, inode = 0, False, 0
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                begin, end = (int(part, 16) for part in first.split("-"))
                inside = begin <= address < end
                inode = int(line.split()[4]) if inside else inode
            elif inside and first == "Anonymous:":
                private += int(line.split()[1])
    return private, inode


def host_out_of_memory() -> None:
    raise MemoryError


items_run = 0  # in this process


def count_in_process(value: int) -> int:
    global items_run
    items_run += 1
    return value


def die_twice(path: str) -> int:
    """Ends its worker on its first two tries; then how many items that worker ran before."""
    if len(Path(path).read_text()) < 2:
        count_run(path)
        os.kill(os.getpid(), signal.SIGKILL)
    return items_run


def pid_and_count(value: object) -> tuple[int, int]:
    """This process, and how many items it has run with this one."""
    global items_run
    items_run += 1
    return os.getpid(), items_run


def mark_and_wait_for_other(mark: str, other: str) -> str:
    Path(mark).touch()
    wait_for(other)
    return gpulease.worker().gpus
