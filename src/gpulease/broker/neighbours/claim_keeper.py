"""The process that holds a broker's claims with it, and goes on holding them when the broker is killed.

`python -m gpulease.broker.neighbours.claim_keeper LISTENER LINK [MACHINE]`: both are descriptors. For each device it
has a shelf, a pair of sockets: the broker puts the claim's descriptor into the one, and it stays in the queue of the
other until the broker takes it out there. So this process need not wake up for a lease to begin or to end.

When the link ends the broker is gone. Then each claim stays until its leases are over, as the broker wrote beside it:
their owners have ended, or their time has. The next broker comes by the listener, gets the shelves, and goes on. A
keeper that has neither a broker nor a claim ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from select import POLLIN, poll

from gpulease.system.identity import is_gone, peer, pidfd

TEXT = 1 << 16  # bytes beside a claim
END = b"."  # of the shelves that the next broker gets
UNDECIDED = 120.0  # seconds for a client to come back whose lease was being granted when the broker was killed
LOOK = 5.0  # seconds between looks, beside what wakes

Shelf = tuple[socket.socket, socket.socket]  # where it is put in, and where it stays
Lease = tuple[int | None, int | None, float | None]  # pid and start of its owner, and when it ends, since boot
Claim = tuple[bytes, int]  # what is written beside it, and its descriptor


def main() -> int:
    listener, link = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    machine = sys.argv[3] if len(sys.argv) > 3 else ""
    shelves: dict[str, Shelf] = {}
    while True:
        serve(link, shelves)
        link.close()
        claims = {uuid: claim for uuid, shelf in shelves.items() if (claim := take_down(shelf)) is not None}
        next_link = wait(listener, claims, machine)
        if next_link is None:
            return 0
        link = next_link
        with contextlib.suppress(OSError):  # it was killed too: its end is seen next
            for uuid, (text, descriptor) in claims.items():
                socket.send_fds(shelves[uuid][0], [text], [descriptor])
                os.close(descriptor)
            for uuid, (put, kept) in shelves.items():
                socket.send_fds(link, [uuid.encode()], [put.fileno(), kept.fileno()])
            link.send(END)


def serve(link: socket.socket, shelves: dict[str, Shelf]) -> None:
    """Until the broker is gone."""
    with contextlib.suppress(OSError):
        while True:
            data, descriptors, _, _ = socket.recv_fds(link, 256, 2)
            if len(descriptors) != 2:
                return
            put, kept = (socket.socket(fileno=descriptor) for descriptor in descriptors)
            shelves[data.decode()] = (put, kept)


def take_down(shelf: Shelf) -> Claim | None:
    """What is on it. A broker that was killed while it changed the text left two, of which the later counts."""
    found: Claim | None = None
    shelf[1].setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            text, descriptors, _, _ = socket.recv_fds(shelf[1], TEXT, 1)
            if not descriptors:
                break
            if found is not None:
                os.close(found[1])
            found = text, descriptors[0]
    return found


def wait(listener: socket.socket, claims: dict[str, Claim], machine: str) -> socket.socket | None:
    """For the next broker: its link; None when no claim is left to hold."""
    orphaned = time.clock_gettime(time.CLOCK_BOOTTIME)
    while True:
        woken, now = poll(), time.clock_gettime(time.CLOCK_BOOTTIME)
        owners: list[int] = []
        nearest = now + LOOK
        for uuid, (text, descriptor) in list(claims.items()):
            leases: list[Lease] | None = json.loads(text)
            if leases is None:  # nobody was told of it yet
                leases = [(None, None, orphaned + UNDECIDED)]
            left = [lease for lease in leases if not is_over(lease, now)]
            if not left:
                os.close(descriptor)
                del claims[uuid]
            for pid, _, until in left:
                nearest = min(nearest, until or nearest)
                if pid is not None and (owner := pidfd(pid)) is not None:
                    owners.append(owner)
                    woken.register(owner, POLLIN)
        if not claims or (machine and not os.path.exists(machine)):
            return None
        woken.register(listener, POLLIN)
        ready = woken.poll(max(0.0, nearest - now) * 1000 + 1)
        for owner in owners:
            os.close(owner)
        if (listener.fileno(), POLLIN) in ready:
            came, _ = listener.accept()
            if peer(came)[1] == os.geteuid():
                return came
            came.close()


def is_over(lease: Lease, now: float) -> bool:
    """What cannot be known counts as held: a job that is being started has neither an owner nor an end."""
    pid, began, until = lease
    if until is not None and until <= now:
        return True
    try:
        return pid is not None and is_gone(pid, began)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
