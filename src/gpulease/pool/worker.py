"""A worker process: takes its lease, runs `init`, then works off items until its parent is gone.

Started by `slot`, with its connection as descriptor 3. Nothing of the user's is
imported before the lease is held and CUDA_VISIBLE_DEVICES is set.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from gpulease.errors import GpuleaseError, NotGranted
from gpulease.model.visible import narrowed
from gpulease.pool import context, link
from gpulease.pool.failures import short_of
from gpulease.pool.link import Receiver
from gpulease.pool.pickling import from_body
from gpulease.pool.session import Session
from gpulease.system.execution import end_with

if TYPE_CHECKING:
    from gpulease.api.leases import Held

CONTROL = 3

Told = dict[str, Any]


def main(parent: int) -> None:
    os.closerange(CONTROL + 1, os.sysconf("SC_OPEN_MAX"))  # what the parent's libraries left open
    end_with(parent)
    _leave_a_guard()
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]
    WorkerLoop(socket.socket(fileno=CONTROL)).serve()


def _leave_a_guard() -> None:
    """A process that ends whatever this one has started, once this one has ended, by whatever means.

    Nobody's child here, so that a task which waits for its children does not wait for it.
    """
    worker = os.pidfd_open(os.getpid())
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(worker)
        return
    if not os.fork():
        _guard(worker)
    os._exit(0)


def _guard(worker: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, worker)
    os.closerange(worker + 1, worker + 64)
    poll = select.poll()
    poll.register(worker, select.POLLIN)
    poll.poll()
    os.killpg(0, signal.SIGKILL)


class WorkerLoop:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._receiver = Receiver(control)
        self._sessions: dict[int, Session] = {}
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)
        self._running = True
        self._items = 0  # that it has run
        self._max_items: int | None = None
        self._worker: context.Worker | None = None  # with what the pool itself shares
        self._lease: object = None  # held for the life of the process

    # ---------------------------------------------------------------- getting ready

    def _prepare(self, setup: Told, descriptors: tuple[int, ...]) -> bool:
        began = time.monotonic()
        for doing, stage in (("lease", self._take_lease), ("init", self._load)):
            try:
                stage(setup, descriptors)
            except BaseException as error:
                self._tell_failure(doing, error)
                return False
        self._tell(ready=time.monotonic() - began)
        return True

    def _take_lease(self, setup: Told, descriptors: tuple[int, ...]) -> None:
        if setup["request"] is None:  # under a lease that somebody above it holds
            held, broker, gpus, uuids = None, None, setup["gpus"], setup["uuids"]
            for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
                os.environ[name] = narrowed(os.environ.get(name), gpus, uuids)
        else:
            lease = self._acquire(setup["request"])
            self._lease = lease
            held, broker = lease.id, lease.directory
            gpus, uuids = lease.indices, tuple(device.uuid for device in lease.devices)
        context.enter(context.Worker(setup["name"], gpus, uuids, held))
        self._tell(leased=held, broker=broker, gpus=gpus)

    def _acquire(self, request: Told) -> Held:
        """Take what is free now, else wait in the queue, and say so first."""
        from gpulease.api.leases import acquire

        try:
            return acquire(**request, kind="pool", wait=0)
        except NotGranted as error:
            self._tell(waiting=error.what)
        return acquire(**request, kind="pool", on_wait=lambda message: self._tell(waits=message))

    def _load(self, setup: Told, descriptors: tuple[int, ...]) -> None:
        sys.path[:] = setup["path"]
        self._max_items = setup["max_items"]
        shared = from_body(setup["shared"], descriptors) if setup["shared"] else {}
        context.prepare(context.worker(), shared, setup["init"])
        self._worker = context.worker()

    # ---------------------------------------------------------------- working

    def serve(self) -> None:
        while self._running:
            busy = any(session.waiting for session in self._sessions.values())
            for descriptor, _ in self._poll.poll(0 if busy else None):
                if descriptor == self._control.fileno():
                    self._read_control()
                else:
                    self._read_session(descriptor)
            self._work()

    def _work(self) -> None:
        """One item of each program in turn."""
        for session in self._sessions.values():
            if session.waiting:
                self._items += session.run_next()
                if self._items == self._max_items:
                    self._tell(worn=self._items)
                    self._running = False
                    return

    def _read_session(self, descriptor: int) -> None:
        session = self._sessions[descriptor]
        try:
            session.receive()
        except EOFError:
            self._poll.unregister(descriptor)
            del self._sessions[descriptor]
            session.close()

    def _read_control(self) -> None:
        try:
            for frame in self._receiver.receive():
                self._control_frame(frame)
        except EOFError:
            self._running = False

    def _control_frame(self, frame: link.Frame) -> None:
        message = pickle.loads(frame.body)
        if "setup" in message:  # the first one
            self._running = self._prepare(message["setup"], frame.descriptors)
        elif message["do"] == "stop":
            self._running = False
        else:
            connected, tokens = frame.descriptors
            self._sessions[connected] = Session(socket.socket(fileno=connected), tokens, self._worker)
            self._poll.register(connected, select.POLLIN)

    # ---------------------------------------------------------------- telling

    def _tell(self, **message: object) -> None:
        link.send_all(self._control, link.pack(link.CONTROL, pickle.dumps(message)))

    def _tell_failure(self, doing: str, error: BaseException) -> None:
        import traceback

        if isinstance(error, GpuleaseError):
            known: tuple[object, ...] | None = (error.code, error.what, error.next_step)
        else:
            known = None
        text = "".join(traceback.format_exception(error))
        self._tell(failed=doing, known=known, short=short_of(error), text=text)
