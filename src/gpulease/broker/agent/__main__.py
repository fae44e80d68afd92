"""A user's agent: a process of that user which starts, watches, signals and reads that user's jobs.

The broker never touches a user's files or processes: it gives orders over a socket pair and hears events. A file server
that hangs stops its user's agent alone. An agent ends with its broker, its jobs do not; the next one finds them again.
`python -P -m gpulease.broker.agent DESCRIPTOR FILES [--login | --end-only WHY for-now|for-good]`: FILES is the limit of
open files that jobs get.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import resource
import select
import signal
import socket
import sys
import time

from gpulease.broker import trees
from gpulease.broker.agent import files, runner
from gpulease.broker.agent.runner import Order
from gpulease.broker.core.events import SHORTAGES, UNSEEN, Event, Found, Launched, LaunchFailed, RunEnded, RunNote
from gpulease.broker.orders import LARGEST, packed
from gpulease.broker.outbox import PacedOutbox
from gpulease.protocol.wire import Unpacker, pack
from gpulease.system import identity
from gpulease.system.execution import use_default_signals

READ = 1 << 18
LOG_CHECK_INTERVAL = 1.0  # seconds
AT_ONCE = 0.002  # seconds
ALONE = 2.0  # seconds for the agent before this one to end
MAX_NOTICES = 5000  # that wait to be told; then the oldest are dropped
TREE_ORDERS = ("find", "signal", "read-end")
Run = tuple[int, int]  # id of a job, and which run of it


class Agent:
    def __init__(self, link: socket.socket, login: dict[str, str], refusal: tuple[str, bool] | None = None) -> None:
        """`refusal`: why nothing may be started, and whether that may pass."""
        self._link, self._login, self._refusal = link, login, refusal
        self._folder = self._no_folder = ""
        self._may_pass = False  # why there is no folder: as another agent that works in it
        self._refused = False  # somebody a start
        self._lock = -1
        self._unsent = bytearray()  # events that were not sent yet
        self._environment: dict[str, str] = {}  # of the jobs that come next
        self._unpacker = Unpacker(LARGEST)
        self._children: dict[int, Run] = {}
        self._found: dict[int, Run] = {}  # shells of a former agent, by a descriptor of each
        self._logs: dict[Run, tuple[str, int]] = {}  # that are limited
        self._logs_due = 0.0
        self._notices = PacedOutbox("gpulease.notices.send", MAX_NOTICES, lambda text: None)
        self._later: list[Order] = []  # looks that could not be taken, for want of something
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._woken, waker = socket.socketpair()
        for end in (self._woken, waker):
            end.setblocking(False)
        self._poll.register(self._woken, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.detach(), warn_on_full_buffer=False)

    @property
    def began(self) -> bool:
        return self._lock >= 0

    def serve(self) -> None:
        """Until the broker is gone, or has no more use for it."""
        about = {"agent": [os.getpid(), identity.start_time(os.getpid())], "end_only": self._refusal is not None}
        self._link.sendall(pack(about))
        try:
            orders: list[Order] | None = []
            while orders is not None:
                self._carry_out(orders)
                self._attend()
                orders = None if self._useless else self._orders()
        finally:
            self._notices.flush()

    def _attend(self) -> None:
        """To what happened until now, or until something is due."""
        for descriptor, _ in self._poll.poll(self._timeout()):
            if descriptor in self._found:
                self._tell([self._gone(descriptor)])
        self._reap()
        self._flush()
        self._cut_logs()
        self._notices.start_if_due(time.monotonic())

    @property
    def _useless(self) -> bool:
        """The next one may be let start something."""
        return self._refused and not self._children and not self._found

    def _timeout(self) -> float | None:
        """A job that ends at once is reported together with its beginning."""
        if self._unsent:
            return AT_ONCE * 1000
        looks = LOG_CHECK_INTERVAL if self._logs or self._later else None
        notices_due = self._notices.due(time.monotonic())
        seconds = min((one for one in (looks, notices_due) if one is not None), default=None)
        return None if seconds is None else seconds * 1000 + 1

    def _orders(self) -> list[Order] | None:
        try:
            data = self._link.recv(READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        return self._unpacker.feed(data) if data else None

    def _carry_out(self, orders: list[Order]) -> None:
        looks, self._later = self._later, []
        for order in orders:
            if order["do"] == "begin":
                self._begin(order["folder"])
            elif order["do"] == "environment":
                self._environment = order["environment"]
            elif order["do"] == "launch":
                self._tell([self._launch(order)])
            elif order["do"] in TREE_ORDERS:
                looks.append({**order, "environment": self._environment})
            elif order["do"] == "notify" and self._refusal is None:
                self._notices.add_paced(order, time.monotonic(), order["every"])
            elif order["do"] == "remove":
                runner.remove(order)
            elif order["do"] == "tidy":
                runner.remove_notes(order)
        if looks:
            self._inspect(looks)

    def _inspect(self, looks: list[Order]) -> None:
        """One scan of all processes serves all runs. Unreadable processes are tried again, in their order."""
        census: trees.Census | None = None
        waiting: set[Run] = set()
        for order in looks:
            run = (order["id"], order["run"])
            try:
                if run in waiting:
                    self._later.append(order)
                elif order["do"] == "read-end":
                    self._tell([runner.read_end(order, order["environment"])])
                else:
                    census = census or trees.Census()
                    self._tell([self._adopted(order, self._certain(runner.inspect_tree(order, census)))])
            except OSError as trouble:
                if trouble.errno not in SHORTAGES:
                    raise
                waiting.add(run)
                self._later.append(order)

    def _begin(self, folder: str, patience: float = ALONE) -> None:
        """Where there is no folder nothing can be started; what runs can still be ended."""
        self._folder = folder
        try:
            self._lock = _alone(folder, patience)
        except OSError as trouble:
            self._no_folder = f"{trouble.strerror}: {trouble.filename or folder}"
            self._may_pass = trouble.errno in SHORTAGES

    def _launch(self, order: Order) -> Event:
        if self._lock < 0:
            self._begin(self._folder)
        why, temporary = self._refusal or ("" if self.began else self._no_folder, True)
        if why:
            self._refused = True
            return LaunchFailed(order["id"], order["run"], why, temporary)
        outcome = runner.launch(order, self._environment, self._login)
        if isinstance(outcome, Launched):
            self._children[outcome.pid] = (outcome.id, outcome.run)
            self._limit_log(order)
        return outcome

    def _certain(self, event: Event) -> Event:
        """That a run never began is known only where its note would be, and while nobody else may start it."""
        if not isinstance(event, Found) or event.pid is not None or self.began:
            return event
        if self._may_pass:
            self._begin(self._folder, patience=0.0)
            raise OSError(errno.EAGAIN, self._no_folder)  # it is looked for again
        return event._replace(noted=RunNote(trouble=UNSEEN))

    def _adopted(self, order: Order, event: Event) -> Event:
        if isinstance(event, Found) and event.alive and event.pid is not None:
            run = (event.id, event.run)
            descriptor = identity.pidfd(event.pid)
            if descriptor is None:
                return event._replace(alive=False, start_time=None)
            if run in self._children.values() or run in self._found.values():
                os.close(descriptor)
                return event
            self._poll.register(descriptor, select.POLLIN)
            self._found[descriptor] = run
            self._limit_log(order)
        return event

    def _limit_log(self, order: Order) -> None:
        if order["log_limit"] is not None:
            self._logs[order["id"], order["run"]] = (order["log"], order["log_limit"])

    # ---------------------------------------------------------------- ends

    def _gone(self, descriptor: int) -> Event:
        run = self._found.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        return self._ended(run, None)

    def _reap(self) -> None:
        try:
            self._woken.recv(READ)
        except BlockingIOError:
            return
        ended: list[Event] = []
        while self._children or self._notices.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if self._notices.ended(pid):
                continue
            if pid in self._children:
                ended.append(self._ended(self._children.pop(pid), os.waitstatus_to_exitcode(status)))
        self._tell(ended)

    def _ended(self, run: Run, code: int | None) -> Event:
        if run in self._logs:
            files.cut_log(*self._logs.pop(run))
        return RunEnded(*run, code)

    def _cut_logs(self) -> None:
        now = time.monotonic()
        if now >= self._logs_due:
            self._logs_due = now + LOG_CHECK_INTERVAL
            for path, limit in self._logs.values():
                files.cut_log(path, limit)

    def _tell(self, events: list[Event]) -> None:
        self._unsent += b"".join(map(packed, events))

    def _flush(self) -> None:
        if self._unsent:
            self._link.sendall(self._unsent)
            self._unsent.clear()


def _alone(folder: str, patience: float) -> int:
    """Once no other agent works in the folder: an agent whose broker died may still be starting runs."""
    os.makedirs(folder, 0o700, exist_ok=True)
    descriptor = os.open(os.path.join(folder, "agent.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise OSError(errno.EAGAIN, "another process holds the lock of its agent", folder) from None
            time.sleep(0.02)


def login_variables() -> dict[str, str]:
    entry = pwd.getpwuid(os.getuid())
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}


def _refusal(words: list[str]) -> tuple[str, bool] | None:
    at = words.index("--end-only") if "--end-only" in words else None
    return None if at is None else (words[at + 1], words[at + 2] == "for-now")


def main() -> int:
    os.umask(0o077)
    use_default_signals()
    files, hard = int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    with socket.socket(fileno=int(sys.argv[1])) as link:
        link.set_inheritable(False)
        agent: Agent | None = None
        try:
            agent = Agent(link, login_variables() if "--login" in sys.argv else {}, _refusal(sys.argv))
            agent.serve()
        except (BrokenPipeError, ConnectionResetError):
            return 0
        except OSError as trouble:
            if (
                agent is None or not agent.began
            ):  # else it may have started what it has not told of: the next one finds it
                where = f"{trouble.strerror}: {trouble.filename}" if trouble.filename else trouble.strerror
                link.sendall(pack({"refused": where, "passing": trouble.errno in SHORTAGES}))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
