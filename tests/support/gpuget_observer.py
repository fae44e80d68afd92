"""An observer of its own: what the broker says is leased, beside what Redis says at the same moment.

`python -m support.gpuget_observer SOCKET FOLDER`. A lease that began before a picture of Redis and is still there after
it was held all the while: its GPU must be in our list, and in no other. What contradicts that is written down.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gpulease
from gpulease.errors import GpuleaseError
from support.gpu_locks import note

MARGIN = 0.01  # seconds by which the broker's clock may differ


def picture(client: Any) -> tuple[list[str], list[str]]:
    """The idle ones and ours, at one instant."""
    (key,) = [key for key in client.keys("GPU_GPULEASE:*") if not key.endswith(":notes")] or ["GPU_GPULEASE:none"]
    both = client.pipeline(transaction=True).lrange("GPU_IDLE", 0, -1).lrange(key, 0, -1).execute()
    return both[0], both[1]


def leased(before: float, labels: dict[str, str]) -> list[str]:
    """Of leases that began before then and are still there. A broker that has just begun knows UUIDs only."""
    document: Any = gpulease.status()
    labels |= {device["uuid"]: device["label"] for device in document["devices"]}
    held = [lease for lease in document["leases"] if lease["since"] < before - MARGIN]
    return [labels.get(device, device) for lease in held for device in lease["devices"]]


def main() -> None:
    import redis

    client = redis.Redis(unix_socket_path=sys.argv[1], decode_responses=True)
    folder, labels = Path(sys.argv[2]), dict[str, str]()
    while not (folder / "stop").exists():
        now = time.time()
        idle, ours = picture(client)
        twice = [gpu for gpu, count in Counter([*idle, *ours]).items() if count > 1]
        try:
            held = leased(now, labels)
        except GpuleaseError:
            continue  # the broker was killed
        wrong = [f"leased {gpu}, idle {idle}, ours {ours}" for gpu in held if gpu in idle or gpu not in ours]
        for text in (*wrong, *(f"{gpu} is in the lists twice" for gpu in twice)):
            note(folder, "contradictions", text)
        note(folder, "observations", f"{len(held)} {len(idle)} {len(ours)}")
        time.sleep(0.02)  # there are only so many cores


if __name__ == "__main__":
    main()
