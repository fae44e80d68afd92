"""`gpulease log`: a job's output, also as it grows; `log main` is what the broker did, `log broker` its own log."""

from __future__ import annotations

import os
import sys

from gpulease.api.log import open_log, tail
from gpulease.cli.options import add_choice, filters, say_missing, tell_moved
from gpulease.cli.parsing import ArgumentParser, Namespace, at_least, clean, say
from gpulease.client.subscriptions import Subscription
from gpulease.errors import GpuleaseError, NotFound, UsageError
from gpulease.model.job_selection import ENDED, one_job, ranges, selection
from gpulease.render.terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulease.protocol.messages import JobRow

EXAMPLES = """\
examples:
  gpulease log 12
  gpulease log 12 -f             follow it until it ends
  gpulease log --label sweep1 -f follow several until all have ended
  gpulease log last --tail 20
  gpulease log --state failed --tail 5
  gpulease log main --tail 20    which jobs were added, started and ended
  gpulease log broker            the broker's own messages
"""
BROKER = ("broker", "main")
MAX_EVENTS = 10_000
BLOCK = 1 << 16
MAX_SHOWN = 64 << 20  # bytes of --tail
CHECK_INTERVAL = 0.2  # seconds between looks at a file that grows


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser, more=", `main`, `broker`")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow until the jobs end; with several, lines name the job"
    )
    parser.add_argument("--tail", "-n", type=int, metavar="N", help="only the last N lines")


def run(arguments: Namespace) -> int:
    at_least(0, "--tail", arguments.tail)
    if set(arguments.ids) & set(BROKER):
        return _show_broker(arguments)
    try:
        return _show_jobs(arguments)
    except NotFound:
        tell_moved("log", arguments.ids)
        raise


def _show_jobs(arguments: Namespace) -> int:
    from gpulease.api.jobs import show

    found = show(*arguments.ids, **filters(arguments))
    absent = say_missing(found, arguments.ids)
    if len(found) > 1 and arguments.follow:
        follow(found, arguments.tail)
        return absent
    if len(found) > 1:
        return _show_all(found, arguments.tail) or absent
    _show(found[0]["log"], arguments, found[0])
    return absent


def _show_broker(arguments: Namespace) -> int:
    if len(arguments.ids) > 1 or arguments.label is not None or arguments.state is not None:
        raise UsageError("The broker's log was asked for together with those of jobs.", "Ask for one, then the other.")
    return _show_events(arguments) if arguments.ids == ["main"] else _show_messages(arguments)


def _show_events(arguments: Namespace) -> int:
    from gpulease.api.lease_verbs import events
    from gpulease.render.events import line_of

    if arguments.follow:
        raise UsageError("`log main` cannot be followed.", "Follow a job, or the broker's messages: `log broker -f`.")
    most = MAX_EVENTS if arguments.tail is None else min(arguments.tail, MAX_EVENTS)
    for event in events(most=most) if most else ():
        say(line_of(event))
    return 0


def _show_messages(arguments: Namespace) -> int:
    from gpulease.client.connection import opened

    client = opened()
    path = client.place.kept("broker.log")
    about = client.ask("ping")
    if not os.path.exists(path) or _writes_elsewhere(about["pid"], path):
        kind = "in the foreground" if about["kind"] == "own" else f"as the {about['kind']} broker"
        raise NotFound(
            f"The broker (process {about['pid']}) runs {kind}, so it keeps no log: it writes to its own stderr.",
            "Look there: at its terminal, or in the journal of the service manager that runs it.",
        )
    _show(path, arguments, None)
    return 0


def _writes_elsewhere(pid: int, path: str) -> bool:
    """Whether the file is from another broker, before this one."""
    try:
        return not os.path.samefile(f"/proc/{pid}/fd/2", path)
    except OSError:
        return False  # it is another user's, and nobody can tell


def _show_all(found: list[JobRow], lines: int | None) -> int:
    """One after the other; what has none is told at the end."""
    without, shown = [], 0
    for job in found:
        try:
            if not job["runs"]:
                raise FileNotFoundError
            with open_log(job["log"], job["uid"]):
                print(f"==> job {job['id']} <==", flush=True)
            _print(job["log"], lines, job["uid"])
            shown += 1
        except FileNotFoundError:
            without.append(job["id"])
        except GpuleaseError as error:
            say(f"gpulease: job {job['id']}: {error.what}", sys.stderr)
    if without:
        print(f"gpulease: no output yet, or none any more: job {ranges(without)}", file=sys.stderr)
    return 0 if shown else 1


def _show(path: str, arguments: Namespace, job: JobRow | None) -> None:
    position, uid = 0, None if job is None else job["uid"]
    try:
        if job is not None and not job["runs"]:
            raise FileNotFoundError  # what is there is of a queue that was here before
        position = _print(path, arguments.tail, uid)
    except FileNotFoundError:
        if job is None or job["state"] in ENDED:
            why = "The job may never have started; see `gpulease show`."
            if job is not None and job["why"]:
                why = f"Job {job['id']} is {job['state']}: {job['why'].rstrip('.')}."
            raise NotFound(f"There is no log at {path!r}.", why) from None
        if not arguments.follow:
            print(f"gpulease: job {job['id']} is {job['state']} and has written nothing yet", file=sys.stderr)
    if arguments.follow:
        _follow(path, position, job)


def _print(path: str, lines: int | None, uid: int | None) -> int:
    """What is there; returns where it ends."""
    if lines is None:
        return _copy(path, 0, uid)
    with open_log(path, uid) as file:
        size = os.fstat(file.fileno()).st_size
    found = tail(path, lines, uid, MAX_SHOWN)
    print("\n".join(found) + ("\n" if found else ""), end="", flush=True)
    return size


def _copy(path: str, position: int, uid: int | None) -> int:
    """Bytes as they are, from `position` on."""
    with open_log(path, uid) as file:
        file.seek(position)
        while block := file.read(BLOCK):
            sys.stdout.buffer.write(block)
            position += len(block)
    sys.stdout.flush()
    return position


def _follow(path: str, position: int, job: JobRow | None) -> None:
    """As it grows, until the job is over; the broker tells when that is, or the one that comes after it."""
    if job is None:
        return _grow(path, position, None, _pause, None)
    from gpulease.cli.lease_wait import JobInLine
    from gpulease.client.subscriptions import Subscription

    with Subscription("jobs", select=one_job(job["id"])) as subscription:
        before = None if job["runs"] else seen(path)
        line = JobInLine(job["id"])

        def over() -> bool:
            changed = subscription.receive(CHECK_INTERVAL)
            line.look(subscription.rows.get("jobs"))
            return bool(changed) and not subscription.open

        _grow(path, position, job["uid"], over, before)
    row = subscription.rows["jobs"].get(str(job["id"]))
    if row is None or row["state"] == "killed":
        tell_moved("log", [job["id"]])
    return None


def seen(path: str) -> tuple[int, ...] | None:
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns


def _grow(path: str, position: int, uid: int | None, over: Callable[[], bool], before: tuple[int, ...] | None) -> None:
    """`before`: a file of that name that is not the job's, until it becomes another."""
    ended = False
    while True:
        try:
            if before is None or seen(path) != before:
                before, position = None, _copy(path, position, uid)
        except FileNotFoundError:
            pass  # not yet, or not any more
        if ended:
            return
        ended = over()


def _pause() -> bool:
    import time

    time.sleep(CHECK_INTERVAL)
    return False


STYLES = ("cyan", "green", "yellow", "magenta")


def follow(found: list[JobRow], lines: int | None) -> None:
    """`lines`: only the last ones of what is there already."""
    terminal = Terminal()
    names = [clean(f"{job['id']} {job['name']}" if job["name"] else str(job["id"])) for job in found]
    width = max(map(len, names))
    with Subscription("jobs", select=selection([job["id"] for job in found])) as subscription:
        logs = [
            _Log(job, terminal.paint(f"{name:<{width}} |", STYLES[number % len(STYLES)]), lines)
            for number, (job, name) in enumerate(zip(found, names, strict=True))
        ]
        over = False
        while True:
            for log in logs:
                log.grow(last=over)
            sys.stdout.flush()
            if over:
                return
            over = bool(subscription.receive(CHECK_INTERVAL)) and not subscription.open


class _Log:
    """One of them: how far it was read, and the line that has not ended yet, as far as it was not written over."""

    def __init__(self, job: JobRow, mark: str, lines: int | None) -> None:
        self._job, self._mark, self._lines = job, f"{mark} ".encode(errors="replace"), lines
        self._position, self._rest, self._readable = 0, b"", True
        # What is there before its first run is of a queue that was here before.
        self._before = None if job["runs"] else seen(job["log"])

    def grow(self, last: bool) -> None:
        """Print what is new; a line that has not ended only at the last."""
        try:
            if self._readable and (self._before is None or seen(self._job["log"]) != self._before):
                self._before = None
                self._read()
        except FileNotFoundError:
            pass  # not yet, or not any more
        except GpuleaseError as error:
            self._readable = False
            say(f"gpulease: job {self._job['id']}: {error.what}", sys.stderr)
        if last and self._rest:
            self._print([self._rest])
            self._rest = b""

    def _read(self) -> None:
        path, uid = self._job["log"], self._job["uid"]
        with open_log(path, uid) as file:
            if self._lines is not None:
                self._position = os.fstat(file.fileno()).st_size
                self._print([line.encode() for line in tail(path, self._lines, uid, MAX_SHOWN)])
                self._lines = None
            file.seek(self._position)
            while block := file.read(BLOCK):
                self._position += len(block)
                *whole, rest = (self._rest + block).split(b"\n")
                self._print(whole)
                self._rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
                if len(self._rest) > BLOCK:
                    self._print([self._rest])
                    self._rest = b""

    def _print(self, lines: list[bytes]) -> None:
        """Of a bar that is drawn over itself the last: a carriage return would go to before the mark."""
        last = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines)
        sys.stdout.buffer.writelines(self._mark + line + b"\n" for line in last)
