"""The broker's side of the keeper of its claims (broker/neighbours/claim_keeper.py): started at the first need, and
found again by the next broker by a name that stands in the state folder.

Where there is no keeper the broker alone holds its claims; `trouble` says why, and it is tried again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from gpulease.broker.neighbours.claim_keeper import END, TEXT, Shelf
from gpulease.errors import in_words
from gpulease.system import identity

PATIENCE = 5.0  # seconds for the keeper of a former broker to answer
PAUSE = 5.0  # seconds before another is started, if several ended soon after their start
MOST_SHORT = 3  # of those, one after the other
NULL = subprocess.DEVNULL
PACKETS = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC


class Shelves:
    def __init__(
        self, poll: select.epoll, file: str, machine: str, lost: Callable[[], None], log: Callable[[str], None]
    ) -> None:
        """`lost` is called when the keeper is gone and what was on the shelves must be put there again."""
        self._poll, self._file, self._machine, self._lost, self._log = poll, file, machine, lost, log
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._shelves: dict[str, Shelf] = {}
        self._full: set[str] = set()  # with a claim on it
        self._name = ""  # of the keeper
        self._began = 0.0
        self._short = 0  # how many ended soon after their start, one after the other
        self._again = 0.0  # when a keeper may be started
        self.trouble: str | None = None

    # ---------------------------------------------------------------- the keeper

    def find(self) -> dict[str, socket.socket]:
        """The claims of the broker before this one, if its keeper is there."""
        link = socket.socket(socket.AF_UNIX, PACKETS)
        try:
            with open(self._file, encoding="ascii") as file:
                self._name = file.read(100)
            link.settimeout(PATIENCE)
            link.connect(f"\0{self._name}")
            if identity.peer(link)[1] != os.geteuid():
                raise PermissionError
            while True:
                data, descriptors, _, _ = socket.recv_fds(link, 256, 2)
                if len(descriptors) != 2:
                    break
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)  # a job that had it would hold the claim too
                put, kept = (socket.socket(fileno=descriptor) for descriptor in descriptors)
                self._shelves[data.decode()] = (put, kept)
            if data != END:
                raise ConnectionResetError
        except (OSError, ValueError):
            link.close()
            self._clear()
            return {}
        link.setblocking(True)
        self._use(link)
        claims = {uuid: found for uuid, shelf in self._shelves.items() if (found := _on(shelf)) is not None}
        self._full = set(claims)
        return claims

    def _start(self) -> None:
        name = f"gpulease/keeper/{os.urandom(16).hex()}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, PACKETS)
        with theirs, socket.socket(socket.AF_UNIX, PACKETS) as listener:
            listener.bind(f"\0{name}")
            listener.listen(8)
            given = (listener.fileno(), theirs.fileno())
            words = [
                sys.executable,
                "-P",
                "-m",
                "gpulease.broker.neighbours.claim_keeper",
                *map(str, given),
                self._machine,
            ]
            try:
                self._process = subprocess.Popen(  # who reads what the broker says must see its end
                    words, stdin=NULL, stdout=NULL, stderr=NULL, cwd="/", pass_fds=given, start_new_session=True
                )
            except OSError:
                ours.close()
                raise
        self._use(ours)
        self._name = name
        self._write()

    def keep(self) -> None:
        """Somebody may have removed the file by which the next broker finds the keeper."""
        if self._link is not None and not os.path.exists(self._file):
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        fresh = f"{self._file}.new"
        with open(fresh, "w", encoding="ascii") as file:
            file.write(self._name)
        os.replace(fresh, self._file)

    def _use(self, link: socket.socket) -> None:
        self._link, self._began = link, time.monotonic()
        self._poll.register(link.fileno(), select.EPOLLIN)

    @property
    def due(self) -> float | None:
        return self._again or None

    def overdue(self, now: float) -> None:
        if self._again and self._again <= now:
            self._again = 0.0
            self._lost()

    def owns(self, descriptor: int) -> bool:
        return self._link is not None and self._link.fileno() == descriptor

    def ready(self) -> None:
        """It never says anything: it has ended."""
        self._short = self._short + 1 if time.monotonic() - self._began < PAUSE else 0
        pause = PAUSE if self._short > MOST_SHORT else 0.0
        self._fail("the process that holds them if the broker is killed ended", pause)
        if not pause:
            self._lost()

    def _fail(self, why: str, pause: float) -> None:
        self.close()
        self._again = time.monotonic() + pause if pause else 0.0
        if pause and self.trouble is None:
            self.trouble = f"claims would not outlast a kill of the broker: {why}"
            self._log(self.trouble)

    def close(self) -> None:
        if self._link is not None:
            self._poll.unregister(self._link.fileno())
            self._link.close()
            self._link = None
        self._clear()

    def _clear(self) -> None:
        for shelf in self._shelves.values():
            for end in shelf:
                end.close()
        self._shelves.clear()
        self._full.clear()

    # ---------------------------------------------------------------- the shelves

    def put(self, uuid: str, claim: socket.socket, text: bytes) -> None:
        """Before the one that is there is taken out: at no moment there is none."""
        if self._again or os.environ.get(
            "SLURM_JOB_ID"
        ):  # what Slurm allocated is nobody else's, and ends with the job
            return
        try:
            shelf = self._shelf(uuid)
            socket.send_fds(shelf[0], [text], [claim.fileno()])
            self.clear(uuid)
            self._full.add(uuid)
        except ConnectionError:
            self.ready()
        except OSError as trouble:
            self._fail(in_words(trouble), PAUSE)
        else:
            self.trouble = None

    def _shelf(self, uuid: str) -> Shelf:
        if self._link is None:
            self._start()
        if uuid not in self._shelves:
            assert self._link is not None
            put, kept = socket.socketpair(socket.AF_UNIX, PACKETS | socket.SOCK_NONBLOCK)
            socket.send_fds(self._link, [uuid.encode()], [put.fileno(), kept.fileno()])
            self._shelves[uuid] = (put, kept)
        return self._shelves[uuid]

    def clear(self, uuid: str) -> None:
        """Take out one. A descriptor that is read without room for it is closed by the kernel."""
        if uuid in self._full:
            self._full.discard(uuid)
            self._shelves[uuid][1].recv(TEXT)


def _on(shelf: Shelf) -> socket.socket | None:
    """A copy of what is on it. `socket.recv_fds` would take it off: it does not pass flags on."""
    for end in shelf:
        end.setblocking(False)
    try:
        _, passed, _, _ = shelf[1].recvmsg(TEXT, socket.CMSG_LEN(4), socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return None
    return socket.socket(fileno=int.from_bytes(passed[0][2], sys.byteorder)) if passed else None
