"""The process that keeps a named pool's workers warm between programs.

It passes no work on: each program gets a connection of its own with each worker, made here and handed over as
descriptors, and speaks with the workers as it would with its own. What is read here is JSON; who asks is known from the
kernel before anything is read.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from gpulease import __version__
from gpulease.errors import GpuleaseError
from gpulease.pool import link, places
from gpulease.pool.failures import Ending
from gpulease.pool.link import Receiver
from gpulease.pool.log import Log
from gpulease.pool.plan import load_files, make_plan
from gpulease.pool.reactor import Reactor
from gpulease.pool.slot import READY, WorkerSlot
from gpulease.pool.worker_group import WorkerGroup, WorkerGroupOwner
from gpulease.system.identity import peer

PLANNED = ("gpus", "gpus_per_worker", "request", "init", "max_items")
PYTHON = list(sys.version_info[:2])


class Program:
    """One connection: a program that uses the workers, or a command that asks about them."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.receiver = Receiver(connected)
        self.uses_workers = False

    def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        try:
            link.send_all(self.socket, link.pack_json(message, len(descriptors)), descriptors)
        except OSError:
            pass  # gone, or it reads nothing: its end is noticed by itself


class Daemon(WorkerGroupOwner):
    def __init__(self, options: dict[str, Any], listener: socket.socket, log: Log) -> None:
        self.name: str = options["name"]
        self._reactor = Reactor("gpulease-pool")
        self._log = log
        self._stopped = False
        self._listener = listener
        self._programs: list[Program] = []
        self._since = time.time()
        self._trouble: GpuleaseError | None = None
        plan = make_plan(**{name: options[name] for name in PLANNED}, shared=load_files(options["shared"]))
        self._request = dict(plan.request)
        self._group = WorkerGroup(self._reactor, self._log, self, plan)

    def run(self) -> None:
        self._log.note(f"pool {self.name} starts (pid {os.getpid()})")
        self._listener.setblocking(False)
        self._reactor.watch(self._listener.fileno(), self._accept)
        self._group.begin()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._reactor.on_signal(number, self._signalled)
        self._reactor.run()

    # ---------------------------------------------------------------- programs

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return
        if peer(connected)[1] != os.geteuid():  # root too: what it sent would be run as this user
            connected.close()
            return
        connected.setblocking(False)
        program = Program(connected)
        self._programs.append(program)
        self._reactor.watch(connected.fileno(), lambda: self._read(program))

    def _read(self, program: Program) -> None:
        try:
            for frame in program.receiver.receive():
                self._asked(program, json.loads(frame.body))
        except BlockingIOError:
            pass
        except (EOFError, ValueError):
            self._reactor.unwatch(program.socket.fileno())
            self._programs.remove(program)
            program.receiver.close()
            program.socket.close()

    def _asked(self, program: Program, message: dict[str, Any]) -> None:
        asked = message.get("do")
        if asked == "status":
            program.send({"ok": self._status()})
        elif asked == "stop":
            program.send({"ok": {"workers": len(self._group.slots)}})
            self._stop()
            if message.get("now"):
                self._group.kill()
        elif asked == "grow":
            self._grow(program, message)
        elif asked == "connect" and message.get("python") == PYTHON:
            program.uses_workers = True
            program.send({"ok": {}})
            for slot in self._group.slots:
                if slot.state == READY:
                    self._introduce(program, slot)
        else:
            text = f"The pool runs Python {PYTHON[0]}.{PYTHON[1]}." if asked == "connect" else "Not understood."
            program.send({"error": {"what": text, "next_step": "Use the Python that started the pool."}})

    def _grow(self, program: Program, message: dict[str, Any]) -> None:
        try:
            self._group.grow(message["gpus"], message["request"])
            program.send({"ok": {}})
        except GpuleaseError as error:
            program.send({"error": {"code": error.code, "what": error.what, "next_step": error.next_step}})

    def _introduce(self, program: Program, slot: WorkerSlot) -> None:
        connected, tokens = slot.open_session()
        program.send({"joined": {"name": slot.name, "gpus": slot.gpus}}, (connected.fileno(), tokens))
        connected.close()
        os.close(tokens)

    def _status(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "pid": os.getpid(),
            "version": __version__,
            "since": self._since,
            "programs": sum(program.uses_workers for program in self._programs),
            "request": self._request,
            "trouble": None if self._trouble is None else str(self._trouble),
            "workers": [
                {
                    "name": slot.name,
                    "state": self._group.state_of(slot),
                    "gpus": slot.gpus,
                    "lease": slot.lease,
                    "pid": slot.process.pid if slot.process else None,
                }
                for slot in self._group.slots
            ],
        }

    # ---------------------------------------------------------------- what the group tells

    def worker_ready(self, slot: WorkerSlot) -> None:
        for program in self._programs:
            if program.uses_workers:
                self._introduce(program, slot)

    def worker_retires(self, slot: WorkerSlot) -> None:
        self._tell({"retiring": {"name": slot.name}})

    def worker_gone(self, slot: WorkerSlot, ending: Ending) -> None:
        self._tell({"left": {"name": slot.name, "ending": list(ending)}})

    def crew_broken(self, error: GpuleaseError) -> None:
        self._trouble = error
        self._log.note(f"pool {self.name} ends: {error}")
        self._tell({"broken": {"what": error.what, "next_step": error.next_step}})
        self._stop()

    def crew_gone(self) -> None:
        self._log.note(f"pool {self.name} ended")
        self._reactor.stop()

    def _signalled(self) -> None:
        """The second signal does not wait for what runs."""
        if self._stopped:
            self._group.kill()
        self._stop()

    def _stop(self) -> None:
        """Once what runs is done, however long that takes. A later `end` does not wait."""
        self._stopped = True
        self._tell({"stopping": {}})
        self._group.stop(grace=None)

    def _tell(self, message: dict[str, Any]) -> None:
        for program in self._programs:
            if program.uses_workers:
                program.send(message)


def main() -> int:
    """Options as JSON on stdin; `ready` or an error as one line of JSON on stdout, for `gpulease pool start`."""
    options = json.loads(sys.stdin.readline())
    path = Path(places.socket_path(options["name"]))
    try:
        lock = places.claim(options["name"])
        log = places.open_log(options["name"])
        daemon = Daemon(options, _listen(path), Log(places.path_of(options["name"], "log")))
    except GpuleaseError as error:
        print(json.dumps({"error": [error.code, error.what, error.next_step]}), flush=True)
        return 1
    print(json.dumps({"ready": os.getpid()}), flush=True)
    # Its parent may end, and its terminal with it.
    for stream, place in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
        os.dup2(place, stream)
    _run(daemon, path, lock)
    return 0


def serve(options: dict[str, Any]) -> None:
    """In the foreground, with what workers print on stderr: the pool ends with this process."""
    places.prepare_folder()
    lock = places.claim(options["name"])
    path = Path(places.socket_path(options["name"]))
    _run(Daemon(options, _listen(path), Log()), path, lock)


def _run(daemon: Daemon, path: Path, lock: int) -> None:
    try:
        daemon.run()
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _listen(path: Path) -> socket.socket:
    """In a folder that is this user's alone."""
    path.unlink(missing_ok=True)  # of one that was killed: the name is ours
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)
    return listener


if __name__ == "__main__":
    sys.exit(main())
