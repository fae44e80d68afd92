"""The prompt of `gpulease shell` and `gpulease simulate` says where one is, in the user's own shell and settings."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest
from support.machine import Machine
from support.needs import program
from support.waiting import read_terminal

SHELLS = {
    "bash": (".bashrc", "PS1='mine> '; known=own-file"),
    "zsh": (".zshrc", "PROMPT='mine> '; known=own-file"),
    "fish": (".config/fish/config.fish", "function fish_prompt; echo -n 'mine> '; end; set known own-file"),
    "dash": (".profile", ""),
}


def typed(machine: Machine, home: Path, shell: str, lines: str, *words: str) -> str:
    """What a terminal shows in which a user types `lines`."""
    path = program(shell)
    name, text = SHELLS[shell]
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text(f"{text}\n")
    kept = {name: value for name, value in machine.environ.items() if not name.startswith(("XDG", "ZDOTDIR"))}
    kept["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # with a built library
    environ = {**kept, "HOME": str(home), "SHELL": path, "TERM": "dumb"}
    words = tuple(machine.words(*words))
    process, ours = pty.fork()  # a shell wants a terminal of its own
    if process == 0:
        os.execve(words[0], words, environ)
    shown = read_terminal(ours, b"mine> " if text else b") ")
    os.write(ours, lines.encode() + b'echo the end "of" it\n')
    shown += read_terminal(ours, b"the end of it")
    os.write(ours, b"exit\n")
    read_terminal(ours, b"no such text, so until it is closed")
    os.waitpid(process, 0)
    os.close(ours)
    return shown.decode(errors="replace")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_of_a_lease_is_marked_and_reads_the_users_files(shell: str, machine: Machine, tmp_path: Path) -> None:
    lines = 'echo "[$known]" "[$ZDOTDIR]" "[$GPULEASE_PROMPT]"\n'
    shown = typed(machine, tmp_path, shell, lines, "shell", "-n", "2", "--devices", "1,2")
    machine.run("stop")
    mine = "mine> " if SHELLS[shell][1] else ("# " if os.geteuid() == 0 else "$ ")
    assert f"(gpu 1,2) {mine}" in shown
    assert "[(gpu 1,2) ]" in shown
    assert ("[own-file]" in shown) == bool(SHELLS[shell][1])
    assert "prompts/zsh" not in shown


def test_a_simulated_machine_is_marked_too(machine: Machine, tmp_path: Path) -> None:
    shown = typed(machine, tmp_path, "bash", "false\necho code $?\n", "simulate", "-n", "3")
    assert "(simulated 3) mine> " in shown
    assert "code 1" in shown


def test_what_is_piped_into_a_shell_is_not_marked(machine: Machine) -> None:
    words = machine.words("simulate", "-n", "1")
    environ = {**machine.environ, "SHELL": str(shutil.which("bash"))}
    done = subprocess.run(words, env=environ, input='echo "[$GPULEASE_PROMPT]"', capture_output=True, text=True)
    assert done.stdout == "[]\n"
