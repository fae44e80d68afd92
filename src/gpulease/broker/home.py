"""The folders that a broker lives in: made, locked, listened in, and put back when somebody removed them.

The process with the locks is the only broker. There are three, since one alone can be circumvented. The file in the
state folder goes with that folder, and so does the one in the run folder. The third, an abstract socket, not a file,
stays as long as the broker lives, whatever is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import time

from gpulease import PROTOCOL
from gpulease.errors import BrokerUnavailable, StateError
from gpulease.protocol.wire import pack
from gpulease.simulator.activate import directory_from_environment
from gpulease.system import places
from gpulease.system.identity import peer

NAMED = 1.0  # seconds for whoever has the name to listen at it
ENDING = 30.0  # seconds for a broker that is replaced to end


class Home:
    def __init__(self, place: places.Place, whose: int | None = None, group: int | None = None) -> None:
        """`whose` the state is, if not this user's; `group`: whose members alone may come in."""
        self.place, self._whose, self._group = place, whose, group
        machine = directory_from_environment(os.environ)
        self.machine = None if machine is None else str(machine)  # a simulated one
        self._locks: dict[str, int] = {}  # by path: the descriptor that has it
        self._name: socket.socket | None = None
        self._socket: tuple[int, int] | None = None

    def prepare(self) -> None:
        places.prepare_both(self.place, self._whose)

    def enter(self) -> None:
        """Make the folders and become the only broker in them, or say who is."""
        self.prepare()
        paths = [os.path.join(folder, places.LOCK) for folder in (self.place.state, self.place.run)]
        try:
            self._take_name()
            for path in paths:
                self._lock(path)
        except OSError as trouble:
            raise _cannot(self.place, trouble) from None
        for path in set(self._locks) - set(paths):  # of a run folder that is gone
            os.close(self._locks.pop(path))

    def replace(self) -> None:
        """As `enter`; a broker that runs ends first, as by `gpulease stop`."""
        self.prepare()
        starting = os.open(os.path.join(self.place.run, "start.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + ENDING
        try:
            while True:
                with contextlib.suppress(BlockingIOError):  # a client is starting one: it is ended next
                    fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    return self.enter()
                except BrokerUnavailable as trouble:
                    if "serving" not in trouble.fields:
                        raise
                if time.monotonic() > until:
                    what = f"The broker in {self.place.run!r} was asked to stop and did not end."
                    raise BrokerUnavailable(what, "If it hangs, kill it.")
                _stop(self.place)
                time.sleep(0.02)
        finally:
            os.close(starting)

    @property
    def descriptors(self) -> list[int]:
        """Of the locks: a process that inherits them keeps others out too."""
        return [*self._locks.values(), *([] if self._name is None else [self._name.fileno()])]

    def listen(self) -> socket.socket:
        """Where clients connect; written into the lock's file, for clients that look in another run folder."""
        place = self.place
        try:
            places.write_kind(place.run, place.kind)
            listener = _listen(places.socket_path(place.run), 0o600 if place.kind == "own" else 0o666, self._group)
            descriptor = self._locks[place.kept(places.LOCK)]
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, os.fsencode(place.run), 0)
        except OSError as trouble:
            raise _cannot(place, trouble) from None
        self._socket = _inode(places.socket_path(place.run))
        return listener

    @property
    def whole(self) -> bool:
        """Whether the next client and the next broker find what they look for."""
        locked = all(_inode(path) == _inode(descriptor) for path, descriptor in self._locks.items())
        return locked and _inode(places.socket_path(self.place.run)) == self._socket

    @property
    def deserted(self) -> bool:
        """Whether the devices themselves are gone: `gpulease simulate` has ended."""
        return self.machine is not None and not os.path.exists(self.machine)

    def put_back(self) -> socket.socket:
        """Everything but the database. After a logout there may be another run folder."""
        if self.place.kind == "own":
            self.place = places.own(os.environ)
        self.enter()
        return self.listen()

    def leave(self) -> None:
        """A place without a socket holds nothing: others may grant."""
        if _inode(places.socket_path(self.place.run)) == self._socket:
            with contextlib.suppress(OSError):
                os.unlink(places.socket_path(self.place.run))

    def close(self) -> None:
        for descriptor in self._locks.values():
            os.close(descriptor)
        if self._name is not None:
            self._name.close()

    # ---------------------------------------------------------------- locks

    def _lock(self, path: str) -> None:
        held = self._locks.get(path)
        if held is not None and _inode(path) == _inode(held):
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise _serving(self.place) from None
        if held is not None:
            os.close(held)
        self._locks[path] = descriptor

    def _take_name(self) -> None:
        """A stranger who has it keeps nobody out: then the files are the only locks."""
        if self._name is not None:
            return
        name, until = lock_name(self.place.state), time.monotonic() + NAMED
        while True:
            taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                taken.bind(name)
                taken.listen(1024)
                self._name = taken
                return
            except OSError:
                taken.close()
            holder = _uid_at(name)
            if holder in (0, os.geteuid()):
                raise _serving(self.place)
            if holder is not None or time.monotonic() > until:
                return
            time.sleep(0.01)


def _stop(place: places.Place) -> None:
    """Tell the process that listens there, if it can be trusted; its connection ends with it."""
    for folder in filter(None, (place.run, places.moved_to(place))):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
            asking.settimeout(ENDING)
            with contextlib.suppress(OSError):
                asking.connect(places.socket_path(folder))
                if places.is_broker_of(folder, peer(asking)[1]):
                    asking.sendall(pack({"v": PROTOCOL, "do": "stop"}))
                    while asking.recv(4096):
                        pass


def lock_name(state: str) -> str:
    """By user, file system and path: a folder that is made again has the same, and one in a container another."""
    folder = hashlib.sha256(os.fsencode(os.path.realpath(state))).hexdigest()
    return f"\0gpulease/{os.geteuid()}/{os.stat(state).st_dev}/{folder[:40]}"


def _uid_at(name: str) -> int | None:
    """The process that listens at that name, as the kernel says; None if there is none that can be asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
            return peer(asking)[1]
        except OSError:
            return None


def _serving(place: places.Place) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"A broker already serves {place.run!r}.", "Use it, or end it with `gpulease stop`.", serving=1
    )


def _cannot(place: places.Place, trouble: OSError) -> StateError:
    what = f"{trouble.strerror}: {trouble.filename}" if trouble.filename else trouble.strerror
    return StateError(f"The broker cannot start in {place.state!r}: {what}.")


def _listen(path: str, mode: int, group: int | None) -> socket.socket:
    """Bound under another name and moved into place: a socket that can be seen can be used."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    fresh = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)  # of a broker that had our pid and died in this moment
    listener.bind(fresh)
    if group is not None:
        os.chown(fresh, -1, group)
    os.chmod(fresh, mode if group is None else 0o660)
    listener.listen(1024)
    listener.setblocking(False)
    os.rename(fresh, path)
    return listener


def _inode(path: str | int) -> tuple[int, int] | None:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino
