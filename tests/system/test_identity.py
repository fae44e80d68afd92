"""Who a process is, and who asked: past subshells and wrappers, not past a shell of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from gpulease.broker.edge.reaper import Reaper
from gpulease.system import identity

WHO = "import os; from gpulease.system.identity import requesting_process; print(requesting_process(os.getpid()))"


def requester(script: str, shell: str = "bash") -> tuple[int, str]:
    """(pid of the script, what its child found)."""
    line = f'echo $$; who() {{ "{sys.executable}" -c "{WHO}"; }}; {script}'
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True, timeout=60)
    pid, _, rest = done.stdout.partition("\n")
    return int(pid), rest.strip()


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    "script",
    [
        "who; true",
        "X=$(who); echo $X",
        "X=$( (who) ); echo $X",
        "X=$(echo $(echo $(who))); echo $X",
        "X=$(who | cat | cat); echo $X",
        "(who; true); true",
        "{ who; } | cat",
        "who & wait",
    ],
)
def test_the_script_is_found_past_its_subshells(shell: str, script: str) -> None:
    pid, found = requester(script, shell)
    assert found == str(pid)


def test_a_process_substitution_is_a_subshell_too() -> None:
    pid, found = requester("read X < <(who); echo $X")
    assert found == str(pid)


@pytest.mark.parametrize("wrapper", ["timeout 60", "env", "nice", "timeout 60 env nice"])
def test_wrappers_are_passed_by(wrapper: str) -> None:
    pid, found = requester(f'X=$({wrapper} "{sys.executable}" -c "{WHO}"); echo $X')
    assert found == str(pid)


def test_a_shell_in_a_shell_asks_for_itself() -> None:
    inner = f'echo $$; "{sys.executable}" -c "{WHO}"; true'
    pid, found = requester(f"bash -c '{inner}'; true")
    asking, reply = found.split()
    assert asking == reply
    assert reply != str(pid)


def test_the_name_of_a_process_may_hold_anything(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b c"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "600"]) as process:
        try:
            assert identity.parent_of(process.pid) == os.getpid()
            assert identity.start_time(process.pid) is not None
            assert identity.user_of(process.pid) == os.geteuid()
        finally:
            process.kill()


def test_who_is_gone_is_nobody() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert identity.start_time(process.pid) is None
    assert identity.user_of(process.pid) is None
    assert identity.parent_of(process.pid) is None
    assert identity.pidfd(process.pid) is None
    assert identity.requesting_process(process.pid) == 1


@pytest.mark.parametrize("pid", [0, -1, -(2**40), 2**31, 2**40, 2**62])
def test_a_pid_that_cannot_be_is_nobody(pid: int) -> None:
    assert identity.pidfd(pid) is None
    assert identity.start_time(pid) is None


WITHOUT_DESCRIPTORS = """
import os, resource, select
from gpulease.system import identity
from gpulease.broker.edge.reaper import Reaper
from gpulease.system import probe
poll, parent = select.epoll(), os.getppid()
reaper = Reaper(poll)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for look in (identity.pidfd, identity.start_time, identity.family, lambda pid: identity.boot_id()):
    try:
        print(look(parent))
    except OSError:
        print("nobody knows")
print(identity.user_of(parent) == os.geteuid(), probe.facts([parent])[parent])
print(reaper.watch(parent, 1), reaper.watch(parent, None), reaper.recheck())
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(reaper.recheck(), reaper.recheck())
"""


def test_a_lack_of_descriptors_is_no_proof_of_anybodys_end() -> None:
    """What cannot be looked at counts as alive, and is looked at again once that is possible."""
    words = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    reply = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert reply[:4] == ["nobody knows"] * 4
    assert reply[4] == "True (None, None, None)"
    assert reply[5] == "True True []"
    assert reply[6] == f"[({os.getpid()}, 1)] []"  # gone: under that pid is one that began at another time


def test_a_reaper_leaves_descriptors_to_others_and_still_learns_of_every_end() -> None:
    reaper = Reaper(select.epoll(), most=1)
    process = subprocess.Popen(["sleep", "600"])
    assert reaper.watch(os.getpid(), None)
    assert reaper.watch(process.pid, None)
    assert reaper.recheck() == []
    process.kill()
    process.wait()
    assert reaper.recheck() == [(process.pid, None)]


def test_a_pidfd_becomes_readable_when_its_process_ends() -> None:
    process = subprocess.Popen(["sleep", "600"])
    descriptor = identity.pidfd(process.pid)
    assert descriptor is not None
    assert not select.select([descriptor], [], [], 0)[0]
    process.kill()
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    process.wait()


def test_the_boot_has_a_name() -> None:
    assert len(identity.boot_id()) == 36


CHAIN = """
import os
from gpulease.system import identity
chain = [os.getpid()]
for level in range(150):
    if os.fork():
        os.wait()
        os._exit(0)
    chain.append(os.getpid())
    open("/proc/self/comm", "w").write("env")
print(len(identity.above(os.getpid())), chain.index(identity.requesting_process(os.getpid())), flush=True)
"""


def test_the_processes_above_one_are_looked_at_up_to_some_height_only() -> None:
    """With 3,000 processes called `env` above a client, one message of it took half a minute."""
    reply = subprocess.run([sys.executable, "-c", CHAIN], capture_output=True, text=True, timeout=60)
    height, found = map(int, reply.stdout.split())
    assert (height, found) == (identity.LEVELS, 150 - 1 - identity.LEVELS), reply
