"""Starting a broker: `python -m gpulease.broker [--system|--shared] [--ready FD] [--idle SECONDS]`.

Clients start it so at their first need; people use `gpulease broker`. A lock on a file makes it the only one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from collections.abc import Sequence

from gpulease import places
from gpulease.broker.config import config_of
from gpulease.broker.server import Server, listen_to_signals
from gpulease.errors import BrokerUnavailable, GpuleaseError, NotPermitted, StateError
from gpulease.messages import error
from gpulease.probes.detect import deadline_seconds
from gpulease.stores.disks import network_filesystem
from gpulease.stores.sqlite import SqliteStore
from gpulease.wire import pack

IDLE = 600.0


def main(words: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if words is None else words)
    kind = "system" if "--system" in arguments else "shared" if "--shared" in arguments else "own"
    ready = int(_after(arguments, "--ready") or -1)
    idle = _after(arguments, "--idle")
    try:
        serve(kind, ready, IDLE if idle is None else float(idle))
    except GpuleaseError as trouble:
        print(f"gpulease: {trouble.what}\n{trouble.next_step}", file=sys.stderr, flush=True)
        return trouble.exit_code
    return 0


def serve(kind: str, ready: int, idle: float | None) -> None:
    """Serve until stopped. A byte on the descriptor `ready` tells that clients may come."""
    try:
        server, lock = _prepare(place_of(kind))
    except GpuleaseError as trouble:
        _tell(ready, pack(error(trouble)))
        raise
    _tell(ready, places.READY)
    server.run(idle)
    server.log("broker ended")
    os.close(lock)


def _prepare(place: places.Place) -> tuple[Server, int]:
    os.umask(0o077)  # what is for everybody is made so one by one
    config = config_of(place.kind, os.environ).read()
    places.prepare_both(place)
    try:
        lock = _lock(place)
        _keep_private(place.kept("state.db"))
        network = network_filesystem(place.state)
        store = SqliteStore(place.kept("state.db"), network is not None)
        places.write_kind(place.run, place.kind)
        listener = _listen(places.socket_path(place.run), everyone=place.kind != "own")
    except OSError as trouble:
        what = f"{trouble.strerror}: {trouble.filename}" if trouble.filename else trouble.strerror
        raise StateError(f"The broker cannot start in {place.state!r}: {what}.") from None
    server = Server(listener, store, place, deadline_seconds(os.environ), config)
    listen_to_signals(server)
    where = f"{place.state}, which is on {network}: each commit is forced there" if network else place.state
    server.log(f"broker of kind {place.kind} serves {place.run}, with its state in {where}")
    return server, lock


def _keep_private(path: str) -> None:
    """Whatever mode it has: environments are in it, and the log beside a database gets the database's mode."""
    if os.path.islink(path):
        raise StateError(f"The state in {path!r} could not be opened: it is a symbolic link.")
    for name in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(name):
            os.chmod(name, 0o600)


def _tell(ready: int, told: bytes) -> None:
    """To whoever started this broker: that it is ready, or why it will never be."""
    if ready >= 0:
        with contextlib.suppress(OSError):
            os.write(ready, told)
        os.close(ready)


def place_of(kind: str) -> places.Place:
    if kind == "system" and os.geteuid() != 0:
        raise NotPermitted("Only root may run the system's broker.", "Use --shared instead.")
    return places.of_kind(kind, os.environ)


def _lock(place: places.Place) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(place.kept("broker.lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BrokerUnavailable(
            f"A broker already serves {place.run!r}.", "Use it, or end it with `gpulease stop`.", serving=1
        ) from None
    return descriptor


def _listen(path: str, everyone: bool) -> socket.socket:
    """Bound under another name and moved into place: a socket that can be seen can be used."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    fresh = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)  # of a broker that had our pid and died in this moment
    listener.bind(fresh)
    os.chmod(fresh, 0o666 if everyone else 0o600)
    listener.listen(1024)
    listener.setblocking(False)
    os.rename(fresh, path)
    return listener


def _after(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words[:-1] else None


if __name__ == "__main__":
    sys.exit(main())
