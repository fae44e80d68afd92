"""Starting a broker: `python -m gpulease.broker [--system|--shared] [--replace] [--ready FD] [--idle SECONDS]`.

Clients start it so at their first need; people use `gpulease broker`. A lock on a file makes it the only one. With
--check it only says whether its config file is right.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Sequence

from gpulease.broker.config import config_of
from gpulease.broker.edge.launcher import InheritedHome, LauncherLink
from gpulease.broker.edge.server import MAINTENANCE_INTERVAL, Server, listen_to_signals
from gpulease.broker.home import Home
from gpulease.broker.store.sqlite import SqliteStore
from gpulease.errors import GpuleaseError, StateError
from gpulease.protocol.messages import error
from gpulease.protocol.wire import pack
from gpulease.system import identity, places
from gpulease.system.detect import deadline_seconds, seconds_of
from gpulease.system.execution import use_default_signals
from gpulease.system.host import network_filesystem
from gpulease.system.service import LauncherConfig, Manager, SignsOfLife

IDLE = 600.0
SERVING = 1.0  # seconds for the system's broker to let somebody in


def main(words: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if words is None else words)
    kind = "system" if "--system" in arguments else "shared" if "--shared" in arguments else "own"
    ready = int(_after(arguments, "--ready") or -1)
    lasts = kind != "own" or os.environ.get("SLURM_JOB_ID")  # an allocation's broker ends with the allocation
    idle = _after(arguments, "--idle") or (None if lasts else str(IDLE))
    try:
        if "--check" in arguments:
            print(check(kind))
            return 0
        serve(kind, ready, None if idle is None else float(idle), "--replace" in arguments, _given(arguments))
    except GpuleaseError as trouble:
        print(f"gpulease: {trouble.what}\n{trouble.next_step}", file=sys.stderr, flush=True)
        return trouble.exit_code
    return 0


def check(kind: str) -> str:
    """What a broker of this kind would make of its config file now; raises as it would."""
    config = config_of(kind, os.environ).read()
    if kind == "system":
        LauncherConfig.read(os.environ)
    if config.path is None or not os.path.exists(config.path):
        return f"There is no config file {config.path or 'here'}: all parameters have their defaults."
    return f"{config.path} is right: it sets {', '.join(config.texts) or 'nothing'}."


def _given(words: list[str]) -> tuple[int, int] | None:
    at = words.index("--given") if "--given" in words else None
    return None if at is None else (int(words[at + 1]), int(words[at + 2]))


def serve(
    kind: str, ready: int, idle: float | None, replace: bool = False, given: tuple[int, int] | None = None
) -> None:
    """Serve until stopped. A byte on the descriptor `ready` tells that clients may come."""
    manager = Manager(os.environ)
    if ready >= 0:
        manager = Manager(
            {}
        )  # that of the service, if any, in which somebody first used gpulease: it is not ours to tell
    try:
        server, home = _prepare(places.of_kind(kind, os.environ), replace, given, manager)
    except GpuleaseError as trouble:
        _tell(ready, pack(error(trouble)))
        raise
    _tell(ready, places.READY)
    server.run(idle)
    server.log("broker ended")
    home.close()


def _prepare(
    place: places.Place, replace: bool, given: tuple[int, int] | None, manager: Manager
) -> tuple[Server, Home | InheritedHome]:
    identity.call_oneself(identity.BROKER_NAME)
    os.umask(0o077)  # what is for everybody is made so one by one
    use_default_signals()
    if place.kind == "own":
        _leave_to_system()
    config = config_of(place.kind, os.environ).read()
    home, launching = _home(place, replace, given)
    _keep_private(place.kept("state.db"))
    network = network_filesystem(place.state)
    store = SqliteStore(place.kept("state.db"), network is not None)
    deadline = deadline_seconds(os.environ)
    every = seconds_of(os.environ, "GPULEASE_HOUSEKEEPING", MAINTENANCE_INTERVAL)
    try:
        server = Server(home, store, deadline, config, launching, network is not None)
    except (KeyError, TypeError, ValueError, AttributeError) as trouble:
        traceback.print_exc()
        raise store.damaged(f"this version cannot read it ({trouble!r})") from None
    server.maintenance_interval = every
    listen_to_signals(server)
    where = f"{place.state}, which is on {network}: each commit is forced there" if network else place.state
    server.log(f"broker of kind {place.kind} serves {place.run}, with its state in {where}")
    server.give_signs(SignsOfLife(manager.patience, manager.alive if launching is None else launching.tell_alive))
    (manager.ready if launching is None else launching.tell_ready)()
    return server, home


def _leave_to_system() -> None:
    """A user's service may start with the machine, and before the broker for everybody does."""
    for place in places.candidates(os.environ):
        if place.kind == "system" and places.in_charge(place):
            with socket.socket(socket.AF_UNIX) as connected:
                connected.settimeout(SERVING)
                try:
                    connected.connect(places.socket_path(place.run))
                except OSError as trouble:
                    if not isinstance(trouble, (TimeoutError, PermissionError)):  # else it is there
                        raise places.down(place) from None


def _home(
    place: places.Place, replace: bool, given: tuple[int, int] | None
) -> tuple[Home | InheritedHome, LauncherLink | None]:
    """Made here; or by the launcher, which gave the socket and a way to ask it."""
    if given is not None:
        listener, link = (socket.socket(fileno=descriptor) for descriptor in given)
        for end in (listener, link):
            end.set_inheritable(False)
        return InheritedHome(place, listener), LauncherLink(link)
    home = Home(place)
    (home.replace if replace else home.enter)()
    return home, None


def _keep_private(path: str) -> None:
    """Whatever mode it has: environments are in it, and the log beside a database gets the database's mode."""
    if os.path.islink(path):
        raise StateError(f"The state in {path!r} could not be opened: it is a symbolic link.")
    for name in (path, f"{path}-wal", f"{path}-shm"):
        try:
            if os.stat(name).st_mode & 0o077:
                os.chmod(name, 0o600)
        except FileNotFoundError:
            continue
        except OSError as trouble:
            raise StateError(f"The state in {path!r} could not be opened: {trouble.strerror}.") from None


def _tell(ready: int, message: bytes) -> None:
    """Report to the process that started this broker: that it is ready, or why it will never be."""
    if ready >= 0:
        with contextlib.suppress(OSError):
            os.write(ready, message)
        os.close(ready)


def _after(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words[:-1] else None


if __name__ == "__main__":
    sys.exit(main())
