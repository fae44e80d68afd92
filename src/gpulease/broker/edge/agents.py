"""The broker's side of the users' agents: one for each user who has jobs, started at need, let go when idle.

Orders are sent as they come. What an agent says is believed about runs that it was given, and about nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from gpulease.broker import trees
from gpulease.broker.core.events import AgentLost, Event, Forced, Found, Launched, LaunchFailed, TreeSeen
from gpulease.broker.core.instructions import (
    CancelLaunch,
    FindRun,
    ForceEnd,
    Launch,
    Notify,
    ReadEnd,
    RemoveLogs,
    RemoveNotes,
    ReplaceAgent,
    SignalTree,
)
from gpulease.broker.edge.launcher import AccountChecks, Refusal, valid_for
from gpulease.broker.orders import LARGEST, LARGEST_EVENT, order, read_event, read_process
from gpulease.errors import GpuleaseError
from gpulease.protocol.wire import Message, Unpacker, pack
from gpulease.system import identity, untrusted

READ = 1 << 11  # bytes of one agent in a round: its user may speak in its place, and must not keep the others waiting
MAX_UNREAD = 32 << 20  # bytes of orders that an agent may leave unread
IDLE = 60.0  # seconds that an agent without a run is kept
FRESH = 1.0  # seconds
Run = tuple[int, int]


class AgentLink:
    """The connection to one agent."""

    def __init__(self, uid: int, ours: socket.socket) -> None:
        self.uid, self.socket = uid, ours
        self.unpacker = Unpacker(LARGEST_EVENT)
        self.outgoing = bytearray()
        self.runs: set[Run] = set()
        self.launching: set[Run] = set()
        self.shells: dict[Run, tuple[int, int]] = {}  # pid and start time
        self.process: tuple[int, int] | None = None  # the agent's own, as it says
        self.gone: set[Run] = set()  # whose shell had ended at the last look, and of whom the agent said nothing
        self.environment = ""  # the key of the one that the agent has
        self.refused: Refusal | None = None  # why there is no agent, and whether that may pass
        self.checked = time.monotonic()  # when its user's account was found in order, as it is before it is started
        self.held: list[Launch] = []  # while it is asked for
        self.end_only = False  # when the agent was started the account was not in order
        self.used = time.monotonic()


class Agents:
    def __init__(
        self,
        poll: select.epoll,
        start: Callable[[int, socket.socket], None],
        send: Callable[[int, int, int, int], None],
        folder: Callable[[int], str],
        happened: Callable[[Event], None],
        log: Callable[[str], None],
        check: Callable[[int, socket.socket], None] | None = None,
    ) -> None:
        """`start` gives the other end of a socket pair to an agent of a user, or raises OSError.

        `send` sends a signal (user, pid, start time, number) where the user's own agent does not. `check` has a user's
        account checked again (launcher.py).
        """
        self._poll, self._start, self._send_signal, self._folder = poll, start, send, folder
        self._happened, self._log = happened, log
        self._checks = None if check is None else AccountChecks(poll, check)
        self._valid = valid_for(os.environ)
        self._links: dict[int, AgentLink] = {}
        self._census: tuple[float, trees.Census] | None = None  # for all that are forced together
        self._said: dict[int, str] = {}  # by user: why there was no agent the last time
        self._by_descriptor: dict[int, AgentLink] = {}

    def send_order(self, one: Launch | ReadEnd | FindRun | SignalTree) -> None:
        run = (one.job.id, one.job.run)
        try:
            link = self._link(one.job.uid)
        except OSError as trouble:
            return self._happened(
                LaunchFailed(*run, f"no process could be started for it: {trouble.strerror}", True)
                if isinstance(one, Launch)
                else AgentLost(one.job.uid)
            )
        link.runs.add(run)
        if isinstance(one, Launch):
            link.launching.add(run)
            if self._is_held(link, one):
                return None
        return self._order(link, one)

    def _order(self, link: AgentLink, one: Launch | ReadEnd | FindRun | SignalTree) -> None:
        if isinstance(one, (Launch, ReadEnd)) and link.environment != one.job.spec.environment:
            link.environment = one.job.spec.environment
            self._send(link, {"do": "environment", "environment": one.environment})
        self._send(link, order(one))

    def _is_held(self, link: AgentLink, one: Launch) -> bool:
        """Whether it has to wait until it is known that its user may still start something."""
        checks = self._checks
        if checks is None or (not link.held and time.monotonic() - link.checked < self._valid):
            return False
        link.held.append(one)
        if len(link.held) == 1:
            checks.begin(link.uid, lambda refusal: self._account_known(link, refusal))
        return True

    def _account_known(self, link: AgentLink, refusal: Refusal | None) -> None:
        held, link.held = link.held, []
        if self._links.get(link.uid) is not link:
            return  # it was lost meanwhile, with all that it was to start
        if refusal is None and link.end_only:
            link.refused = ("its account was not in order", True)  # the next agent may start something
            return self._lost(link)
        if refusal is None:
            link.checked = time.monotonic()
        for one in held:
            run = (one.job.id, one.job.run)
            if refusal is None:
                self._order(link, one)
            elif run in link.launching:
                link.launching.discard(run)
                self._happened(LaunchFailed(*run, *refusal))
        return None

    def cancel_launch(self, one: CancelLaunch) -> None:
        """A job that was ended while its user's account is checked does not start after the check."""
        link, run = self._links.get(one.job.uid), (one.job.id, one.job.run)
        held = [] if link is None else [other for other in link.held if (other.job.id, other.job.run) == run]
        if link is not None and held:
            link.held.remove(held[0])
            link.launching.discard(run)
            self._happened(LaunchFailed(*run, "it was ended before it began"))

    def remove(self, one: RemoveLogs) -> None:
        try:
            self._send(self._link(one.uid), {"do": "remove", "logs": one.logs})
        except OSError as trouble:
            self._log(f"{len(one.logs)} logs of user {one.uid} are not removed: {trouble.strerror}")

    def notify(self, one: Notify) -> None:
        """Best effort: a user without an agent gets no notices."""
        with contextlib.suppress(OSError):
            self._send(self._link(one.uid), {"do": "notify", **one._asdict()})

    def remove_notes(self, one: RemoveNotes) -> None:
        """Only if there is an agent: the next one gets the instruction again."""
        link = self._links.get(one.uid)
        if link is not None:
            link.runs = {run for run in link.runs if "{}.{}".format(*run) in one.kept}
            self._send(link, {"do": "tidy", "folder": one.folder, "kept": one.kept})

    def force(self, one: ForceEnd) -> None:
        """End a run without its user's agent, as far as it can be seen from here; and have another agent look."""
        if self._census is None or time.monotonic() - self._census[0] > FRESH:
            self._census = (time.monotonic(), trees.Census())
        left = self._census[1].tree(one.root)
        for pid, since in left.items():
            self._send_signal(one.job.uid, pid, since, signal.SIGKILL)
        self._happened(Forced(one.job.id, one.job.run, len(left)))
        self.replace(ReplaceAgent(one.job.uid))

    def replace(self, one: ReplaceAgent) -> None:
        link = self._links.get(one.uid)
        if link is not None:
            self._replace(link)

    def _replace(self, link: AgentLink) -> None:
        self._log(f"the agent of user {link.uid} does not follow its instructions: the broker starts another one")
        if link.process is not None:
            self._send_signal(link.uid, *link.process, signal.SIGKILL)
        self._lost(link)

    def owns(self, descriptor: int) -> bool:
        return descriptor in self._by_descriptor or (self._checks is not None and self._checks.owns(descriptor))

    def ready(self, descriptor: int, flags: int) -> None:
        if self._checks is not None and self._checks.owns(descriptor):
            return self._checks.ready(descriptor)
        link = self._by_descriptor[descriptor]
        if flags & select.EPOLLOUT:
            self._flush(link)
        if flags & ~select.EPOLLOUT:
            self._read(link)
        return None

    def sweep(self) -> None:
        """Let go who had nothing to do for a while, and who does not tell what everybody can see."""
        for link in list(self._links.values()):
            gone = {run for run, shell in link.shells.items() if _is_gone(*shell)}
            if gone & link.gone:
                self._replace(link)
            link.gone = gone
        if self._checks is not None:
            self._checks.sweep()
        due = time.monotonic() - IDLE
        for link in [one for one in self._links.values() if not one.runs and one.used < due]:
            self._forget(link)

    def close(self) -> None:
        for link in list(self._links.values()):
            self._forget(link)
        if self._checks is not None:
            self._checks.close()

    # ---------------------------------------------------------------- one agent

    def _link(self, uid: int) -> AgentLink:
        link = self._links.get(uid)
        if link is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            ours.setblocking(False)
            self._poll.register(ours.fileno(), select.EPOLLIN)
            link = self._links[uid] = self._by_descriptor[ours.fileno()] = AgentLink(uid, ours)
            with theirs:
                try:
                    self._start(uid, theirs)
                except OSError as trouble:
                    link.refused = (f"no process could be started for it: {trouble.strerror}", True)
            self._send(link, {"do": "begin", "folder": self._folder(uid)})
        return link

    def _send(self, link: AgentLink, message: Message) -> None:
        link.used = time.monotonic()
        link.outgoing += pack(message, LARGEST)
        self._flush(link)
        if len(link.outgoing) > MAX_UNREAD and link.uid in self._links:
            self._replace(link)

    def _flush(self, link: AgentLink) -> None:
        try:
            while link.outgoing:
                del link.outgoing[: link.socket.send(link.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            link.outgoing.clear()  # its end is read below
        if link.socket.fileno() in self._by_descriptor:
            self._poll.modify(link.socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if link.outgoing else 0))

    def _read(self, link: AgentLink) -> None:
        try:
            data = untrusted.receive(link.socket, READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self._lost(link)
        try:
            for message in link.unpacker.feed(data):
                self._handle_message(link, message)
        except GpuleaseError as trouble:
            self._log(f"the broker drops the agent of user {link.uid}: {trouble.what}")
            self._lost(link)

    def _handle_message(self, link: AgentLink, message: Message) -> None:
        if isinstance(message.get("refused"), str):
            why = "".join(one if one.isprintable() else "?" for one in message["refused"][:1000])
            link.refused = (why, bool(message.get("passing")))
            return
        if "agent" in message:
            link.process = read_process(message["agent"])
            link.end_only = message.get("end_only") is True
            return
        event = read_event(message)
        run: Run = event[:2]  # type: ignore[assignment]  # every event of an agent begins so
        if run in link.runs:
            if isinstance(event, (Launched, LaunchFailed)):
                link.launching.discard(run)
            if isinstance(event, (Launched, Found)) and event.pid is not None and event.start_time is not None:
                link.shells[run] = (event.pid, event.start_time)
            elif not isinstance(event, TreeSeen):
                link.shells.pop(run, None)
            self._happened(event)

    def _lost(self, link: AgentLink) -> None:
        """Runs that had not begun have failed, because there is no agent. The next agent finds the other runs."""
        self._forget(link)
        if link.refused is not None:
            if self._said.get(link.uid) != link.refused[0]:
                self._said[link.uid] = link.refused[0]
                self._log(f"no agent for user {link.uid}: {link.refused[0]}")
            for run in sorted(link.launching):
                self._happened(LaunchFailed(*run, *link.refused))
        self._happened(AgentLost(link.uid))

    def _forget(self, link: AgentLink) -> None:
        del self._by_descriptor[link.socket.fileno()]
        del self._links[link.uid]
        self._poll.unregister(link.socket.fileno())
        untrusted.close(link.socket)


def _is_gone(pid: int, since: int) -> bool:
    """Ended, reaped or not, for certain: /proc may hide the processes of others (hidepid)."""
    try:
        return identity.is_gone(pid, since)
    except OSError:
        return False


def send_own(uid: int, pid: int, since: int, number: int) -> None:
    trees.send({pid: since}, number)


def starter(files: int) -> Callable[[int, socket.socket], None]:
    """Agents of the broker's own user, as its children; `files` is the limit of open files that jobs get."""

    def start(uid: int, theirs: socket.socket) -> None:
        if uid != os.geteuid():
            raise PermissionError(1, "only a system broker runs jobs of other users")
        words = [sys.executable, "-P", "-m", "gpulease.broker.agent", str(theirs.fileno()), str(files)]
        subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        ).returncode = 0  # its end is read from its socket; keeps Popen from waiting for it

    return start
