"""Starting a broker: `python -m gpulease.broker [--system|--shared] [--ready FD] [--idle SECONDS]`.

Clients start it so at their first need; people use `gpulease broker`. A lock on a file makes it the only one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Sequence

from gpulease import places
from gpulease.broker.server import Server, end_on_signals
from gpulease.errors import BrokerUnavailable, GpuleaseError, NotPermitted
from gpulease.probes.detect import deadline_seconds
from gpulease.stores.sqlite import SqliteStore

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
    directory = directory_of(kind)
    places.prepare(directory, everyone=kind != "own")
    lock = _lock(directory)
    store = SqliteStore(os.path.join(directory, "state.db"))
    os.chmod(os.path.join(directory, "state.db"), 0o600)
    listener = _listen(places.socket_path(directory), everyone=kind != "own")
    server = Server(listener, store, kind, directory, deadline_seconds(os.environ))
    end_on_signals(server)
    server.log(f"broker of kind {kind} serves {directory}")
    if ready >= 0:
        os.write(ready, b"1")
        os.close(ready)
    server.run(idle)
    server.log("broker ended")
    os.close(lock)


def directory_of(kind: str) -> str:
    asked = os.environ.get("GPULEASE_DIR")
    if kind == "system" and os.geteuid() != 0:
        raise NotPermitted("Only root may run the system's broker.", "Use --shared instead.")
    if asked:
        return os.path.abspath(asked)
    return {"system": places.SYSTEM, "shared": places.SHARED}.get(kind) or places.own(os.environ)


def _lock(directory: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(os.path.join(directory, "broker.lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BrokerUnavailable(
            f"A broker already serves {directory!r}.", "Use it, or end it with `gpulease stop`."
        ) from None
    return descriptor


def _listen(path: str, everyone: bool) -> socket.socket:
    """Bound under another name and moved into place: a socket that can be seen can be used."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    fresh = f"{path}.{os.getpid()}"
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
