"""Somebody who takes a lease, uses the GPU and gives it back, again and again, whatever happens to the broker.

`python -m support.lease_user FOLDER SECONDS`
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import gpulease
from gpulease.errors import GpuleaseError
from support.gpu_locks import note, use


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    chance = random.Random(os.getpid())
    while not (folder / "stop").exists():
        try:
            lease = gpulease.acquire(1, wait=1)
        except GpuleaseError as trouble:  # not granted in time, or the broker was killed meanwhile
            note(folder, "troubles", f"{type(trouble).__name__}: {trouble}")
            continue
        with use(folder, int(lease.indices), "gpulease"):
            time.sleep(chance.uniform(0, seconds))  # it computes
        while True:
            try:
                lease.release()
                break
            except GpuleaseError as trouble:  # it is still held
                note(folder, "troubles", f"{type(trouble).__name__}: {trouble}")


if __name__ == "__main__":
    main()
