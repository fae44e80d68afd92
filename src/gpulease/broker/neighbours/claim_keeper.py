"""The process that holds a broker's claims with it, and goes on holding them when the broker is killed.

`python -m gpulease.broker.neighbours.claim_keeper LISTENER LINK [MACHINE]`: both are descriptors. For each device it
has a shelf, a pair of sockets: the broker puts the claim's descriptor into the one, and it stays in the queue of the
other until the broker takes it out there. So this process need not wake up for a lease to begin or to end.

When the link ends the broker is gone. Then each claim stays until its leases are over, as the broker wrote beside it:
their owners have ended, or their time has. The next broker comes by the listener, gets the shelves, and goes on. A
keeper that has neither a broker nor a claim ends. A shortage of anything frees no claim.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import termios
import time
from select import POLLIN, poll

from gpulease.system import untrusted
from gpulease.system.identity import is_gone, peer, pidfd

TEXT = 1 << 16  # bytes beside a claim at most
END = b"."  # of the shelves that the next broker gets
UNDECIDED = 120.0  # seconds for a client to come back whose lease was being granted when the broker was killed
CHECK_INTERVAL = 5.0  # seconds between looks, beside what wakes
SHORT = 0.1  # seconds before another attempt, if something was short
PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC

Shelf = tuple[socket.socket, socket.socket]  # where it is put in, and where it stays
Lease = tuple[int | None, int | None, float | None]  # pid and start of its owner, and when it ends, since boot


def main() -> int:
    listener, link = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    machine = sys.argv[3] if len(sys.argv) > 3 else ""
    shelves: dict[str, Shelf] = {}
    while True:
        serve(link, shelves)
        link.close()
        next_link = wait(listener, shelves, machine)
        if next_link is None:
            return 0
        link = next_link
        with contextlib.suppress(OSError):  # it was killed too: its end is seen next
            for uuid, shelf in shelves.items():
                socket.send_fds(link, [uuid.encode()], [end.fileno() for end in shelf])
            link.send(END)


def serve(link: socket.socket, shelves: dict[str, Shelf]) -> None:
    """Until the broker is gone, or has a shelf that this keeper cannot hold: then it tries another keeper."""
    with contextlib.suppress(OSError):
        while True:
            data, descriptors, _, _ = socket.recv_fds(link, 256, 2)
            if len(descriptors) != 2:
                return
            put, kept = (socket.socket(fileno=descriptor) for descriptor in descriptors)
            shelves[data.decode()] = (put, kept)


def text_on(shelf: Shelf) -> bytes | None:
    """Beside the claim there. A broker that was killed while it changed the text left two: the later counts."""
    try:
        while True:
            text = shelf[1].recv(4 * TEXT, PEEK)
            if struct.unpack("i", fcntl.ioctl(shelf[1], termios.FIONREAD, bytes(4)))[0] <= len(text):
                return text
            shelf[1].recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None


def claim_on(shelf: Shelf) -> socket.socket | None:
    """A copy of its descriptor. `socket.recv_fds` would take it off: it does not pass flags on."""
    try:
        _, passed, _, _ = shelf[1].recvmsg(1, socket.CMSG_LEN(4), PEEK)
    except BlockingIOError:
        return None
    return socket.socket(fileno=int.from_bytes(passed[0][2], sys.byteorder)) if passed else None


def wait(listener: socket.socket, shelves: dict[str, Shelf], machine: str) -> socket.socket | None:
    """For the next broker: its link; None when no claim is left to hold."""
    orphaned = time.clock_gettime(time.CLOCK_BOOTTIME)
    while True:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        left = [lease for shelf in shelves.values() for lease in remaining_on(shelf, orphaned, now)]
        if not left or (machine and not os.path.exists(machine)):
            return None
        until = min([now + CHECK_INTERVAL, *(until for _, _, until in left if until is not None)])
        owners = [owner for pid, _, _ in left if (owner := _watched(pid)) is not None]
        woken, came = poll(), None
        for descriptor in (listener.fileno(), *owners):
            woken.register(descriptor, POLLIN)
        try:
            if (listener.fileno(), POLLIN) in woken.poll(max(0.0, until - now) * 1000 + 1):
                came, _ = listener.accept()
        except OSError:
            time.sleep(SHORT)
        for owner in owners:
            os.close(owner)
        if came is not None and peer(came)[1] == os.geteuid():
            return came


def remaining_on(shelf: Shelf, orphaned: float, now: float) -> list[Lease]:
    """The leases of the claim there. If they are over, it is given back."""
    try:
        text = text_on(shelf)
        if text is None:
            return []
        leases = json.loads(text) or [(None, None, orphaned + UNDECIDED)]  # nobody was told of it yet
        left = [lease for lease in leases if not has_ended(lease, now)]
        if not left:
            if (claim := claim_on(shelf)) is not None:
                untrusted.close_listener(claim)
            shelf[1].recv(1)
        return left
    except OSError:
        return [(None, None, None)]


def _watched(pid: int | None) -> int | None:
    try:
        return None if pid is None else pidfd(pid)
    except OSError:
        return None


def has_ended(lease: Lease, now: float) -> bool:
    """If the keeper cannot tell, it treats the device as held: a job that starts has neither an owner nor an end."""
    pid, began, until = lease
    if until is not None and until <= now:
        return True
    try:
        return pid is not None and is_gone(pid, began)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
