"""Taking over: from a broker that still runs, and from the places in which earlier versions kept state.

Before places had two folders, state lay beside the socket. It is copied once. Until the copy is in its place, whole,
the old one counts; from then on the new one does. A kill at any moment leaves one of the two.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time

from gpulease import PROTOCOL
from gpulease.broker.edge.clock import clock_of
from gpulease.broker.home import Home
from gpulease.broker.store import database_file
from gpulease.broker.store.sqlite import SqliteStore
from gpulease.errors import BrokerUnavailable, GpuleaseError
from gpulease.model.job import OPEN
from gpulease.model.store import Which
from gpulease.protocol.wire import pack
from gpulease.system import identity, places
from gpulease.system.disks import network_filesystem

ENDING = 30.0  # seconds for the broker before to end
STATE = "state.db"


def enter(home: Home, replace: bool) -> None:
    """Become the only broker there. With `replace` one that runs ends first, as by `gpulease stop`."""
    if not replace:
        return _enter(home)
    home.prepare()
    starting = os.open(os.path.join(home.place.run, "start.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + ENDING
    try:
        while True:
            with contextlib.suppress(BlockingIOError):  # a client is starting one: it is ended next
                fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                return _enter(home)
            except BrokerUnavailable as trouble:
                if not trouble.fields.keys() & {"serving", "earlier"}:
                    raise
            if time.monotonic() > until:
                what = f"The broker in {home.place.run!r} was told to stop and did not end."
                raise BrokerUnavailable(what, "If it hangs, kill it.")
            _stop(home.place)
            time.sleep(0.02)
    finally:
        os.close(starting)


def _enter(home: Home) -> None:
    home.enter()
    for folder in _before(home.place):
        if _usable(folder):
            home.lock_too(folder)


def _stop(place: places.Place) -> None:
    """Tell whoever listens there, if it is to be trusted; its connection ends with it."""
    for folder in filter(None, (place.run, places.moved_to(place), *_before(place))):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
            asking.settimeout(ENDING)
            with contextlib.suppress(OSError):
                asking.connect(places.socket_path(folder))
                if places.is_broker_of(folder, identity.peer(asking)[1]):
                    asking.sendall(pack({"v": PROTOCOL, "do": "stop"}))
                    while asking.recv(4096):
                        pass


def take_over(place: places.Place, network: bool) -> str | None:
    """Bring state from before to the state folder; the folder that it came from, or None. The caller has the locks."""
    path = place.kept(STATE)
    for folder in filter(_usable, _before(place)):
        old = os.path.join(folder, STATE)
        there = os.path.lexists(path)
        if _came_from(path, folder, network) if there else _copy(old, path, folder, network):
            os.rename(old, f"{old}.moved")
            return folder
    return None


def _before(place: places.Place) -> list[str]:
    """Where an earlier version kept what is now in the state folder."""
    if place.state == place.run:
        return []
    home = os.path.join(os.path.expanduser("~"), ".local", "state", "gpulease")
    return [place.run, home] if place.kind == "own" else [place.run]


def _usable(folder: str) -> bool:
    path = os.path.join(folder, STATE)
    if not os.path.isfile(path) or os.path.islink(path) or places.distrust(folder, {os.geteuid()}):
        return False
    return os.stat(path).st_uid == os.geteuid() and os.path.getsize(path) > 0


def _copy(old: str, path: str, folder: str, network: bool) -> bool:
    """Whether it is in its place now. A home may be shared by hosts: what another host granted stays where it is."""
    fresh = f"{path}.new"
    database_file.copy(old, fresh)
    with contextlib.closing(SqliteStore(fresh, network)) as store:
        host = os.uname().nodename
        owners = [lease.get("owner") or {} for lease in store.load("leases").values()]
        if any(owner.get("host", host) != host for owner in owners):
            return False
        moved = {"at": clock_of(store).now(), "folder": os.path.join(folder, "jobs")}
        store.write("facts", "moved", moved)
        store.commit(durable=True)
    database_file.move(fresh, path)
    return True


def _came_from(path: str, folder: str, network: bool) -> bool:
    """Whether the state in its place is the copy of that in `folder`: whoever copied it was killed right after."""
    with contextlib.closing(SqliteStore(path, network)) as store:
        moved = store.get("facts", "moved") or {}
    return moved.get("folder") == os.path.join(folder, "jobs")


def _name_users(place: places.Place) -> None:
    """To the launcher: whose jobs are in a state that root kept needs no other proof."""
    with contextlib.closing(SqliteStore(place.kept(STATE))) as store:
        users = sorted({uid for uid, _ in store.count_jobs(Which(OPEN))} - {0})
    known = f"{place.state}-launcher"
    places.prepare(known, everyone=False)
    with open(os.path.join(known, "users"), "a") as file:
        file.writelines(f"{uid}\n" for uid in users)


def main() -> int:
    """For a system broker, as root, before it starts: `UID [--replace]`. Its state is that user's from then on."""
    place, uid = places.of_kind("system", os.environ), int(sys.argv[1])
    home = Home(place, uid)
    try:
        enter(home, "--replace" in sys.argv)
        if take_over(place, network_filesystem(place.state) is not None) is not None:
            _name_users(place)
        for name in os.listdir(place.state):
            if name.startswith(STATE):
                os.chown(place.kept(name), uid, -1, follow_symlinks=False)
    except GpuleaseError as trouble:
        print(f"gpulease: {trouble.what}\n{trouble.next_step}", file=sys.stderr, flush=True)
        return trouble.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
