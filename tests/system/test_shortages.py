"""A shortage delays and is said; it fails no job, loses none and frees nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.accounts import Namespace
from support.faults import broken, wait_for_faults
from support.other_users import needs_root
from support.queue_site import (
    QueueSite,
    agent_of,
    alive,
    all_complete,
    fresh_queue,  # noqa: F401  # pytest finds the fixture here
    wait_for_reason,
)
from support.users import User
from support.waiting import wait_for_end, wait_until

from gpulease.broker.store.sqlite import SqliteStore

FIRST = 61001
JOBS = 20


# -------------------------------------------------------------------- room on a disk


class SmallDisk:
    """A broker whose folder of jobs is on a disk of its own."""

    def __init__(self, options: str) -> None:
        self.site = QueueSite()
        folder = Path(self.site.directory, "jobs")
        folder.mkdir(parents=True)
        os.chmod(self.site.directory, 0o700)
        self.namespace = Namespace(self.site, f"mount -t tmpfs -o mode=700,{options} none {folder}")
        self.folder = folder
        self.site.popen(self.namespace.words(sys.executable, "-m", "gpulease", "broker"))
        wait_until(self.site.broker_pid)

    def sh(self, script: str) -> None:
        subprocess.run(self.namespace.words("sh", "-c", script), check=False, capture_output=True)


FILL = {
    "size=256k": "dd if=/dev/zero of={}/fill bs=4k; for i in 1 2 3; do dd if=/dev/zero of={}/fill$i bs=512; done",
    "nr_inodes=100": "i=0; while : >{}/fill$i; do i=$((i+1)); done",
}


@needs_root
@pytest.mark.parametrize("options", FILL)
def test_a_full_disk_holds_the_queue_and_burns_no_job(options: str) -> None:
    """Before, jobs whose journal could not be written became failed or invalid, one after the other."""
    disk = SmallDisk(options)
    site = disk.site
    try:
        all_complete(site, [site.submit("true")])
        disk.sh(FILL[options].replace("{}", str(disk.folder)))
        ids = site.submit_all([["true"]] * JOBS)
        wait_for_reason(site, ids[0], "No space left")
        assert {job["state"] for job in site.jobs()} <= {"waiting", "running", "complete"}
        assert site.json("status")["leases"] == [] or site.job(ids[0])["state"] == "running"
        disk.sh(f"rm {disk.folder}/fill*")
        all_complete(site, ids)
    finally:
        site.close()


@needs_root
def test_what_ended_on_a_full_disk_is_known_to_the_next_broker() -> None:
    disk = SmallDisk("size=256k")
    site = disk.site
    try:
        id = site.shell("while ! [ -e go ]; do sleep 0.05; done; exit 7")
        site.until(id, "running")
        disk.sh(FILL["size=256k"].replace("{}", str(disk.folder)))
        site.kill_broker()
        (site.folder / "go").touch()
        site.popen(disk.namespace.words(sys.executable, "-m", "gpulease", "broker"))
        wait_until(site.broker_pid)
        assert [(job["state"], job["exit_code"]) for job in site.end(id)] == [("failed", 7)]
    finally:
        site.close()


# -------------------------------------------------------------------- input and output


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_who_waits_goes_on_while_a_broker_cannot_start(error: int) -> None:
    """Before, whoever waited in the line was told of the full disk and refused."""
    site = QueueSite()
    try:
        faults = broken(site, "")
        holder = site.holder("-n", "4")
        waiting = site.start("run", "--", "echo", "granted")
        wait_until(lambda: site.status()["line"])
        faults.set(error, 1)
        site.kill_broker()
        wait_for_faults(faults, 10)
        faults.set(0, 0)
        holder.kill()
        assert waiting.communicate(timeout=60)[0] == "granted\n"
    finally:
        site.close()


TAKES = """
import os, sys
from gpulease.client import connection as client_connection
fields = {"request": {"gpus": 1}, "kind": "get", "wait": None, "owner": os.getppid()}
granted, connection = client_connection.acquire(fields)
print("granted", flush=True)
sys.stdin.readline()
client_connection.take(connection, granted)
print("taken")
"""


def test_what_was_granted_is_taken_once_there_is_room_again() -> None:
    """Before, `get` printed its GPUs, failed because the disk was full, and so gave them back."""
    site = QueueSite()
    try:
        faults = broken(site, "")
        asking = site.python(TAKES)
        assert asking.stdout is not None
        assert asking.stdin is not None
        assert asking.stdout.readline() == "granted\n"
        faults.set(errno.ENOSPC, 1)
        asking.stdin.write("\n")
        asking.stdin.flush()
        wait_for_faults(faults, 2)
        faults.set(0, 0)
        assert asking.communicate(timeout=60)[0] == "taken\n"
        assert [lease["pid"] for lease in site.status()["leases"]] == [os.getpid()]
    finally:
        site.close()


def test_a_note_that_cannot_be_read_is_no_proof_that_a_run_never_began() -> None:
    """Before, its job was started a second time."""
    site = QueueSite()
    try:
        faults = broken(site, f"/jobs/{os.geteuid()}/runs/")
        site.ensure_broker()
        id = site.shell("echo began; while ! [ -e go ]; do sleep 0.05; done; exit 7")
        shell = site.until(id, "running")["pid"]
        site.kill_broker()
        (site.folder / "go").touch()
        wait_for_end(shell)
        faults.set(errno.EIO, 1)
        site.ensure_broker()
        wait_for_faults(faults, 2)
        assert site.job(id)["state"] == "running"
        faults.set(0, 0)
        assert [(job["state"], job["exit_code"], job["tries"]) for job in site.end(id)] == [("failed", 7, 1)]
        assert site.output(id) == "began\n"
    finally:
        site.close()


# -------------------------------------------------------------------- processes and descriptors


def limited(pid: int, which: int, most: int) -> Callable[[], None]:
    """Lower a limit of a process; what is returned puts it back."""
    before = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (most, before[1]))
    return lambda: resource.prlimit(pid, which, before) and None


def test_a_lack_of_descriptors_delays_jobs(queue: QueueSite) -> None:
    """Before, each launch that failed so made its job invalid, and the jobs behind it were forgotten."""
    all_complete(queue, [queue.submit("true")])
    pid = queue.broker_pid()
    assert pid is not None
    put_back = limited(agent_of(pid), resource.RLIMIT_NOFILE, 3)
    ids = queue.submit_all([["true"]] * JOBS)
    wait_for_reason(queue, ids[0], "Too many open files")
    put_back()
    all_complete(queue, ids)


def test_a_lack_of_descriptors_of_the_broker_delays_jobs(queue: QueueSite) -> None:
    """Before, the order to start a job was lost with the agent that could not be had, and the job ran for ever."""
    queue.ask("status")  # its sampler is there, its agent is not
    pid = queue.broker_pid()
    assert pid is not None
    with queue.raw() as raw:
        raw.ask("ping")  # it is let in
        put_back = limited(pid, resource.RLIMIT_NOFILE, 3)
        options = {"cwd": "/", "environment": queue.environ}
        raw.send("add", request={}, options=options, commands=[["true"]] * JOBS)
        assert raw.receive()["ok"]["last"] == JOBS
        wait_until(lambda: "Too many open files" in str(raw.ask("show", select={"ids": [[1, 1]]})["ok"]["jobs"]))
        put_back()
    all_complete(queue, list(range(1, JOBS + 1)))


def test_who_names_an_owner_is_told_what_the_broker_lacks(queue: QueueSite) -> None:
    """Before, it was told of a mistake of the broker's, and a traceback was in its log."""
    queue.ask("status")
    pid = queue.broker_pid()
    assert pid is not None
    with queue.raw() as raw:
        raw.ask("ping")  # it is let in
        put_back = limited(pid, resource.RLIMIT_NOFILE, 3)
        raw.acquire(owner=os.getpid())
        reply = raw.receive()["error"]
        assert (reply["code"], "Too many open files" in reply["what"]) == ("broker", True)
        put_back()
        raw.acquire(owner=os.getpid())
        raw.granted()


def test_a_commit_needs_no_more_descriptors(tmp_path: Path) -> None:
    """Before, a broker that had none left when it first forced something to the disk died of it."""
    store = SqliteStore(str(tmp_path / "state.db"))
    store.write("settings", "paused", {"text": "yes"})
    put_back = limited(os.getpid(), resource.RLIMIT_NOFILE, 3)
    try:
        store.commit(durable=True)
    finally:
        put_back()
        store.close()


@needs_root
def test_a_lack_of_processes_delays_jobs() -> None:
    site = QueueSite(shared=True)
    site.folder.chmod(0o777)
    try:
        user = User(site, FIRST)
        broker = user.start("broker")
        wait_until(site.broker_pid)
        add = user.run("add", "--", "true")
        assert add.returncode == 0, add.stderr
        all_complete(site, [1])
        limit = ["prlimit", "--pid", str(agent_of(broker.pid))]
        before = user.execute([*limit, "--nproc", "-o", "SOFT", "--noheadings"]).stdout.strip()
        assert user.execute([*limit, "--nproc=1:"]).returncode == 0
        for _ in range(3):
            assert user.run("add", "--", "true").returncode == 0
        wait_for_reason(site, 2, "temporarily unavailable")
        assert user.execute([*limit, f"--nproc={before}:"]).returncode == 0
        all_complete(site, [2, 3, 4])
    finally:
        site.close()


def test_a_job_that_is_killed_before_it_has_a_process_ends_nobody_else(queue: QueueSite) -> None:
    """Before, its missing pid was taken for session 0, and everything of the machine's first session was signalled."""
    all_complete(queue, [queue.submit("true")])
    pid = queue.broker_pid()
    assert pid is not None
    agent = agent_of(pid)
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    os.kill(agent, signal.SIGSTOP)
    try:
        id = queue.submit("sleep", "600")
        wait_until(lambda: queue.job(id)["state"] == "running")
        queue.act("kill", id)
        os.kill(agent, signal.SIGCONT)
        assert queue.end(id)[0]["state"] == "killed"
        assert alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


# -------------------------------------------------------------------- what a user writes


NONSENSE = ((b"9" * 5000, b"1 " + b"9" * 5000, b"\xff" * 64), (b"-5 3", b"0", b"x" * (1 << 22)))


@pytest.mark.parametrize("texts", NONSENSE, ids=["long", "short and huge"])
def test_nonsense_in_a_note_harms_its_own_run_only(queue: QueueSite, texts: tuple[bytes, ...]) -> None:
    """Before, one line in a user's journal kept the broker from starting."""
    odd = {queue.shell("sleep 600"): text for text in texts}
    fine = queue.shell("while ! [ -e go ]; do sleep 0.05; done")
    shells = [queue.until(id, "running")["pid"] for id in (*odd, fine)][:-1]
    notes = Path(queue.job(fine)["log"]).parent / "runs"
    queue.kill_broker()
    for id, text in odd.items():
        (notes / f"{id}.1").write_bytes(text)
    queue.ensure_broker()
    (queue.folder / "go").touch()
    assert queue.end(fine)[0]["state"] == "complete"
    queue.act("kill", *odd)
    assert [job["state"] for job in queue.end(*odd)] == ["killed"] * len(odd)
    wait_until(lambda: not any(map(alive, shells)))


def test_a_broker_runs_no_code_of_the_folder_that_it_is_started_in(queue: QueueSite) -> None:
    """Before, `cd /tmp; gpulease broker --system` ran whatever somebody had put there as
    gpulease/broker/children/sampler.py.
    """
    trap, mark = queue.folder / "trap", queue.folder / "ran"
    for name in ("gpulease/__init__.py", "gpulease/broker/__init__.py", "gpulease/broker/children/sampler.py",
                 "pynvml.py", "gpulease/broker/agent/__main__.py", "pamela.py"):  # fmt: skip
        (trap / name).parent.mkdir(parents=True, exist_ok=True)
        (trap / name).write_text(f"open({str(mark)!r}, 'w')\n")
    queue.kill_broker()
    script = Path(sys.executable).with_name("gpulease")
    queue.popen([sys.executable, str(script), "broker"], cwd=trap)
    wait_until(queue.broker_pid)
    all_complete(queue, [queue.submit("true")])
    assert not mark.exists()


def test_the_log_of_a_running_job_is_cut_at_its_limit(queue: QueueSite) -> None:
    """Before, a job that wrote without end filled the disk of everybody's state."""
    queue.ask("set", name="log-limit", value="64K")
    id = queue.shell("yes 0123456789 | head -c 1000000; echo END; while ! [ -e go ]; do sleep 0.05; done; echo LAST")
    log = Path(queue.until(id, "running")["log"])
    wait_until(lambda: log.stat().st_size < 64 << 10 and b"END" in log.read_bytes())
    text = log.read_text()
    assert text.startswith("[gpulease: the oldest output was cut")
    assert text.endswith("END\n")
    (queue.folder / "go").touch()
    queue.end(id)
    assert log.read_text().endswith("END\nLAST\n")


def test_a_log_of_an_older_queue_is_not_the_new_jobs(queue: QueueSite) -> None:
    """A queue that begins anew has the numbers of the one before, whose logs may still be there."""
    folder = Path(queue.directory, "jobs", str(os.geteuid()))
    folder.mkdir(parents=True)
    (folder / "1.log").write_text("of somebody else\n")
    id = queue.shell("echo mine")
    queue.end(id)
    assert (id, queue.output(id)) == (1, "mine\n")


@pytest.mark.long("queue")
def test_a_lock_that_its_user_holds_keeps_no_job_from_ending(queue: QueueSite) -> None:
    """Its jobs ran on for ever without a process, past their time limit and root's kill."""
    folder = Path(queue.directory, "jobs", str(os.geteuid()))
    folder.mkdir(parents=True)
    with open(folder / "agent.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        limited, killed = queue.submit("true", time_limit=0.5), queue.submit("true")
        wait_until(lambda: queue.job(killed)["state"] == "running")
        queue.act("kill", killed)
        found = {job["id"]: job["why"] for job in queue.end(limited, killed) if job["state"] == "killed"}
    assert "time limit" in found[limited]
    assert "killed by" in found[killed]
