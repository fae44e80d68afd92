"""The blocking client: finds the broker, starts the user's own at first need, asks, and waits through its restarts.

Standard library only, and little of it: commands that people wait for load this.
"""

from __future__ import annotations

import _socket as socket  # the module around it costs as much as the rest of a command's start
import os
import select
import sys
import time

from gpulease import PROTOCOL
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
    from collections.abc import Callable, Mapping
    from typing import IO, Any

    from gpulease.client.engines import BackendConnection
    from gpulease.protocol.messages import Granted, StillWaiting
    from gpulease.protocol.wire import Message

START = 30.0  # seconds for a broker to start
CONNECT = 5.0  # seconds to be let in
SLACK = 15.0  # seconds for a first look at the devices, beyond the time that was given
ANSWER = 60.0  # seconds for an answer that nobody has to wait in line for
READ_ONLY = (
    15.0  # seconds for an answer that changes nothing; longer than a driver may take, and than a large batch takes
)
LONG = 600.0  # seconds for an answer about jobs, of which there may be a hundred thousand
CHECK = 5.0  # seconds without an answer after which the broker is asked, by another connection, whether it lives
OF_MANY = frozenset({"add", "kill", "rm", "edit", "clean", "retry", "start", "pause", "resume", "moved", "let_go"})
PATIENCE = 60.0  # seconds for a broker that is gone to come back, while waiting in its line
FIRST_WHY, NEXT_WHY = 1.0, 2.0  # seconds until the reason is asked for again, while waiting in the line
NEXT_TRY = 0.5  # seconds until what could not be written is asked for again, while waiting in the line
LARGEST = 16 << 20
READ = 1 << 16
NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:/")  # of a lease or a device
OF_A_JOB = {"GPULEASE_JOB", "GPULEASE_TOKEN", "GPULEASE_LEASE", "GPULEASE_DEVICES"}


heard: list[tuple[str, Message]] = []  # the last answers, each with its verb, for whoever stumbles over one
MAX_HEARD = 4


class Client:
    """One connection. Not shared between threads, nor across a fork."""

    def __init__(self, start: bool = True, directory: str | None = None) -> None:
        """To the first broker that is found, or to the one whose state is in `directory` alone."""
        self.pid = os.getpid()
        self._socket, self.place = connect(start, directory)
        self.broker_uid = _peer_uid(self._socket)  # who runs it, by the kernel's word
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
        connected = _try(self.place.run)
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
            data = self._socket.recv(READ)
            if not data:
                raise ConnectionResetError("the broker ended")
            self._messages += self._unpacker.feed(data)
        message = self._messages.pop(0)
        heard[:] = [*heard[-MAX_HEARD:], (self._verb, message)]
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
        """For whoever waits for several things at once."""
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
    return ProtocolError("The broker reports an error that makes no sense.")


def opened(start: bool = True) -> BackendConnection:
    """A connection to what answers requests: the broker of this machine, or the engine that was chosen."""
    engine = places.engine(os.environ)
    if engine == places.LOCAL:
        return Client(start)
    from gpulease.client import engines

    return engines.connect(engine, start)


def connect(start: bool, only: str | None = None) -> tuple[socket.socket, places.Place]:
    """The first broker that answers: the system's, a shared one, this user's own, which is started when `start`."""
    found = find(only)
    if found is not None:
        return found
    own = places.own(os.environ)
    places.refuse_everybodys(own)
    if not start or only not in (None, own.state):
        raise BrokerUnavailable("No broker is running.", "It starts by itself with `gpulease run` or `gpulease get`.")
    until = time.monotonic() + START
    while (found := _start_once(own, only)) is None:
        if time.monotonic() > until:
            raise BrokerUnavailable("The broker was started but does not answer.", _log_hint(own))
        time.sleep(0.02)
    return found


def _start_once(place: places.Place, only: str | None) -> tuple[socket.socket, places.Place] | None:
    """Of the clients that find no broker one starts it; the others look until it is there."""
    import fcntl

    places.prepare_own(place)
    lock = None
    try:
        lock = os.open(os.path.join(place.run, "start.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = find(only)
        if found is None:
            _start(place)
        return found or find(only)
    except BlockingIOError:
        return find(only)
    except OSError as trouble:
        where = trouble.filename or place.run
        raise StateError(f"The broker cannot start: {trouble.strerror}: {where!r}.", places.ELSEWHERE) from None
    finally:
        if lock is not None:
            os.close(lock)


def find_socket() -> str | None:
    """The directory of a broker that seems to be there, without asking it."""
    for place in places.candidates(os.environ):
        if os.path.exists(places.socket_path(place.run)) and not places.distrust(place.run):
            return place.run
    return None


def belongs_here() -> bool:
    """Whether a broker runs here, or left something behind: what it granted may be held while it is down."""
    own = places.own(os.environ)
    left = os.path.exists(own.kept("state.db")) or places.everybodys(own.run) is not None
    return left or find_socket() is not None or any(map(places.in_charge, places.candidates(os.environ)))


def find(only: str | None = None) -> tuple[socket.socket, places.Place] | None:
    """The first broker that answers. One for everybody that is down is not passed by: what it granted is still held."""
    for place in places.candidates(os.environ):
        if only not in (None, place.state):
            continue
        connected = _try(place.run)
        if connected is None and (elsewhere := places.moved_to(place)) is not None:
            connected = _try(elsewhere)
        if connected is not None:
            return connected, place
        if only is None and place.kind == "system":
            _warn_if_spoiled(place)
        if only is None and places.in_charge(place):
            raise places.down(place)
    return None


_warned = False


def _warn_if_spoiled(place: places.Place) -> None:
    """Its users would otherwise be alone with brokers of their own, and not know it."""
    global _warned
    trouble = None if _warned else places.spoiled(place)
    if trouble is not None:
        _warned = True
        print(
            f"gpulease: {place.run}, the place of the broker for everybody, is passed by: {trouble}.", file=sys.stderr
        )


def _try(directory: str) -> socket.socket | None:
    """A connection to the broker at `directory`, if one listens there and may be trusted."""
    path = places.socket_path(directory)
    if not os.path.exists(path) or places.distrust(directory):
        return None
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _enter(connected, path)
    except OSError as trouble:
        connected.close()
        if isinstance(trouble, PermissionError) and directory == places.SYSTEM:
            raise _outside(path) from None
        return None
    if not places.is_broker_of(directory, _peer_uid(connected)):
        connected.close()
        return None
    return connected


def _outside(path: str) -> NotPermitted:
    """Of the group that may use the system's broker."""
    import grp

    try:
        group = grp.getgrgid(os.stat(path).st_gid).gr_name
    except (KeyError, OSError):
        group = "of its socket"
    return NotPermitted(
        f"Only members of the group {group} may use the broker of this machine.",
        "Ask an administrator to add you; a new membership counts from the next login on.",
    )


def _enter(connected: socket.socket, path: str) -> None:
    """A broker whose waiting room is full is there all the same, and soon lets in whoever waits."""
    until = time.monotonic() + CONNECT
    connected.setblocking(False)
    while True:
        try:
            connected.connect(path)
            return connected.settimeout(ANSWER)  # also for what is sent: a broker that is stopped reads nothing
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _peer_uid(connected: socket.socket) -> int:
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(data[4:8], sys.byteorder, signed=True)


def _start(place: places.Place) -> None:
    """Start this user's broker in the background and wait until it is ready, or another one was quicker."""
    import subprocess

    _build_simulated_library()
    ours, theirs = os.pipe()
    with open(place.kept("broker.log"), "ab") as log:
        os.fchmod(log.fileno(), 0o600)
        begin = os.fstat(log.fileno()).st_size
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpulease.broker", "--ready", str(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_with_full_paths(os.environ),
            pass_fds=(theirs,),
            start_new_session=True,
        )
        if os.environ.get("SLURM_TASK_PID") and os.environ.get("SLURM_JOB_ID"):
            _keep(log)
    os.close(theirs)
    with open(ours, "rb", buffering=0) as pipe:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        reply = pipe.read(READ) if poll.poll(START * 1000) else b""
    if not reply and process.wait(START) > 0:  # else it was killed, and the next attempt may do better
        raise BrokerUnavailable(f"The broker could not be started{_last_words(place, begin)}.", _log_hint(place))
    for message in () if reply == places.READY else Unpacker().feed(reply):
        trouble = message["error"]
        if not trouble["fields"].get("serving"):  # else the one before is about to end, or to answer
            raise by_code(trouble["code"], trouble["what"], trouble["next_step"], {})


def _build_simulated_library() -> None:
    """Here, where nothing has a deadline. If it cannot be built, the broker says so to those who ask for GPUs."""
    if places.simulated(os.environ):
        from gpulease.simulator.activate import build_library

        try:
            build_library(os.environ)
        except GpuleaseError:
            pass


def _keep(log: IO[bytes]) -> None:
    """In a job of Slurm's: have the broker end with the task in which it was started."""
    import subprocess

    subprocess.Popen(
        [sys.executable, "-P", "-m", "gpulease.api.allocation_keeper", os.environ["SLURM_TASK_PID"]],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env=_with_full_paths(os.environ),
        start_new_session=True,
    )


def _with_full_paths(environ: Mapping[str, str]) -> dict[str, str]:
    """The broker lives in another folder: what was relative to this one must not be. Nor is it a part of a job."""
    names = [name for name in ("GPULEASE_DIR", "GPULEASE_SIMULATION") if environ.get(name)]
    kept = {name: value for name, value in environ.items() if name not in OF_A_JOB}
    return {**kept, **{name: os.path.abspath(environ[name]) for name in names}}


def _last_words(place: places.Place, begin: int) -> str:
    """The last line that it wrote to its log, from `begin` on."""
    with open(place.kept("broker.log"), "rb") as log:
        log.seek(max(begin, os.fstat(log.fileno()).st_size - READ))
        lines = log.read(READ).decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {''.join(filter(str.isprintable, last))[:200].rstrip('.')}" if last else ""


def _log_hint(place: places.Place) -> str:
    return f"See {place.kept('broker.log')}."


def acquire(
    fields: dict[str, Any],
    waiting: Callable[[StillWaiting], object] | None = None,
    client: BackendConnection | None = None,
) -> tuple[Granted, BackendConnection]:
    """Ask for a lease and wait for it, through restarts of the broker, without losing the place in the line.

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
                    raise ProtocolError("The broker gave an answer that makes no sense.")
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
        raise ProtocolError("The broker granted something that is no device.", "See whose it is: `gpulease doctor`.")
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
    """Say that whoever the lease is for has been told of it: from now on it ends with its owner only."""
    while True:
        try:
            if client.ask("taken", id=granted["id"])["taken"]:
                return
            raise NotGranted(f"The lease {granted['id']} ended before it could be taken in hand.")
        except ConnectionError:
            client = again(client)
        except StateError:  # a full disk; meanwhile it is held as long as this connection is
            time.sleep(NEXT_TRY)


def again(ended: BackendConnection) -> BackendConnection:
    """A connection to the broker that comes after the one that ended, in the same place: it knows what was asked."""
    ended.close()
    return reconnect(ended.place.state)


def reconnect(directory: str) -> BackendConnection:
    """A connection to the broker whose state is in `directory`; everybody's is started again by whoever runs it."""
    if directory.startswith(places.ENGINE):
        from gpulease.client import engines

        return engines.connect(directory.removeprefix(places.ENGINE))
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return Client(directory=directory)
        except (BrokerUnavailable, StateError, ConnectionError):  # also one that cannot start for want of room
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
