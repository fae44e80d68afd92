"""What GPU.py does to its keys in Redis, re-enacted from what can be seen of it: one function for each of its options.

As a process it is somebody's script that takes a GPU, uses it and gives it back, again and again:
`python -m support.gpuget_user SOCKET FOLDER SECONDS DEADLY`. It dies at moments at which GPU.py itself loses nothing:
one that is killed between taking a GPU and writing its PID has lost it, with or without a neighbour.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from support.gpu_locks import use

PREFIX = "GPU"


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def manage(client: Any, gpus: list[int], prefix: str = PREFIX, force: bool = False) -> None:
    """--redis-manage; each step is one of its own, as there."""
    if client.hgetall(f"{prefix}_INIT") and not force:
        return
    for name in ("IDLE", "MANAGED", "EVENTS", "INIT"):
        client.delete(f"{prefix}_{name}")
    for gpu in gpus:
        client.lpush(f"{prefix}_IDLE", gpu)
        client.lpush(f"{prefix}_MANAGED", gpu)
    client.hset(f"{prefix}_INIT", "TIME", now())
    client.hset(f"{prefix}_INIT", "GPUMANAGED", ",".join(map(str, gpus)))
    client.hset(f"{prefix}_INIT", "GPUCOUNT", len(gpus))
    client.lpush(f"{prefix}_EVENTS", f"{now()}: Redis initialized, {len(gpus)} managed GPUs.")


def get(client: Any, pid: int, prefix: str = PREFIX, patience: float = 0) -> int | None:
    """--get; it waits for ever, unless a test says otherwise."""
    popped = client.brpop(f"{prefix}_IDLE", patience)
    if popped is None:
        return None
    gpu = int(popped[1])
    client.lpush(f"{prefix}_EVENTS", f"{now()}: GPU {gpu} acquired by PID {pid}.")
    client.hset(f"{prefix}_GPU{gpu}", "PID", pid)
    client.hset(f"{prefix}_GPU{gpu}", "TIME", now())
    return gpu


def release(client: Any, gpu: int, pid: int, prefix: str = PREFIX) -> None:
    """--release"""
    if str(gpu) in client.lrange(f"{prefix}_IDLE", 0, -1):
        return
    if str(gpu) not in client.lrange(f"{prefix}_MANAGED", 0, -1):
        return
    client.lpush(f"{prefix}_EVENTS", f"{now()}: GPU {gpu} released by PID {pid}.")
    client.delete(f"{prefix}_GPU{gpu}")
    client.lpush(f"{prefix}_IDLE", gpu)


def purge(client: Any, prefix: str = PREFIX) -> None:
    """--redis-purge"""
    idle = client.lrange(f"{prefix}_IDLE", 0, -1)
    for gpu in [one for one in client.lrange(f"{prefix}_MANAGED", 0, -1) if one not in idle]:
        pid = client.hget(f"{prefix}_GPU{gpu}", "PID")
        if pid is not None and not _signalled(int(pid)):
            client.delete(f"{prefix}_GPU{gpu}")
            client.lpush(f"{prefix}_EVENTS", f"{now()}: GPU {gpu} of PID {pid} was released by redis purge.")
            client.lpush(f"{prefix}_IDLE", gpu)


def _signalled(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def idle(client: Any, prefix: str = PREFIX) -> list[int]:
    return sorted(map(int, client.lrange(f"{prefix}_IDLE", 0, -1)))


def main() -> None:
    """Until it is told to stop, or is killed while it computes, as often happens to it."""
    import redis

    client = redis.Redis(unix_socket_path=sys.argv[1], decode_responses=True)
    folder, seconds, deadly = Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    chance = random.Random(os.getpid())
    while not (folder / "stop").exists():
        gpu = get(client, os.getpid(), patience=1)
        if gpu is None:
            continue
        with use(folder, gpu, "gpuget"):
            time.sleep(chance.uniform(0, seconds))  # it computes
            if chance.random() < deadly:
                os.kill(os.getpid(), signal.SIGKILL)
        release(client, gpu, os.getpid())


if __name__ == "__main__":
    main()
