"""A run always ends, with its true code; and a job whose command never began waits for another run."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.accounts import Namespace
from support.faults import broken, wait_for_faults
from support.other_users import as_user, needs_root
from support.queue_site import (
    QueueSite,
    agent_of,
    all_complete,
    fresh_queue,  # noqa: F401  # pytest finds the fixture here
    wait_for_reason,
)
from support.site import devices_of
from support.waiting import wait_for_end, wait_until

from gpulease.broker.agent.__main__ import ALONE
from gpulease.broker.edge import agents
from gpulease.simulator.library import find_compilers
from gpulease.system import identity

UNTIL_GO = "while ! [ -e go ]; do sleep 0.05; done; "


def go(queue: QueueSite) -> None:
    (queue.folder / "go").touch()


def test_an_agent_that_dies_while_it_reads_an_end_holds_no_gpu() -> None:
    """Before, the job ran for ever, and a kill did not help."""
    site = QueueSite()
    try:
        faults = broken(site, f"/jobs/{os.geteuid()}/runs/")
        broker = site.ensure_broker()
        id = site.shell(f"{UNTIL_GO} exit 125")
        site.until(id, "running")
        faults.set(errno.EIO, 1)
        go(site)
        wait_for_faults(faults, 2)  # its shell notes the end, and its agent reads the note
        agent = agent_of(broker)
        wait_for_faults(faults, 1)
        os.kill(agent, signal.SIGKILL)
        faults.set(0, 0)
        (job,) = site.end(id)
        assert (job["state"], job["exit_code"], job["tries"]) == ("failed", 125, 1)
        wait_until(lambda: devices_of(site, "free") == [0, 1, 2, 3])
    finally:
        site.close()


# -------------------------------------------------------------------- what never began


FAULTY = """
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static int is(const char *name) { return access(getenv(name), F_OK) == 0; }
__attribute__((constructor)) static void begin(void) { if (is("DIES_IF")) kill(getpid(), SIGKILL); }
pid_t fork(void) { return is("ALONE_IF") ? (errno = EAGAIN, -1) : ((pid_t(*)(void))dlsym(RTLD_NEXT, "fork"))(); }
pid_t vfork(void) { return fork(); }
"""


def faulty(queue: QueueSite) -> dict[str, str]:
    """The environment of a job whose shell dies before it begins, or has no process left, while a file is there."""
    compiler, source = find_compilers(os.environ)[0], queue.folder / "faulty.c"
    source.write_text(FAULTY)
    library = str(queue.folder / "faulty.so")
    subprocess.run([*compiler, "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, str(source), "-ldl"], check=True)
    marks = {name: str(queue.folder / name) for name in ("DIES_IF", "ALONE_IF")}
    return {**queue.environ, "LD_PRELOAD": library, **marks}


@pytest.mark.parametrize(
    ("mark", "why"), [("ALONE_IF", "could not start a process"), ("DIES_IF", "ended before it could note")]
)
def test_a_job_whose_shell_started_nothing_waits(mark: str, why: str, queue: QueueSite) -> None:
    """Before, each of them failed, with code 2 or 137, and none had run."""
    (queue.folder / mark).touch()
    ids = queue.submit_all([["true"]] * 12, environment=faulty(queue))
    wait_for_reason(queue, ids[0], why)
    wait_until(lambda: {queue.job(id)["state"] for id in ids} == {"waiting"})
    (queue.folder / mark).unlink()
    all_complete(queue, ids)


# -------------------------------------------------------------------- notes that are lost


def _nothing(note: Path) -> None:
    note.unlink()


def _folder(note: Path) -> None:
    note.unlink()
    note.mkdir()


def _pipe(note: Path) -> None:
    note.unlink()
    os.mkfifo(note)


def _link(note: Path) -> None:
    note.unlink()
    note.symlink_to("nowhere")


def _zeros(note: Path) -> None:
    note.write_bytes(bytes(64))


def _another(note: Path) -> None:
    note.write_text("99999")


def _trouble(note: Path) -> None:
    note.write_text(f"{note.read_text().split()[0]} {'9' * 30}\n")


DAMAGES: tuple[Callable[[Path], None], ...] = (_nothing, _folder, _pipe, _link, _zeros, _another, _trouble)
IN_PLACE = (_nothing, _zeros, _another)
SHARE = {"memory": 1 << 30}


def test_a_note_that_is_lost_is_no_proof_that_a_run_never_began(queue: QueueSite) -> None:
    """Before, the job ran a second time, or was called invalid; and one that lived was killed."""
    script = "echo began >>$GPULEASE_JOB; while ! [ -e {} ]; do sleep 0.05; done; exit 5"
    ended = {queue.shell(script.format("go"), SHARE): damage for damage in DAMAGES}
    living = {queue.shell(script.format("later"), SHARE): damage for damage in IN_PLACE}
    shells = {id: queue.until(id, "running")["pid"] for id in (*ended, *living)}
    notes = Path(queue.job(1)["log"]).parent / "runs"
    queue.kill_broker()
    go(queue)
    for id in ended:
        wait_for_end(shells[id])
    for id, damage in {**ended, **living}.items():
        damage(notes / f"{id}.1")
    queue.ensure_broker()
    assert {(job["state"], job["tries"]) for job in queue.end(*ended)} == {("lost", 1)}
    wait_until(lambda: all(queue.job(id)["pid"] == shells[id] for id in living))
    (queue.folder / "later").touch()
    assert {(job["state"], job["exit_code"], job["tries"]) for job in queue.end(*living)} == {("failed", 5, 1)}
    assert {(queue.folder / str(id)).read_text() for id in shells} == {"began\n"}


def test_what_another_agent_may_still_start_is_not_lost(queue: QueueSite) -> None:
    """Before, a job whose first agent was slow was called lost, and ran all the same when that agent went on."""
    all_complete(queue, [queue.submit("true")])
    pid = queue.broker_pid()
    assert pid is not None
    agent = agent_of(pid)
    os.kill(agent, signal.SIGSTOP)
    try:
        id = queue.shell(f"echo began >>began; {UNTIL_GO} exit 5")
        wait_until(lambda: queue.job(id)["state"] == "running")
        queue.kill_broker()
        broker = queue.ensure_broker()
        waiting = agent_of(broker)
        wait_until(lambda: looks_for_the_lock(waiting))
        time.sleep(ALONE + 0.7)  # nothing tells that it has given up to wait
        assert queue.job(id)["state"] == "running"
    finally:
        os.kill(agent, signal.SIGCONT)
    go(queue)
    (job,) = queue.end(id)
    assert (job["state"], job["exit_code"], job["tries"]) == ("failed", 5, 1)
    assert (queue.folder / "began").read_text() == "began\n"


def test_what_never_began_is_not_lost_if_its_folder_fails_for_a_while() -> None:
    """Before, the job was called lost at once, and did not run when the file server was back."""
    site = QueueSite()
    try:
        faults = broken(site, f"/jobs/{os.geteuid()}")
        broker = site.ensure_broker()
        all_complete(site, [site.submit("true")])
        agent = agent_of(broker)
        os.kill(agent, signal.SIGSTOP)
        id = site.submit("true")
        wait_until(lambda: site.job(id)["state"] == "running")
        site.kill_broker()
        os.kill(agent, signal.SIGKILL)
        faults.set(errno.EIO, 1)
        site.ensure_broker()
        wait_for_faults(faults, 2)  # the next agent has looked for it twice
        faults.set(0, 0)
        all_complete(site, [id])
    finally:
        site.close()


def test_a_pipe_in_the_place_of_a_note_holds_no_agent_up(queue: QueueSite) -> None:
    """Before, the agent waited for a reader of the pipe, and all jobs of its user for the agent."""
    notes = Path(queue.directory, "jobs", str(os.geteuid()), "runs")
    notes.mkdir(0o700, parents=True, exist_ok=True)
    os.mkfifo(notes / "1.1")
    all_complete(queue, [queue.submit("true"), queue.submit("true")])


def looks_for_the_lock(agent: int) -> bool:
    for name in os.listdir(f"/proc/{agent}/fd"):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if os.readlink(f"/proc/{agent}/fd/{name}").endswith("/agent.lock"):
                return True
    return False


@needs_root
def test_a_shell_that_is_hidden_from_the_broker_is_not_taken_for_gone() -> None:
    """Before, a system broker under hidepid=2 replaced the agent of every running job again and again."""
    site = QueueSite()
    try:
        namespace = Namespace(site, "mount -t proc -o hidepid=2 proc /proc")
        started = identity.start_time(namespace.keeper.pid)
        assert started is not None
        shell = namespace.keeper.pid, started
        nobody = pwd.getpwnam("nobody")
        assert namespace.as_user(nobody, lambda: identity.start_time(shell[0])) is None
        assert not namespace.as_user(nobody, lambda: agents._is_gone(*shell))
        namespace.keeper.kill()
        wait_until(lambda: as_user(nobody, lambda: agents._is_gone(*shell)))  # nobody has reaped it yet
    finally:
        site.close()


def test_jobs_ignore_no_signal_that_whoever_started_the_broker_ignores(queue: QueueSite) -> None:
    queue.kill_broker()
    queue.popen(["sh", "-c", 'trap "" QUIT USR1 HUP; exec "$@"', "sh", *queue.words("broker")])
    wait_until(queue.broker_pid)
    id = queue.submit("grep", "SigIgn", "/proc/self/status")
    queue.end(id)
    ignored = int(queue.output(id).split()[1], 16)
    assert not any(ignored >> number - 1 & 1 for number in (signal.SIGQUIT, signal.SIGUSR1, signal.SIGHUP))
