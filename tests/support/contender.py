"""A process that takes, holds and gives back leases, and proves for itself that nobody else has what it got.

`python contender.py FOLDER ROUNDS SEED [share] [pause]`: the observer is in FOLDER, independent of gpulease. Each
device has places there, two of them so that shares can be told apart; a whole device takes both, a share takes one. A
place is a file that one process can make and that names its maker: whoever finds a place taken by a live process was
granted what somebody else has.
"""

from __future__ import annotations

import fcntl
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gpulease
from gpulease.api.leases import Held
from gpulease.system.identity import start_time

SHARE = "36G"  # two of these fit an A100 of 80G beside the reserve, three do not


def me() -> str:
    return f"{os.getpid()}.{start_time(os.getpid())}"


def alive(maker: str) -> bool:
    """A zombie holds nothing: the kernel has told its end."""
    pid, _, started = maker.partition(".")
    try:
        text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return text[19] == started and text[0] not in "ZX"


def read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def take(path: Path, number: int, share: bool) -> bool:
    """Make the file, with our name in it from its first moment on.

    A share may meet another share's file and see it vanish; whoever has the whole device may meet nobody's. One at a
    time, since of two shares that find a dead one's file the slower would remove what the quicker has made.
    """
    with one_at_a_time(path.parent):
        return _take(path, number, share)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _take(path: Path, number: int, share: bool) -> bool:
    mine = path.with_name(f".{me()}.{number}")
    mine.write_text(me())
    mine.chmod(0o666)
    try:
        while True:
            try:
                os.link(mine, path)
                return True
            except FileExistsError:
                maker = read(path)
            if maker is None and share:
                continue
            if maker is None or alive(maker):
                return False
            path.unlink(missing_ok=True)  # its maker was killed with -9 before
    finally:
        mine.unlink()


def observe(folder: Path, lease: Held, share: bool) -> list[Path]:
    taken: list[Path] = []
    for device in lease.devices:
        places = [folder / f"{device.uuid}.{place}" for place in (0, 1)]
        got: list[Path] = []
        for number, place in enumerate(places):
            if not (share and got) and take(place, number, share):
                got.append(place)
        taken += got
        if len(got) < (1 if share else 2):
            os.write(1, f"DOUBLE {device.uuid} {lease.id} {lease!r}\n".encode())
            sys.exit(99)
    return taken


def main(folder: Path, rounds: int, seed: int, shares: bool, pauses: bool) -> int:
    dice = random.Random(seed)
    for number in range(rounds):
        share = shares and dice.random() < 0.5
        amount = {"mem": SHARE} if share else {"gpus": dice.choice((1, 1, 1, 2, 3))}
        with gpulease.acquire(**amount) as lease:
            places = observe(folder, lease, share)
            time.sleep(dice.random() * (0.3 if pauses else 0.01))  # its use of the device
            for place in places:
                place.unlink()
        os.write(1, f"{number}\n".encode())
        if (folder / "stop").exists():
            break
        time.sleep(dice.random() * 0.1 * pauses)  # so that other brokers' users have their turn
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), "share" in sys.argv, "pause" in sys.argv))
