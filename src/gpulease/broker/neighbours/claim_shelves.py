"""The broker's side of the keeper of its claims (broker/neighbours/claim_keeper.py): started at the first need, and
found again by the next broker at a socket in the state folder, where no other user can come.

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

from gpulease.broker.neighbours.claim_keeper import END, TEXT, Shelf, claim_on
from gpulease.errors import in_words
from gpulease.system import identity

PATIENCE = 5.0  # seconds for the keeper of a former broker to answer, before anybody is served
LATER = 0.2  # seconds for the same, after that
PAUSE = 5.0  # seconds before it is asked again, and before another is started if several ended soon after their start
MAX_SHORT = 3  # of those, one after the other
NULL = subprocess.DEVNULL
PACKETS = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
UNKNOWN = b"[[null, null, null]]"  # leases of which nobody but a broker knows whether they are over
NOBODY = (FileNotFoundError, ConnectionRefusedError, PermissionError)


class Shelves:
    def __init__(
        self, poll: select.epoll, file: str, machine: str, lost: Callable[[], None], log: Callable[[str], None]
    ) -> None:
        """`lost` is called when what was on the shelves must be put there again, or may be found."""
        self._poll, self._file, self._machine, self._lost, self._log = poll, file, machine, lost, log
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._shelves: dict[str, Shelf] = {}
        self._full: set[str] = set()  # with a claim on it
        self._patience = PATIENCE  # with the keeper of a former broker; 0.0 if it was found, or is not there
        self._began = 0.0
        self._short = 0  # how many ended soon after their start, one after the other
        self._again = 0.0  # when a keeper may be started
        self.trouble: str | None = None

    # ---------------------------------------------------------------- the keeper

    def find(self) -> dict[str, socket.socket]:
        """The claims of the broker before this one. While its keeper does not answer, no other is started."""
        if not self._patience:
            return {}
        link = socket.socket(socket.AF_UNIX, PACKETS)
        link.settimeout(self._patience)
        try:
            self._at(link.connect)
            if identity.peer(link)[1] != os.geteuid():
                raise PermissionError
            self._get_shelves(link)
        except (OSError, ValueError) as trouble:
            link.close()
            self._clear()
            self._patience = 0.0 if isinstance(trouble, NOBODY) else LATER
            if self._patience:
                self._fail("the process that held them for the last broker does not answer")
            return {}
        link.setblocking(True)
        self._patience = 0.0
        self._use(link)
        claims = {uuid: found for uuid, shelf in self._shelves.items() if (found := claim_on(shelf)) is not None}
        self._full = set(claims)
        return claims

    def _get_shelves(self, link: socket.socket) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(link, 256, 2)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)  # a job that had it would hold the claim too
            if len(descriptors) != 2:
                break
            put, kept = (socket.socket(fileno=descriptor) for descriptor in descriptors)
            self._shelves[data.decode()] = (put, kept)
            for end in (put, kept):
                end.setblocking(False)
        if data != END:
            raise ConnectionResetError

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, PACKETS)
        try:
            with theirs, socket.socket(socket.AF_UNIX, PACKETS) as listener:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._file)
                self._at(listener.bind)
                os.chmod(self._file, 0o600)
                listener.listen(8)
                given = (listener.fileno(), theirs.fileno())
                module = "gpulease.broker.neighbours.claim_keeper"
                self._process = subprocess.Popen(  # who reads what the broker says must see its end
                    [sys.executable, "-P", "-m", module, *map(str, given), self._machine],
                    stdin=NULL, stdout=NULL, stderr=NULL, cwd="/", pass_fds=given, start_new_session=True,
                )  # fmt: skip
        except OSError:
            ours.close()
            raise
        self._use(ours)

    def _at(self, call: Callable[[str], None]) -> None:
        """A path of any length: a socket's is short."""
        folder = os.open(os.path.dirname(self._file), os.O_PATH | os.O_CLOEXEC)
        try:
            call(f"/proc/self/fd/{folder}/{os.path.basename(self._file)}")
        finally:
            os.close(folder)

    def keep(self) -> None:
        """Somebody may have removed the socket by which the next broker finds the keeper: then it needs another."""
        if self._link is not None and os.path.isdir(os.path.dirname(self._file)) and not os.path.exists(self._file):
            self._leave()
            self._lost()

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
        self._leave()
        self._short = self._short + 1 if time.monotonic() - self._began < PAUSE else 0
        if self._short > MAX_SHORT:
            self._fail("the process that holds them if the broker is killed ended")
        else:
            self._lost()

    def _fail(self, why: str) -> None:
        self._again = time.monotonic() + PAUSE
        if self.trouble is None:
            self.trouble = f"claims would not outlast a kill of the broker: {why}"
            self._log(self.trouble)

    def _leave(self) -> None:
        """What it may still have is taken out: else that would outlast our leases."""
        for uuid in list(self._full):
            self.clear(uuid)
        self.close()

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
        if self._again or os.environ.get("SLURM_JOB_ID"):
            return  # what Slurm allocated is nobody else's, and ends with the job
        try:
            shelf = self._shelf(uuid)
            socket.send_fds(shelf[0], [text if len(text) <= TEXT else UNKNOWN], [claim.fileno()])
            self.clear(uuid)
            self._full.add(uuid)
        except ConnectionError:
            self.ready()
        except OSError as trouble:
            self._fail(in_words(trouble))
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
            with contextlib.suppress(BlockingIOError):  # a keeper that was left alone gave it back
                self._shelves[uuid][1].recv(1)
