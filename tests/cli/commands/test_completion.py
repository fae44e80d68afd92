"""Completion offers verbs, options, ids, labels, users, models and devices, in real shells; and is silent and quick."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.machine import listener_at
from support.needs import needs, program
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import read_terminal

HEAVY = ("argparse", "asyncio", "json", "rich", "typing")
LOADED = "import sys; from gpulease.cli.main import main; main({!r}); print(*sorted(sys.modules), file=sys.stderr)"


@pytest.fixture
def busy(site: Site) -> Site:
    """Job 1 waits for GPU 3, which a reservation has; job 2 is held."""
    site.run("get", "--devices", "3", "--for", "1h")
    site.run("add", "--devices", "3", "--label", "night", "--", "true")
    site.run("add", "--hold", "--label", "sweep", "--", "true")
    return site


def offered(site: Site, *words: str) -> list[str]:
    done = site.run("completion", "--words", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_values_are_what_the_broker_knows(busy: Site) -> None:
    user = busy.status()["leases"][0]["user"]
    for words, found in {
        "kill ": "2 1 all last",
        "resume ": "2 all last",
        "move ": "1 last",
        "explain ": "1 last",
        "release ": "L1 0 1 2 3",
        "renew ": "L1",
        "kill --label ": "night sweep",
        "add --after-label s": "sweep",
        "add --after ": "2 1 all last",
        "ls --user ": user,
        "run --model ": "A100-SXM4-80GB",
        "run --model=A": "--model=A100-SXM4-80GB",
        "add --devices 0,": "0,0 0,1 0,2 0,3",
        "exclude ": "0 1 2 3",
        "ls --state failed,k": "failed,killed",
    }.items():
        assert offered(busy, *words.split(" ")) == found.split(), words


def test_words_need_no_broker() -> None:
    """And none is started for them."""
    from gpulease.cli.commands.completion import suggestions

    assert "select" in suggestions(["se"])
    assert "--min-memory" in suggestions(["select", "--m"])
    assert suggestions(["select", "--order", "fr"]) == ["free-memory"]
    assert suggestions(["nonsense", "--x"]) == []
    assert suggestions(["pool", "st"]) == ["start", "stop"]
    assert "--max-items" in suggestions(["pool", "start", "--m"])
    assert "--user" in suggestions(["install", "--"])
    assert suggestions(["simulate", "s"]) == ["set", "show"]
    assert suggestions(["help", "conta"]) == ["containers"]
    assert suggestions(["run", "--model", "=", ""]) == suggestions(["run", "python", "tra"]) == []


def test_no_broker_is_started_and_nothing_is_said(site: Site) -> None:
    assert offered(site, "release", "") == offered(site, "kill", "--label", "") == []
    assert offered(site, "kill", "") == ["all", "last"]
    assert listener_at(site.environ["GPULEASE_DIR"]) is None


def test_it_loads_little(busy: Site) -> None:
    program = LOADED.format(["completion", "--words", "kill", ""])
    done = subprocess.run([sys.executable, "-c", program], env=busy.environ, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "1", "all", "last"]
    assert [name for name in done.stderr.split() if name in HEAVY] == []


def test_a_broker_that_hangs_is_not_waited_for(busy: Site) -> None:
    broker = listener_at(busy.environ["GPULEASE_DIR"])
    assert broker is not None
    os.kill(broker, signal.SIGSTOP)
    try:
        done = busy.run("completion", "--words", "kill", "--label", "")
    finally:
        os.kill(broker, signal.SIGCONT)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == -signal.SIGALRM


# ---- real shells


def prepared(site: Site, folder: Path) -> dict[str, str]:
    """With `gpulease`, and a command that no other begins like, on the PATH."""
    for name, text in {"gpulease": f'exec {shlex.quote(sys.executable)} -m gpulease "$@"', "zzunique": ":"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "a-file-of-mine").touch()
    return {**site.environ, "PATH": f"{folder}:{site.environ['PATH']}", "HOME": str(folder), "TERM": "dumb"}


def typed_in(shell: str, words: str, start: str, site: Site, folder: Path) -> str:
    """What a terminal shows when `words` and the tab key are typed."""
    found = program(shell)
    options = {"zsh": ["-f", "-i"], "bash": ["--norc", "--noprofile", "-i"]}[shell]
    environ = prepared(site, folder)
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execve(found, [found, *options], environ)
    os.write(terminal, f"{start}; echo re''ady\n".encode())
    read_terminal(terminal, b"ready")
    os.write(terminal, f"{words}\t".encode())
    shown = read_terminal(terminal, FOUND[words].encode())
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(terminal)
    return shown.decode(errors="replace")


FOUND = {
    "gpulease complet": "completion",
    "gpulease kill --label ni": "night",
    "gpulease run -- zzun": "zzunique",
    "gpulease run -- cat a-fi": "a-file-of-mine",
    "gpulease add --file a-fi": "a-file-of-mine",
}
START = {
    "bash": 'eval "$(gpulease completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(gpulease completion zsh)"',
}


@pytest.mark.parametrize("shell", START)
def test_a_tab_completes_at_a_terminal(shell: str, busy: Site, tmp_path: Path) -> None:
    for words, found in FOUND.items():
        assert found in typed_in(shell, words, START[shell], busy, tmp_path), words


@needs("fish")
def test_fish_completes_too(busy: Site, tmp_path: Path) -> None:
    asked = "; echo ===; ".join(f"complete -C {shlex.quote(words)}" for words in FOUND)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"gpulease completion fish | source; {asked}"],
        env=prepared(busy, tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    for found, shown in zip(FOUND.values(), done.stdout.split("===\n"), strict=True):
        assert [line.split("\t")[0] for line in shown.splitlines()] == [found], done
