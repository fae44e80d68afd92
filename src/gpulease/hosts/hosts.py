"""Several hosts: which there are, and what each one's own gpulease answers, asked all at once with a deadline a host.

A host that does not answer is a row that says so; it never keeps the others waiting beyond the deadline. It is
remembered, so that not every command waits for it again, in a file beside the connections that are kept: it has since
when, and its time is that of the last question that had all the time. For a while a host is then given little time; as
soon as it answers, it is forgotten.
"""

from __future__ import annotations

import os
import select
import time

from gpulease.errors import GpuleaseError, HostUnavailable, UsageError, by_code
from gpulease.hosts import ssh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

REMEMBERED = 120.0  # seconds until a host is given all the time again
SHARE = 0.15  # of the usual time, that a host is given meanwhile


def _path(host: str) -> str:
    return os.path.join(ssh.folder(), f"absent.{host}")


def little_time(patience: float) -> float:
    """Seconds for a host that did not answer lately."""
    return patience * SHARE


def since(host: str, lately: bool = True) -> float | None:
    """From when on it has not answered, by the clock; None of one that did, or that was not asked `lately`."""
    try:
        with open(_path(host)) as file:
            asked = time.time() - os.fstat(file.fileno()).st_mtime
            return None if lately and not 0 <= asked < REMEMBERED else float(file.read(40))
    except (OSError, ValueError):
        return None


def remember(host: str) -> float:
    """It was given all the time, and did not answer; since when that is so."""
    first = since(host, lately=False) or time.time()
    try:
        path = _path(host)
        with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{first:.0f}\n")
        os.rename(f"{path}.new", path)
    except OSError:
        pass  # then it is waited for again
    return first


def forget(host: str) -> None:
    try:
        os.unlink(_path(host))
    except OSError:
        pass


# -------------------------------------------------------------------- which there are

MAX_HOSTS = 256
LARGEST = 64 << 20  # bytes of an answer
BLOCK = 1 << 16
KILL = 9  # the module `signal` costs a millisecond
# verb -> what its document must have
NEEDED = {
    "status": ("devices", "leases", "line_length", "simulated"),
    "ls": ("jobs", "counts", "time"),
    "show": ("jobs",),
    "events": ("events",),
    "usage": ("rows", "total", "everybody"),
    "doctor": ("findings",),
    "explain": ("possible", "starts", "load", "gpus", "why"),
    "add": ("added",),
    "rm": ("ids",),
}
USAGE = 2  # the exit code of a command line that is wrong there, though it is right here
NOT_KNOWN = ("arguments are required", "nrecognized arguments", "here is no verb", "nvalid choice")
MARK = "# gpulease"  # a line of its own in ssh's config, above a `Host` line whose names are meant


class Answer:
    """Of one host: the document that its gpulease printed, or why there is none, and since when if that is known."""

    def __init__(
        self, host: str, document: Any = None, trouble: GpuleaseError | None = None, since: float | None = None
    ) -> None:
        self.host, self.document, self.trouble, self.since = host, document, trouble, since

    def as_row(self) -> dict[str, Any]:
        """As `--hosts --json` shows it."""
        trouble = self.trouble
        return {
            "host": self.host,
            "trouble": None if trouble is None else trouble.what,
            "next_step": None if trouble is None else trouble.next_step,
            "absent_since": self.since,
            "answer": self.document,
        }


# ---------------------------------------------------------------------- which


def names(asked: str | Iterable[str] | None = None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Those that were asked for, as `a,b`; in a job of Slurm's its nodes; else those of a config, ours or ssh's."""
    if isinstance(asked, str):
        asked = asked.replace(",", " ").split() or None
    found = list(dict.fromkeys(asked or known(environ)))
    if not found:
        from gpulease.system.places import config_path

        path = config_path("own", environ)  # None with simulated GPUs
        option = "`status`, `ls` and `web` take `--hosts gpu1,gpu2`."
        step = option if path is None else f'Write hosts = ["gpu1", "gpu2"] into {path}; {option}'
        raise UsageError("No hosts are known.", step)
    if len(found) > MAX_HOSTS:
        raise UsageError(f"{len(found)} hosts were named.", f"Name at most {MAX_HOSTS}; for more, see Slurm.")
    return found


def known(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Those that nobody has to ask for; none is no error."""
    return _allocated(environ) or _configured(environ) or marked(environ)


def _allocated(environ: Mapping[str, str]) -> list[str]:
    if not environ.get("SLURM_JOB_ID"):
        return []
    from gpulease.hosts.ssh import nodes

    return nodes(environ)


def _configured(environ: Mapping[str, str]) -> list[str] | None:
    from gpulease.system.config_file import setting

    named: list[str] | None = setting("hosts", environ)
    return named


def marked(environ: Mapping[str, str]) -> list[str]:
    """The names, without patterns, of each `Host` line below a line `# gpulease`."""
    home = environ.get("HOME") or os.path.expanduser("~")
    try:
        with open(os.path.join(home, ".ssh", "config"), encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read(1 << 20).split("\n")]
    except OSError:
        return []
    found: list[str] = []
    for above, line in zip(lines, lines[1:], strict=False):  # noqa: RUF007  # without a module more
        words = line.replace("=", " ", 1).split()
        if above == MARK and words and words[0].lower() == "host":
            found += [word for word in words[1:] if not set("*?!#") & set(word)]
    return found


# ---------------------------------------------------------------------- asking


class Call:
    """One host that is being asked, by a process of its own session: what ends this one's terminal does not end it."""

    def __init__(self, host: str, words: Sequence[str], given: str | None, **more: Any) -> None:
        self.host, self.verb = host, words[0]
        self.output = bytearray()
        self.late = self.lost = False
        self.began, self.until = time.monotonic(), 0.0
        called = ssh.command(host, ssh.remote_words(host, words, **more))
        self.said = os.memfd_create("stderr")  # of a pipe the end would not come: ssh's kept connection has it too
        given_to = os.memfd_create("stdin")
        os.write(given_to, (given or "").encode())
        os.lseek(given_to, 0, os.SEEK_SET)
        self.stream, theirs = os.pipe()
        streams = ((given_to, 0), (theirs, 1), (self.said, 2))
        actions = [(os.POSIX_SPAWN_DUP2, ours, number) for ours, number in streams]
        try:
            self.pid = os.posix_spawnp(called[0], called, os.environ, file_actions=actions, setsid=True)
        except FileNotFoundError:
            os.close(self.stream)
            os.close(self.said)
            raise ssh.no_ssh() from None
        finally:
            os.close(given_to)
            os.close(theirs)

    def answer(self) -> Answer:
        """Once its output has ended, or its time is over."""
        os.close(self.stream)
        if self.late:
            os.kill(self.pid, KILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.lost = code == ssh.LOST
        said = os.pread(self.said, BLOCK, 0).decode(errors="replace")
        os.close(self.said)
        try:
            return Answer(self.host, self._document(code, said))
        except GpuleaseError as trouble:
            return Answer(self.host, None, trouble)

    def _document(self, code: int, said: str) -> Any:
        lines = [line for line in said.split("\n") if line]
        if self.late:
            how = "stopped in the middle of its answer" if self.output else "does not answer"
            raise ssh.silent(self.host, how)
        if self.lost:
            raise ssh.failure(self.host, said)
        import json

        try:
            document = json.loads(self.output)
        except ValueError:
            pass
        else:
            return _checked(self.host, self.verb, document)
        messages = [line for line in lines if line.startswith("gpulease")]
        if not messages:
            last = lines[-1][:200] if lines else f"exit code {code}"
            raise HostUnavailable(f"The gpulease of {self.host} gives no answer: {last}", host=self.host)
        if messages[0].startswith(ssh.MISSING):
            raise HostUnavailable(messages[0].removeprefix("gpulease: "), lines[-1], host=self.host)
        what = messages[0].partition(": ")[2] or messages[0]
        if code == USAGE and any(sign in what for sign in NOT_KNOWN):
            raise _other_version(self.host)
        raise by_code(_code(code), f"{self.host}: {what}", lines[-1] if lines[-1] != messages[0] else None, {})


def _checked(host: str, verb: str, document: Any) -> Any:
    """What this version reads of it has to be there."""
    whole = isinstance(document, dict) and set(document).issuperset(NEEDED.get(verb, ()))
    if not whole or (verb == "status" and not _is_status(document)):
        raise _other_version(host)
    return document


def _other_version(host: str) -> HostUnavailable:
    return HostUnavailable(
        f"gpulease on {host} has another version, and this one cannot read its answer.",
        "See `gpulease doctor --hosts`, and install the same on both.",
        host=host,
    )


def _is_status(document: Any) -> bool:
    """Its rows are what tables and pages are made of."""
    devices, leases = document["devices"], document["leases"]
    return (
        isinstance(devices, list)
        and isinstance(leases, list)
        and isinstance(document["line_length"], int)
        and all(_has_texts(one, "state", "label", "name") for one in devices)
        and all(_has_texts(one, "user") and isinstance(one.get("labels"), list) for one in leases)
    )


def _has_texts(row: Any, *fields: str) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(field), str) for field in fields)


def _code(exit_code: int) -> str:
    return {2: "usage", 69: "host", 75: "not-granted", 77: "not-permitted"}.get(exit_code, "error")


def ask_all(
    calls: Mapping[str, Sequence[str]],
    deadline: float | None = None,
    given: Mapping[str, str] | None = None,
    **more: Any,
) -> list[Answer]:
    """What `gpulease WORDS --json` says on each host, in their order. `given` is what each reads on its input.

    `more` is for ssh.remote_words.
    """
    found = {answer.host: answer for answer in answers(calls, deadline, given, **more)}
    return [found[host] for host in calls]


def answers(
    calls: Mapping[str, Sequence[str]],
    deadline: float | None = None,
    given: Mapping[str, str] | None = None,
    **more: Any,
) -> Iterator[Answer]:
    """The same, each as soon as it is there. All are asked before the first is told.

    Without a deadline a host that did not answer lately has less time than the others.
    """
    patience = deadline or ssh.patience()
    little = little_time(patience)
    asked: list[Call] = []
    refused: list[Answer] = []
    for host, words in calls.items():
        try:
            call = Call(host, words, (given or {}).get(host), **more)
            hasty = deadline is None and since(host) is not None
            call.until = call.began + (little if hasty else patience)
            asked.append(call)
        except GpuleaseError as trouble:
            refused.append(Answer(host, None, trouble))
    yield from refused
    for call in _ended(asked):
        yield _remembered(call, call.answer(), little)


def _remembered(call: Call, answer: Answer, little: float) -> Answer:
    """One that did not answer, which took its time, is known to the next commands; one that did is known no more."""
    if answer.trouble is None:
        forget(call.host)
    elif call.late or (call.lost and time.monotonic() - call.began > little):
        known = since(call.host)
        answer.since = remember(call.host) if known is None else known
    return answer


def ask(host: str, words: Sequence[str], deadline: float | None = None, given: str | None = None) -> Any:
    """The same of one host; what went wrong is raised."""
    answer = ask_all({host: words}, deadline, None if given is None else {host: given})[0]
    if answer.trouble is not None:
        raise answer.trouble
    return answer.document


def _ended(calls: list[Call]) -> Iterator[Call]:
    """Each once its output has ended, or its time is over."""
    ready = select.poll()
    open_calls = {call.stream: call for call in calls}
    for stream in open_calls:
        ready.register(stream, select.POLLIN)
    while open_calls:
        rest = min(call.until for call in open_calls.values()) - time.monotonic()
        found = dict(ready.poll(max(0.0, rest) * 1000))
        for stream in found:
            block = os.read(stream, BLOCK)
            open_calls[stream].output += block
            if not block or len(open_calls[stream].output) > LARGEST:
                ready.unregister(stream)
                yield open_calls.pop(stream)
        now = time.monotonic()
        for stream in [stream for stream, call in open_calls.items() if call.until <= now and stream not in found]:
            ready.unregister(stream)
            open_calls[stream].late = True
            yield open_calls.pop(stream)


# ---------------------------------------------------------------------- looking


def status(asked: str | Iterable[str] | None = None, deadline: float | None = None) -> dict[str, Any]:
    """The merged status of all hosts, as `gpulease status --hosts --json` prints it."""
    return of_all("status", (), asked, deadline)


def of_all(
    verb: str, words: Sequence[str], asked: str | Iterable[str] | None = None, deadline: float | None = None
) -> dict[str, Any]:
    """`{"hosts": [{"host", "trouble", "next_step", "answer"}]}`: what the verb prints with --json on each."""
    calls = dict.fromkeys(names(asked), (verb, *words, "--json"))
    return {"hosts": [answer.as_row() for answer in ask_all(calls, deadline)]}
