"""Claims: for each device a name that one broker of this machine has at a time, of any user; and which broker that is.

A name is that of an abstract Unix socket. The kernel gives it to one process, says who that is, and takes it back
when nobody has the socket's descriptor any more: nothing is stale, and nobody needs a permission. It belongs to the
network namespace, so a container with a network of its own sees none of the others' claims.

What it says is a line of JSON. It is bounded, cleaned, and only ever shown.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple

from gpulease.system import untrusted
from gpulease.system.identity import peer

CLAIM, BROKER = "\0gpulease/claim", "\0gpulease/broker"
LONGEST = 100  # bytes; a name holds 107
BACKLOG = 64  # others who may ask at the same time who holds it
STREAM = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
# Of linux/netlink.h, sock_diag.h and unix_diag.h.
SOCK_DIAG, BY_FAMILY, DUMP, DONE, ERROR = 4, 20, 0x301, 3, 2
ALL_STATES, LISTENS, UNCONNECTED = 0xFFFFFFFF, 10, 7
SHOW_NAME_AND_USER = 0x41
NAME, USER = 0, 7  # attributes
MAX_READ = 16  # pieces at a time, of about 200 sockets each: a user may have very many
LISTED = 1.0  # seconds until more of them are read


class ClaimHolder(NamedTuple):
    """Who has a name, by the kernel's word."""

    uid: int | None  # None: it cannot be told
    pid: int | None = None


def machine_of(folder: str | os.PathLike[str] | None) -> str:
    """What the devices belong to: this machine, or one simulated machine of very many."""
    if folder is None:
        return ""
    seen = os.stat(folder)
    return f"{seen.st_dev:x}-{seen.st_ino:x}"


def claim_name(machine: str, uuid: str, system: bool = False) -> str:
    """`system`: a second name, of a system broker that ignores the users' claims and is respected by them."""
    name = f"{CLAIM}{'-system' * system}/{machine}/{uuid}"
    return name if len(name.encode()) <= LONGEST else f"{CLAIM}/{sha256(name.encode()).hexdigest()}"


def take(name: str) -> socket.socket | None:
    """The name, until the last copy of this socket is closed; None when another has it."""
    taken = socket.socket(socket.AF_UNIX, STREAM)
    try:
        taken.bind(name)
        taken.listen(BACKLOG)
    except OSError as trouble:
        taken.close()
        if trouble.errno != errno.EADDRINUSE:
            raise
        return None
    return taken


def ask(name: str) -> tuple[socket.socket | None, ClaimHolder] | None:
    """Who listens at a name, with a connection that ends with the claim at the latest; None when nobody does."""
    asking = socket.socket(socket.AF_UNIX, STREAM)
    try:
        asking.connect(name)
        pid, uid, _ = peer(asking)
        return asking, ClaimHolder(uid, pid)
    except ConnectionRefusedError:
        asking.close()
        return None
    except OSError:  # very many ask already
        asking.close()
        return None, ClaimHolder(user_at(name))


def take_or_ask(name: str) -> tuple[socket.socket | None, tuple[socket.socket | None, ClaimHolder] | None]:
    """The name, or who has it."""
    for _ in range(2):  # it may be given back in between
        taken = take(name)
        found = None if taken is not None else ask(name)
        if taken is not None or found is not None:
            return taken, found
    return None, (None, ClaimHolder(user_at(name)))  # it is bound, and nobody listens


class _Users:
    """Whose claims' names are, also of sockets that do not listen. A long list is read some at a time."""

    def __init__(self) -> None:
        self._users: dict[str, int] = {}  # as they were when the last list was read
        self._next: dict[str, int] = {}
        self._pieces: Iterator[None] | None = None
        self._read = float("-inf")

    def at(self, name: str) -> int | None:
        if time.monotonic() - self._read >= LISTED:
            self._read = time.monotonic()
            if self._pieces is None:
                self._next = {}
                self._pieces = _pieces(CLAIM, self._next)
            if sum(1 for _ in islice(self._pieces, MAX_READ)) < MAX_READ:
                self._users, self._pieces = self._next, None
        return self._users.get(name)


user_at = _Users().at


def sockets(beginning: str) -> dict[str, int]:
    """The abstract names that begin so, and whose each is, as the kernel lists all sockets."""
    found: dict[str, int] = {}
    for _ in _pieces(beginning, found):
        pass
    return found


def _pieces(beginning: str, found: dict[str, int]) -> Iterator[None]:
    """A socket that was accepted has the name of the one that listens, and for a while no user of its own."""
    wanted = beginning.encode()
    asked = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, ALL_STATES, 0, SHOW_NAME_AND_USER, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.send(struct.pack("=IHHII", 16 + len(asked), BY_FAMILY, DUMP, 1, 0) + asked)
            while True:
                data, at = kernel.recv(1 << 16), 0
                while at + 16 <= len(data):
                    length, kind = struct.unpack_from("=IH", data, at)
                    if kind in (DONE, ERROR) or length < 16:
                        return
                    _, type, state = struct.unpack_from("=BBB", data, at + 16)
                    attributes = _attributes(data[at + 32 : at + length])
                    name, user = attributes.get(NAME, b""), attributes.get(USER)
                    if name.startswith(wanted) and user is not None and type == socket.SOCK_STREAM:
                        text, uid = name.decode(errors="replace"), int(struct.unpack("=I", user)[0])
                        if state in (LISTENS, UNCONNECTED) or text not in found:
                            found[text] = uid
                    at += (length + 3) & ~3
                yield
    except (OSError, struct.error):
        return


def _attributes(data: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        found[kind] = data[at + 4 : at + length]
        at += max(4, (length + 3) & ~3)
    return found


def announce(machine: str) -> socket.socket:
    """For `doctor`: a broker for these devices is here."""
    here = socket.socket(socket.AF_UNIX, STREAM)
    here.bind(f"{BROKER}/{machine}/{os.getpid()}-{os.urandom(4).hex()}")
    return here


def brokers(machine: str) -> list[tuple[int, int]]:
    """User and pid of each broker here; the pid is what it says of itself."""
    beginning = f"{BROKER}/{machine}/"
    found = []
    for name, uid in sockets(beginning).items():
        pid = name.removeprefix(beginning).partition("-")[0]
        if pid.isdecimal() and len(pid) < 10:
            found.append((uid, int(pid)))
    return sorted(found)


# -------------------------------------------------------------------- who holds one, in words

LONGEST_TOLD, LETTERS = 1024, 100  # bytes of what a holder says, and characters of a text in it
TEXTS = ("broker", "kind", "user", "note")
PATIENCE = 0.1  # seconds for all holders to say it, where no broker has asked them before


def say(**reply: str | float | None) -> bytes:
    line = json.dumps(reply).encode() + b"\n"
    return line if len(line) <= LONGEST_TOLD else say(**{**reply, "note": None})


def read(line: bytes) -> dict[str, Any]:
    """What can be shown of it."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(reply, dict):
        return {}
    since = reply.get("since")
    sound = isinstance(since, (int, float)) and 0 < since < 1e11
    return {**{name: _text(reply.get(name)) for name in TEXTS}, "since": since if sound else None}


def _text(reply: object) -> str | None:
    if not isinstance(reply, str):
        return None
    return "".join(letter for letter in reply[:LETTERS] if letter.isprintable()) or None


def whose(holder: ClaimHolder, name_of: Callable[[int], str]) -> str:
    return "somebody" if holder.uid is None else name_of(holder.uid)


def through(user: str, reply: dict[str, Any]) -> str:
    """To stand behind the word `held`."""
    own, note = f"{user}'s own gpulease", f": {reply['note']}" if reply.get("note") else ""
    kinds = {"system": f"the system's gpulease, of {user}", "shared": f"{user}'s shared gpulease"}
    return f"through {kinds.get(reply.get('broker') or '', own)}{note}"


def shown(holder: ClaimHolder, user: str, reply: dict[str, Any]) -> dict[str, Any]:
    """A `holder` of the status document."""
    rest = {name: reply.get(name) for name in ("broker", "kind", "since", "note")}
    return {"user": user, "uid": holder.uid, "pid": holder.pid, **rest, "for": reply.get("user")}


def holders(machine: str, devices: Iterable[str]) -> dict[str, tuple[ClaimHolder, dict[str, Any]]]:
    """Of these devices, for a client whose user has no broker yet."""
    found: dict[str, tuple[ClaimHolder, dict[str, Any]]] = {}
    until = time.monotonic() + PATIENCE
    for uuid in devices:
        for system in (False, True):
            asked = ask(claim_name(machine, uuid, system))
            if asked is None or uuid in found:
                continue
            connected, holder = asked
            found[uuid] = holder, {}
            if connected is not None:
                connected.settimeout(max(0.001, until - time.monotonic()))
                with contextlib.suppress(OSError):
                    found[uuid] = holder, read(untrusted.receive(connected, LONGEST_TOLD))
                untrusted.close(connected)
    return found
