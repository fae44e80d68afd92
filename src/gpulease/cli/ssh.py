"""A verb on another host, with terminal, signals and exit code passed through; or on several at once."""

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
from typing import IO, Any

from gpulease.api.job_commands import full_path
from gpulease.cli.parsing import clean, print_json
from gpulease.cli.remote import Words
from gpulease.hosts import hosts
from gpulease.hosts import ssh as hosts_ssh
from gpulease.hosts.hosts import Answer

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
