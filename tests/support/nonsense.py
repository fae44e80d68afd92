"""A broker whose answers are changed on their way: run as a program, it has verbs stumble over many of them.

Prints a line for each exception that a verb let through. Its words: a folder for the socket, and how many changes to
try with each verb.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from gpulease.cli.main import main
from gpulease.client import connection
from gpulease.protocol.wire import Unpacker, pack

BAD: list[Any] = [None, "x", "", "\0", -1, 1e300, float("nan"), True, [], {}, [[]], [{}], {"x": 1}, "L1\x1b[2J"]
VERBS = [
    "status", "status --list all", "ls --all", "ls --json", "show 1", "explain 2", "events", "set", "log 1",
    "log main", "doctor", "get --no-wait --owner 1", "release --mine", "renew --for 1h", "kill 99", "pause 2",
    "resume 2", "move 2 0", "edit 2 --priority 3", "retry 1", "clean 77", "add --hold -- true", "exclude 3",
    "include 3", "wait 1 --timeout 0.1s", "debug 1", "start 2",
]  # fmt: skip


class Between:
    """Listens in the folder, passes requests on to the real broker, and changes what comes back."""

    def __init__(self, folder: Path, real: str) -> None:
        self._real = real
        self.random: random.Random | None = None  # of the next change; None for none
        self.last: Any = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "socket"))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            ours = self._listener.accept()[0]
            theirs = socket.socket(socket.AF_UNIX)
            theirs.connect(self._real)
            threading.Thread(target=self._pass_on, args=(ours, theirs), daemon=True).start()
            threading.Thread(target=self._pass_back, args=(theirs, ours), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)

    def _pass_back(self, source: socket.socket, target: socket.socket) -> None:
        unpacker = Unpacker(1 << 24)
        try:
            while data := source.recv(1 << 16):
                for message in unpacker.feed(data):
                    target.sendall(pack(self._changed(message), 1 << 24))
        except OSError:
            pass

    def _changed(self, message: dict[str, Any]) -> dict[str, Any]:
        if self.random is None:
            return message
        self.last = changed = copy.deepcopy(message)
        holder, key = self.random.choice(list(places(changed)))
        if isinstance(holder, dict) and self.random.random() < 0.3:
            del holder[key]
        else:
            holder[key] = self.random.choice(BAD)
        return changed


def places(value: Any) -> Any:
    """Every place in a document where something can be exchanged."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def try_verb(words: list[str]) -> str | None:
    """The traceback that a user would see; None when there is none."""
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in kept)
    try:
        main(words)
    except BaseException:
        return traceback.format_exc()
    finally:
        sys.stdout, sys.stderr = kept
        connection.forget()
    return None


def run(folder: Path, tries: int) -> None:
    between = Between(folder, f"{os.environ['GPULEASE_DIR']}/socket")
    os.environ["GPULEASE_DIR"] = str(folder)
    for words in VERBS:
        for seed in range(tries):
            between.random = random.Random(f"{words} {seed}")
            trace = try_verb(words.split())
            if trace is not None:
                last = trace.strip().splitlines()
                where = [line.strip() for line in last if line.strip().startswith("File")][-1]
                print(json.dumps([words, seed, last[-1], where, between.last])[:600], flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
