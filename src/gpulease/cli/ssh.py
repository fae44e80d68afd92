"""Run a verb on another host, on several hosts, or on any host. Terminal, signals and exit code pass through."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

from gpulease.api.job_commands import full_path
from gpulease.cli.commands.add import named_variables, prepare, tell_left_out
from gpulease.cli.options import add_wanted
from gpulease.cli.parsing import Options, clean, parse, print_json
from gpulease.cli.remote import Words
from gpulease.errors import HostUnavailable, NotEnoughDevices, UsageError
from gpulease.hosts import hosts
from gpulease.hosts import ssh as hosts_ssh
from gpulease.hosts.choice import HostOffer, spread
from gpulease.hosts.hosts import Answer

if TYPE_CHECKING:
    from gpulease.cli.commands.add import Prepared

CHECK_INTERVAL = 0.02  # seconds between looks at whether the call has ended
PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FROM_HERE = ("run", "shell", "select", "add", "simulate")  # verbs with a command: they belong into this folder
READING = ("run", "shell", "select", "simulate", "pool")  # verbs whose command reads what is typed


def run_there(host: str, verb: str, words: Sequence[str], prefix: str = "", named: str | None = None) -> int:
    """Its exit code; 69 if the host cannot be reached, or is lost meanwhile.

    `prefix` goes before each line of the output. `named` is the folder there, instead of the one like this.
    """
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and not prefix
    folder, environ = (named or full_path("."), os.environ) if verb in FROM_HERE else (None, None)
    remote = hosts_ssh.remote_words(host, [verb, *words], folder, environ, tell_pid=not terminal)
    try:
        if terminal:
            _reach(host)
            code = _with_terminal(hosts_ssh.command(host, remote, True))
        else:
            reads = verb in READING or (verb == "add" and "-" in words)
            code = _passed_through(host, hosts_ssh.command(host, remote), reads, prefix)
        if code == hosts_ssh.LOST and not hosts_ssh.is_node(host) and not _is_connected(host):
            raise hosts_ssh.lost(host, verb, terminal)
        hosts.forget(host)
        return code if code >= 0 else 128 - code
    except FileNotFoundError:
        raise hosts_ssh.no_ssh() from None


def _reach(host: str) -> None:
    """Have the connection open: what keeps it from that is told here, in our words. The rest is the terminal's.

    One that is kept may lead to a host that hangs, so it is tried too.
    """
    if hosts_ssh.is_node(host):
        return
    words = hosts_ssh.command(host, "exit 0")
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as called:
        try:
            code = called.wait(hosts_ssh.patience())
        except subprocess.TimeoutExpired:
            called.kill()
            raise hosts_ssh.silent(host) from None
        if code == hosts_ssh.LOST:
            assert called.stderr is not None
            raise hosts_ssh.failure(host, called.stderr.read(1 << 16).decode(errors="replace"))


def _with_terminal(words: list[str]) -> int:
    """ssh has the terminal, with its interrupts; what is sent to this process alone is passed on."""
    sys.stdout.flush()
    called = subprocess.Popen(words)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in PASSED}
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: called.send_signal(got))
    try:
        return called.wait()
    finally:
        _restore(before)


def _restore(signals: dict[signal.Signals, Any]) -> None:
    for number, before in signals.items():
        signal.signal(number, before)


def _is_connected(host: str) -> bool:
    """Whether the connection that all calls share is still there: then 255 was the command's own exit code."""
    words = hosts_ssh.command(host, "", False, "-O", "check")
    try:
        asked = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=hosts_ssh.patience())
        return asked.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _passed_through(host: str, words: list[str], reads: bool, prefix: str) -> int:
    """Without a terminal. What ssh says is held back until it is known whose word it is."""
    called = subprocess.Popen(
        words,
        stdin=None if reads else subprocess.DEVNULL,
        stdout=subprocess.PIPE if prefix else None,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a signal of the terminal is ours to pass on: ssh would end, its command would not
    )
    there = _Errors(called.stderr)
    signals = {number: signal.signal(number, lambda got, _: there.signal(host, got, called)) for number in PASSED}
    try:
        there.start()
        if not hosts_ssh.is_node(host):  # Slurm may have it wait
            _until_answered(host, there, called)
        for line in called.stdout or ():
            sys.stdout.write(prefix + line.decode(errors="replace"))
        sys.stdout.flush()
        code = called.wait()
    finally:
        _restore(signals)
    there.join(1.0)  # its end need not come: a connection that is kept has it open
    if code == hosts_ssh.LOST and there.pid is None:
        raise hosts_ssh.failure(host, there.held.decode(errors="replace"))
    there.let_go()
    return code


def _until_answered(host: str, there: _Errors, called: subprocess.Popen[bytes]) -> None:
    """A connection that is kept may lead to a host that hangs; what runs there may then take as long as it likes."""
    until = time.monotonic() + hosts_ssh.patience()
    while not there.answered.wait(CHECK_INTERVAL) and called.poll() is None:
        if time.monotonic() > until:
            called.kill()
            called.wait()
            raise hosts_ssh.silent(host)


class _Errors(threading.Thread):
    """The other side's stderr: its first line names the process there, and the rest is passed on."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        super().__init__(daemon=True)
        assert stream is not None
        self._stream = stream
        self.pid: int | None = None
        self.answered = threading.Event()  # its shell runs there, or nothing more comes
        self.held = b""  # before that line: ssh's own words, or those of the shell's start

    def run(self) -> None:
        while block := os.read(self._stream.fileno(), 1 << 16):
            self.held += block
            if self.pid is None:
                self._find_pid()
            if self.pid is not None:
                self.answered.set()
                self.let_go()
        self.answered.set()

    def _find_pid(self) -> None:
        before, _, after = self.held.partition(f"{hosts_ssh.PID} ".encode())
        number, newline, rest = after.partition(b"\n")
        if newline and number.isdigit():
            self.held, self.pid = before + rest, int(number)

    def let_go(self) -> None:
        sys.stderr.buffer.write(self.held)
        sys.stderr.flush()
        self.held = b""

    def signal(self, host: str, number: int, called: subprocess.Popen[bytes]) -> None:
        """To the process there, by the same connection; before there is one, the call ends."""
        if self.pid is None:
            called.terminate()
            return
        name = signal.Signals(number).name.removeprefix("SIG")
        group = "-" if number in (signal.SIGINT, signal.SIGQUIT) else ""  # as a terminal sends them
        kill = f"kill -s {name} -- {group}{self.pid}"
        subprocess.Popen(
            hosts_ssh.command(host, kill),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


# -------------------------------------------------------------------- several hosts

HERE = "here"


def run_on_all(found: Words, hosts: dict[str | None, list[str]]) -> int:
    """The largest exit code. Each line is told with its host before it; with --json one document has all answers."""
    as_json = "--json" in found.options
    calls = {host or HERE: _call(found, host, ids, as_json) for host, ids in hosts.items()}
    try:
        if as_json:
            answers = [_answer(host, call) for host, call in calls.items()]
            print_json({"hosts": [answer.as_row() for answer in answers]}, 2)
        else:
            _pass_on(calls)
    except KeyboardInterrupt:
        pass  # they had it too
    return max(call.wait() for call in calls.values())


def _call(found: Words, host: str | None, ids: list[str], as_json: bool) -> subprocess.Popen[bytes]:
    where = [] if host is None else ["--host", host]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gpulease", *where, found.verb, *found.options, *ids, *found.command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if as_json else subprocess.PIPE,
    )


def _answer(host: str, call: subprocess.Popen[bytes]) -> Answer:
    from gpulease.errors import HostUnavailable

    output, _ = call.communicate()
    try:
        return Answer(host, json.loads(output))
    except ValueError:
        return Answer(host, None, HostUnavailable(f"{host} gave no answer.", "What it said is on stderr."))


def _pass_on(calls: dict[str, subprocess.Popen[bytes]]) -> None:
    """Whole lines, as they come."""
    with selectors.DefaultSelector() as ready:
        for host, call in calls.items():
            for source, target in ((call.stdout, sys.stdout), (call.stderr, sys.stderr)):
                assert source is not None
                ready.register(source, selectors.EVENT_READ, _HostLines(host, target))
        while ready.get_map():
            for key, _ in ready.select():
                block = key.fileobj.read1(1 << 16)  # type: ignore[union-attr]  # a pipe of subprocess
                key.data.take(block)
                if not block:
                    ready.unregister(key.fileobj)


class _HostLines:
    def __init__(self, host: str, target: IO[str]) -> None:
        self._host, self._target, self._rest = host, target, b""

    def take(self, block: bytes) -> None:
        """An empty block is the end."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        if not block and self._rest:
            lines.append(self._rest)
        for line in lines:
            print(f"{self._host}: {clean(line.decode(errors='replace'))}", file=self._target, flush=True)


# ---------------------------------------------------------------------- on any host

ANY = "any"
VERBS = ("add", "run", "shell")
MOST = 64  # alike that a host is asked about
LONG = 60.0  # seconds for a host to queue a batch


def run_anywhere(found: Words) -> int:
    """Where it would start soonest, or where a part of a batch would."""
    if found.verb not in VERBS:
        raise UsageError(
            f"`gpulease {found.verb}` is about one host.", f"Name one; {', '.join(VERBS)} and `status` take several."
        )
    asked = found.where["--host"]
    names = hosts.names(None if asked == ANY else asked)
    batch = _batch(found) if found.verb == "add" else None
    count = 1 if batch is None else len(batch[0])
    candidates = _candidates(names, found, count)
    chosen = spread(candidates, count, _gpus(found))
    if len(set(chosen)) > 1 and batch is not None:
        return _add_to_several(batch, chosen, found)
    host = chosen[0]
    if found.verb != "add":
        print(f"gpulease: on {host}", file=sys.stderr, flush=True)
    prefix = f"{host}:" if found.verb == "add" else ""
    return run_there(host, found.verb, [*found.options, *found.command], prefix, found.folder)


def _candidates(names: list[str], found: Words, count: int) -> list[HostOffer]:
    """The hosts that could serve it. Why one cannot is told; when none can, that is the error."""
    words = ["explain", "--json", f"--count={min(count, MOST)}", *(["--job"] if found.verb == "add" else [])]
    words += [word for group in found.groups if group[0].partition("=")[0] in _request_flags() for word in group]
    if not any(group[0].partition("=")[0] in ("-n", "--gpus") for group in found.groups):
        words.append("--gpus=1")
    program = _program(found)
    folder = found.folder or full_path(".")
    answers = hosts.ask_all(dict.fromkeys(names, words), folder=folder, environ=os.environ, program=program)
    offers = {answer.host: answer.document and HostOffer.of(answer.host, answer.document) for answer in answers}
    candidates = [one for one in offers.values() if one]
    for answer in answers:
        if candidates and answer.trouble is not None:
            print(f"gpulease: {clean(answer.trouble.what)} It is left out.", file=sys.stderr)
    if not candidates:
        raise _nowhere(answers)
    return candidates


def _nowhere(answers: list[Answer]) -> HostUnavailable | NotEnoughDevices:
    reasons = " ".join(
        f"{answer.host}: {answer.document['why']}" if answer.trouble is None else answer.trouble.what
        for answer in answers
    )
    if all(isinstance(answer.trouble, HostUnavailable) for answer in answers):
        return HostUnavailable(f"No host can be used. {reasons}")
    lacking = all(answer.trouble is not None for answer in answers)  # a folder, an environment, a command
    step = "Have it on one of the hosts." if lacking else "Ask for less, or see `gpulease status --hosts`."
    return NotEnoughDevices(f"No host can serve this. {reasons}", step)


def _request_flags() -> set[str]:
    options = Options()
    add_wanted(options, "")
    return {*options.flags}


def _gpus(found: Words) -> int:
    arguments = parse(found.verb, found.options)
    return int(arguments.gpus)


def _program(found: Words) -> str:
    """The command that must be there; of a batch, and of what a shell reads, it is checked when it is queued."""
    options = {group[0].partition("=")[0] for group in found.groups}
    command = [word for word in found.command if word != "--"]
    return "" if options & {"--file", "--sweep", "--shell", "--force"} or not command else command[0]


# ---------------------------------------------------------------------- a batch


def _batch(found: Words) -> Prepared | None:
    """Of several commands that may run on several hosts: a number of them that run at a time is one host's to count."""
    options = {group[0].partition("=")[0] for group in found.groups}
    if not options & {"--file", "--sweep"}:
        return None
    arguments = parse("add", [*found.options, *found.command])
    if arguments.after or arguments.after_any or arguments.after_label or arguments.after_any_label:
        raise UsageError("Jobs come after others of their own host.", "Name that host with --host.")
    if arguments.file == "-":
        raise UsageError("--file - cannot be spread over hosts.", "Write the commands into a file, or name one host.")
    arguments.cwd = None  # it is a folder there
    batch = prepare(arguments)
    batch[3]["cwd"] = found.folder or batch[3]["cwd"]
    return None if arguments.at_most is not None else batch


def _add_to_several(batch: Prepared, chosen: list[str], found: Words) -> int:
    """The ids are printed in the order of the commands. What one host refuses is told; the others keep theirs."""
    commands, _, request, options, each = batch
    arguments = parse("add", [*found.options, *found.command])
    shared = {name: value for name, value in options.items() if name not in ("environment", "env_kept")}
    common = {"request": request, "options": shared, "no_env": arguments.no_env, "force": arguments.force}
    common["env"] = named_variables(arguments.env)
    given = {}
    for host in dict.fromkeys(chosen):
        mine = [place for place, name in enumerate(chosen) if name == host]
        part = {**common, "commands": [commands[place] for place in mine], "token": os.urandom(8).hex()}
        part["each"] = [each[place] for place in mine] if each else []
        given[host] = json.dumps({"batches": [part]})
    answers = _send(given)
    unsure = {host: given[host] for host, one in answers.items() if isinstance(one.trouble, HostUnavailable)}
    return _tell(chosen, {**answers, **_send(unsure)})  # by its token a batch that did arrive is not queued twice


def _send(given: dict[str, str]) -> dict[str, Answer]:
    calls = dict.fromkeys(given, ("add", "--transfer"))
    return {one.host: one for one in hosts.ask_all(calls, LONG, given, environ=os.environ)}


def _tell(chosen: list[str], answers: dict[str, Answer]) -> int:
    ids: dict[str, list[int]] = {}
    code = 0
    for host, answer in answers.items():
        added: dict[str, Any] = {} if answer.trouble else answer.document["added"][0]
        added.setdefault("trouble", answer.trouble and answer.trouble.what)
        if added["trouble"] is not None:
            print(f"gpulease: {host}: {clean(added['trouble'])}", file=sys.stderr)
            code = 1 if answer.trouble is None else answer.trouble.exit_code
        else:
            ids[host] = list(range(added["first"], added["last"] + 1))
            tell_left_out(added["left_out"])
    for host in chosen:
        if host in ids:
            print(f"{host}:{ids[host].pop(0)}")
    return code
