"""A process that takes, holds and gives back leases, and proves for itself that nobody else has what it got.

`python contender.py FOLDER ROUNDS SEED [share]`: the observer is in FOLDER, independent of gpulease. Each device has
places there, two of them so that shares can be told apart; a whole device takes both, a share takes one. A place is a
file that one process can make and that names its maker: whoever finds a place taken by a live process was granted
what somebody else has.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import gpulease
from gpulease.identity import start_time
from gpulease.leases import Held

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


def take(path: Path, number: int) -> bool:
    """Make the file, with our name in it from its first moment on."""
    mine = path.with_name(f".{me()}.{number}")
    mine.write_text(me())
    mine.chmod(0o666)
    try:
        for _ in range(2):
            try:
                os.link(mine, path)
                return True
            except FileExistsError:
                if alive(path.read_text()):
                    return False
                path.unlink(missing_ok=True)  # its maker was killed with -9 before
        return False
    finally:
        mine.unlink()


def observe(folder: Path, lease: Held, share: bool) -> list[Path]:
    taken: list[Path] = []
    for device in lease.devices:
        places = [folder / f"{device.uuid}.{place}" for place in (0, 1)]
        got: list[Path] = []
        for number, place in enumerate(places):
            if not (share and got) and take(place, number):
                got.append(place)
        taken += got
        if len(got) < (1 if share else 2):
            os.write(1, f"DOUBLE {device.uuid} {lease.id} {lease!r}\n".encode())
            sys.exit(99)
    return taken


def main(folder: Path, rounds: int, seed: int, shares: bool) -> int:
    dice = random.Random(seed)
    for number in range(rounds):
        share = shares and dice.random() < 0.5
        amount = {"mem": SHARE} if share else {"gpus": dice.choice((1, 1, 1, 2, 3))}
        with gpulease.acquire(**amount) as lease:
            places = observe(folder, lease, share)
            time.sleep(dice.random() * 0.01)  # its use of the device
            for place in places:
                place.unlink()
        os.write(1, f"{number}\n".encode())
        if (folder / "stop").exists():
            break
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["share"]))
