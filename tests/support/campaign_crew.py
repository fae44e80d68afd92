"""Processes of a campaign (campaign.py): those that lease again and again, and the one that adds the jobs.

`python campaign_crew.py lease FOLDER SEED` or `python campaign_crew.py add FOLDER`. FOLDER is where everything proves
itself, out of reach of any shortage: a file for each device that its holder has locked, a byte for each lease that came
and went, a line for each job that ran, and a line for whatever went wrong.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from gpulease.client import connection
from gpulease.errors import GpuleaseError, NotFound, StateError, Unavailable
from gpulease.system.execution import end_with

# A job: alone on its device, one line, and a code that is known beforehand.
JOB = """\
exec 9>>"$0/device.$GPULEASE_DEVICES"
flock -n 9 || echo "job $1: device $GPULEASE_DEVICES is held by another" >>"$0/wrong"
echo "$1" >>"$0/ran"
sleep "$2"
exit "$3"
"""
CODES = (0, 0, 3, 125, 127)


def code_of(number: int) -> int:
    return CODES[number % len(CODES)]


def note(folder: Path, name: str, text: str) -> None:
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def insist(action: Callable[[], Any]) -> Any:
    """A shortage is said, and whoever asks again is served when it is over."""
    while True:
        try:
            return action()
        except (StateError, Unavailable):
            connection.forget()
            time.sleep(0.02)


# -------------------------------------------------------------------- leases


def lease(folder: Path, seed: int) -> None:
    dice, other = random.Random(seed), companion()
    while not (folder / "stop").exists():
        owner = dice.choice((None, other))
        granted = insist(lambda: granted_one(folder, dice.choice((1, 1, 1, 2)), owner))  # noqa: B023
        with alone(folder, granted):
            time.sleep(dice.random() * 0.01)  # its use of the devices
        with suppress(NotFound):  # the broker was killed before it could answer
            insist(lambda: connection.ask("release", what=[granted["id"]]))  # noqa: B023
        note(folder, "leases", ".")


def companion() -> int:
    """Another process, to hold what this one asks for; it ends with this one, after this one's locks are given back."""
    (begun, beginning), parent = os.pipe(), os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with(parent)
        os.write(beginning, b".")
        while True:
            signal.pause()
    os.read(begun, 1)
    return pid


def granted_one(folder: Path, gpus: int, owner: int | None) -> Any:
    """Who was told that it waits is granted at last, and keeps what it was granted, whatever happens in between."""
    reply: list[Any] = []
    fields = {"request": {"gpus": gpus}, "kind": "acquire", "wait": None, "note": None, "owner": owner}
    try:
        granted, client = connection.acquire(fields, reply.append, connection.take_kept())
        reply.append(granted)
        if owner is not None:
            connection.take(client, granted)
    except GpuleaseError as trouble:
        if reply:
            note(folder, "wrong", f"told {reply[-1]}, and then refused: {trouble.code}: {trouble}\n")
        raise
    connection.put_back(client)
    return granted


@contextmanager
def alone(folder: Path, granted: Any) -> Iterator[None]:
    """The kernel gives these locks back when a process is killed, before anybody hears of its end."""
    with ExitStack() as held:
        for device in granted["devices"]:
            file = held.enter_context(open(folder / f"device.{device['label']}", "a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note(folder, "wrong", f"lease {granted}: device {device['label']} is held by another\n")
        yield


# -------------------------------------------------------------------- jobs


def add(folder: Path) -> None:
    """For each line `FIRST LAST SEED` of the input: add these jobs, once, however often that has to be asked for."""
    for line in sys.stdin:
        first, last, seed = map(int, line.split())
        dice = random.Random(seed)
        words = [[str(number), f"{dice.random() * 0.1:.3f}", str(code_of(number))] for number in range(first, last + 1)]
        fields: dict[str, Any] = {
            "request": {},
            "options": {"cwd": "/", "environment": {"PATH": os.environ["PATH"]}},
            "commands": [["sh", "-c", JOB, str(folder), *each] for each in words],
            "token": f"batch-{first}",
        }
        reply = insist(lambda: connection.ask("add", **fields))  # noqa: B023
        print(reply["first"], reply["last"], flush=True)


if __name__ == "__main__":
    home = Path(sys.argv[2])
    try:
        lease(home, int(sys.argv[3])) if sys.argv[1] == "lease" else add(home)
    except BaseException:
        note(home, "wrong", traceback.format_exc())
        raise
