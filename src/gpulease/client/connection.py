"""The blocking client: asks the broker, waits in its line, and goes on after its restarts.

Standard library only, and little of it: commands that people wait for load this.
"""

from __future__ import annotations

import os
import select
import time
from _thread import _local  # threading.local, without the module around it

from gpulease import PROTOCOL
from gpulease.client import discovery
from gpulease.errors import (
    BrokerUnavailable,
    GpuleaseError,
    NotGranted,
    NotPermitted,
    ProtocolError,
    StateError,
    UsageError,
    by_code,
)
from gpulease.protocol.wire import Unpacker, pack
from gpulease.system import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpulease.client.engines import BackendConnection
    from gpulease.protocol.messages import Granted, StillWaiting
    from gpulease.protocol.wire import Message


SLACK = 15.0  # seconds for a first look at the devices, beyond the time that was given
ANSWER = 60.0  # seconds for an answer that nobody has to wait in line for
READ_ONLY = 15.0  # seconds for an answer that changes nothing: longer than a driver and a large batch may take
LONG = 600.0  # seconds for an answer about jobs, of which there may be a hundred thousand
CHECK = 5.0  # seconds without an answer after which the broker is asked, by another connection, whether it lives
OF_MANY = frozenset({"add", "kill", "rm", "edit", "clean", "retry", "start", "pause", "resume", "moved", "let_go"})
PATIENCE = 60.0  # seconds for a broker that is gone to come back, while waiting in its line
FIRST_WHY, NEXT_WHY = 1.0, 2.0  # seconds until the reason is asked for again, while waiting in the line
NEXT_TRY = 0.5  # seconds until what could not be written is asked for again, while waiting in the line
LARGEST = 16 << 20
NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:/")  # of a lease or a device

last_answers: list[tuple[str, Message]] = []  # each with its verb, for the report of an unexpected error
MAX_ANSWERS = 4


class Client:
    """One connection. Not shared between threads, nor across a fork."""

    def __init__(self, start: bool = True, directory: str | None = None) -> None:
        """To the first broker that is found, or to the one whose state is in `directory` alone."""
        self.pid = os.getpid()
        self._socket, self.place = discovery.connect(start, directory)
        self.broker_uid = discovery.peer_uid(self._socket)  # who runs it, by the kernel's word
        self._readable = select.poll()  # not select(), which ends at the 1024th open file of a process
        self._readable.register(self._socket, select.POLLIN)
        self._unpacker = Unpacker(LARGEST)
        self._messages: list[Message] = []
        self._verb = ""  # that was sent last
        self.env_exclude: str | None = None  # which variables are not sent to it, once it was asked

    def ask(self, verb: str, **fields: Any) -> Any:
        """One question, one answer."""
        self.send(verb, **fields)
        if verb in ("status", "ping"):
            answer = self.receive(READ_ONLY)
        else:
            answer = self._receive_while_it_lives(LONG if verb in OF_MANY else ANSWER)
        if answer is None:
            raise self.silent()
        return answer.get("ok", answer)

    def _receive_while_it_lives(self, patience: float) -> Message | None:
        """An answer that may take long, while the broker answers others: one that is stopped does not."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            answer = self.receive(CHECK)
            if answer is not None or not self._lives():
                return answer
        return None

    def _lives(self) -> bool:
        """Whether it answers somebody else."""
        connected = discovery.try_connect(self.place.run)
        if connected is None:
            return False
        try:
            connected.sendall(pack({"v": PROTOCOL, "do": "ping"}))
            poll = select.poll()
            for one in (connected, self._socket):
                poll.register(one, select.POLLIN)
            return bool(poll.poll(READ_ONLY * 1000))
        except OSError:
            return False
        finally:
            connected.close()

    def send(self, verb: str, **fields: Any) -> None:
        self._verb = verb
        if "tasks" in (fields.get("select") or ()):
            raise UsageError("Ids as 12_3 are those of Slurm's arrays.", "Name the engine slurm, or write a number.")
        try:
            self._socket.sendall(pack({"v": PROTOCOL, "do": verb, **fields}))
        except TimeoutError:
            raise self.silent() from None
        except BrokenPipeError:
            pass  # the broker's last word, or that it ended, is what `receive` finds

    def receive(self, timeout: float | None) -> Message | None:
        """The next message; None when none came in time. Raises the error that the broker reports."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._messages:
            rest = None if until is None else max(0.0, until - time.monotonic()) * 1000 + 1
            if not self._readable.poll(rest):
                return None
            data = self._socket.recv(discovery.READ)
            if not data:
                raise ConnectionResetError("the broker ended")
            self._messages += self._unpacker.feed(data)
        message = self._messages.pop(0)
        last_answers[:] = [*last_answers[-MAX_ANSWERS:], (self._verb, message)]
        if "error" in message:
            raise _error_of(message["error"])
        return message

    @property
    def idle(self) -> bool:
        """Whether the other end is there and has nothing to say."""
        return not self._messages and not self._readable.poll(0)

    def silent(self) -> BrokerUnavailable:
        """The error for a broker that takes a question and gives no answer."""
        return BrokerUnavailable(
            f"The broker at {self.place.run} does not answer.",
            "It may be stopped, or have no open file left for another client: see `gpulease doctor` and its log. "
            "If it hangs, end its process; the next one finds its leases.",
        )

    def fileno(self) -> int:
        """To wait for several things at once."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def _error_of(reply: Any) -> GpuleaseError:
    """The error that the broker reports, if it is one."""
    try:
        code, what, next_step, fields = reply["code"], reply["what"], reply["next_step"], reply["fields"]
        if all(isinstance(text, str) for text in (code, what, next_step)):
            return by_code(code, what, next_step, fields)
    except (KeyError, TypeError):
        pass
    return ProtocolError("The broker sent an error that gpulease cannot read.")


def opened(start: bool = True) -> BackendConnection:
    """A connection to what answers requests: the broker of this machine, or the engine that was chosen."""
    engine = places.engine(os.environ)
    if engine == places.LOCAL:
        return Client(start)
    from gpulease.client import engines

    return engines.connect(engine, start)


def acquire(
    fields: dict[str, Any],
    waiting: Callable[[StillWaiting], object] | None = None,
    client: BackendConnection | None = None,
) -> tuple[Granted, BackendConnection]:
    """Ask for a lease and wait for it, through restarts of the broker, without losing the place in the queue.

    `waiting` hears why: at once, after a second, and then every two seconds. Returns what was granted, and the
    connection.
    """
    reply: StillWaiting | None = None
    pause = FIRST_WHY
    client = client or opened()
    # By this name the next broker knows the request again, even if the last one died before it could answer.
    token = os.urandom(9).hex()
    above = os.environ.get("GPULEASE_LEASE")  # its lease does not end before this request is granted
    asked = {**fields, "id": token, **({"within": above[:40]} if above else {})}
    began = time.monotonic()
    while True:
        try:
            client.send("acquire", **asked)
            while True:
                answer = client.receive(_patience(fields, reply, None if waiting is None else pause))
                if answer is None and reply is None:
                    raise client.silent()
                if answer is None:
                    client.send("why", id=reply and reply["id"])
                    pause = NEXT_WHY
                elif "granted" in answer:
                    return _checked(answer["granted"]), client
                elif "waiting" in answer:
                    reply = answer["waiting"]
                    if waiting:
                        waiting(reply)
                else:
                    raise ProtocolError("The broker sent an answer that gpulease cannot read.")
        except ConnectionError:
            client = again(client)
            if fields.get("wait") is not None:
                asked["wait"] = max(0.0, fields["wait"] - (time.monotonic() - began))
        except BaseException as trouble:
            if reply is None or not isinstance(trouble, StateError):
                _leave(client, reply["id"] if reply else token)
                raise
            if waiting:  # a full disk delays who was told that it waits, and refuses who comes
                waiting({**reply, "why": trouble.what})
            time.sleep(NEXT_TRY)


def _checked(granted: Granted) -> Granted:
    """Names, and nothing else: it goes into environments and shells, and a shared broker is some user's."""
    try:
        names = [granted["id"], *(name for device in granted["devices"] for name in (device["label"], device["uuid"]))]
        sound = all(isinstance(name, str) and name[:1] not in "-" and NAME.issuperset(name) for name in names)
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise ProtocolError("The broker granted something that is not a device.", "See whose it is: `gpulease doctor`.")
    return granted


def refuse_untrusted_broker(client: BackendConnection) -> None:
    """Before a job's environment is sent: only root, or this user's own broker, can run it and may read it."""
    if client.broker_uid in (0, os.geteuid()):
        return
    from gpulease.system.identity import user_name

    raise NotPermitted(
        f"The broker of {user_name(client.broker_uid)} cannot run jobs as another user.",
        "Use `gpulease run`, or ask for a system broker (`gpulease broker --system`, as root).",
    )


def _patience(fields: dict[str, Any], reply: StillWaiting | None, pause: float | None) -> float | None:
    """How long to listen: for the first answer not for ever, and later until the reason is asked for again."""
    if reply is not None:
        return pause
    wait = fields.get("wait")
    return ANSWER if wait is None else min(ANSWER, wait + SLACK)


def take(client: BackendConnection, granted: Granted) -> None:
    """Tell the broker that the lease has reached its owner: from now on it ends with the owner only."""
    while True:
        try:
            if client.ask("taken", id=granted["id"])["taken"]:
                return
            raise NotGranted(f"The lease {granted['id']} ended before this process could use it.")
        except ConnectionError:
            client = again(client)
        except StateError:  # a full disk; meanwhile it is held as long as this connection is
            time.sleep(NEXT_TRY)


def again(ended: BackendConnection) -> BackendConnection:
    """A connection to the broker that comes after the one that ended, in the same place: it knows what was asked."""
    ended.close()
    return reconnect(ended.place.state)


def reconnect(directory: str) -> BackendConnection:
    """A connection to the broker whose state is in `directory`; a broker for everybody is started again by its user."""
    if directory.startswith(places.ENGINE):
        from gpulease.client import engines

        return engines.connect(directory.removeprefix(places.ENGINE))
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return Client(directory=directory)
        except (BrokerUnavailable, StateError, ConnectionError):  # also one that cannot start because the disk is full
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _leave(client: BackendConnection, ticket: str) -> None:
    """Out of the line, as well as it can be done now; what was granted in this moment goes back too."""
    try:
        client.send("cancel", id=ticket)
        while (answer := client.receive(1.0)) is not None and "ok" not in answer:
            if "granted" in answer:
                client.send("cancel", id=answer["granted"]["id"])
    except Exception:
        pass
    finally:
        client.close()


# What does something else when it is asked twice; the rest may be asked again after a broker that ended.
ONCE = ("kill", "rm", "retry", "move", "start", "pause", "resume", "moved")

_kept = _local()


def take_kept() -> BackendConnection | None:
    """This thread's connection, which is then the caller's; None when it has none.

    Where the broker has ended it is one to the broker that comes after it, which knows what was granted.
    """
    client: BackendConnection | None = getattr(_kept, "client", None)
    _kept.client = None
    if client is None or client.pid != os.getpid():
        return None  # it may be the parent's, from before a fork; it stays open there
    return client if client.idle else again(client)


def put_back(client: BackendConnection) -> None:
    """Only with no answer outstanding: a late one would be taken for the next one's."""
    _kept.client = client


def forget() -> None:
    _kept.client = None


def ask(verb: str, at: str | None = None, start: bool = True, **fields: Any) -> Any:
    """The answer of the broker that this thread is connected to, or of the one with its state `at` a directory."""
    client = take_kept()
    if client is None or at not in (None, client.place.state):
        client = opened(start) if at is None else reconnect(at)
    while True:
        try:
            answer = client.ask(verb, **fields)
            put_back(client)
            return answer
        except ConnectionError:
            if verb in ONCE:
                raise BrokerUnavailable(
                    "The broker ended before it answered.", "See `gpulease ls` for the result, and try again."
                ) from None
            client = again(client)
        except BrokerUnavailable:
            raise  # it may yet answer, so the connection is not kept
        except Exception:
            put_back(client)
            raise
