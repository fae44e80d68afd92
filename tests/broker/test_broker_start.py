"""One broker: started by itself at first need, ended by itself when idle, found again with all it knew."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from support.needs import needs_root
from support.open_python import open_python
from support.site import Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.users import becoming
from support.waiting import wait_for_end, wait_until

from gpulease.broker.home import lock_name


def starts(site: Site) -> int:
    return site.log().count("broker of kind")


def test_twenty_clients_at_once_start_exactly_one_broker(site: Site) -> None:
    clients = [site.start("get", "--mem", "1G", "--owner", str(os.getpid())) for _ in range(20)]
    codes = [client.wait(60) for client in clients]
    assert codes == [0] * 20
    assert starts(site) == 1
    assert len(site.status()["leases"]) == 20


def test_a_foreground_broker_serves_until_it_is_stopped_and_leases_stay(site: Site) -> None:
    broker = site.start("broker", stdout=subprocess.DEVNULL)
    assert wait_until(site.broker_pid) == broker.pid
    holder = site.holder()
    stopped = site.run("stop")
    assert stopped.stdout == "broker stopped; leases stay valid: 1\n"
    assert broker.wait(30) == 0
    assert site.broker_pid() is None
    assert [lease["pid"] for lease in site.status()["leases"]] == [holder.pid]
    assert site.run("run", "-n", "4", "--no-wait", "--", "true").returncode == 75


def test_stop_keeps_the_line_and_waiting_clients_go_on(site: Site) -> None:
    holder = site.holder("-n", "4")
    waiting = site.start("run", "--", "echo", "mine")
    wait_until(lambda: site.status()["line"])
    before = site.status()["line"][0]
    assert site.run("stop").returncode == 0
    wait_until(lambda: site.status()["line"])
    after = site.status()["line"][0]
    assert (after["id"], after["since"]) == (before["id"], before["since"])
    holder.kill()
    assert waiting.communicate(timeout=30)[0] == "mine\n"


def test_stop_without_a_broker_says_so(site: Site) -> None:
    done = site.run("stop")
    assert done.returncode == 69
    assert "No broker" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_broker_as_stop_does(site: Site, number: signal.Signals) -> None:
    broker = site.start("broker")
    wait_until(site.broker_pid)
    site.holder()
    broker.send_signal(number)
    assert broker.wait(30) == 0
    assert len(site.status()["leases"]) == 1


def test_a_second_broker_is_refused(site: Site) -> None:
    site.ensure_broker()
    done = site.run("broker")
    assert done.returncode == 69
    assert "already serves" in done.stderr


def test_an_idle_broker_ends_and_one_that_holds_or_is_waited_for_does_not(site: Site) -> None:
    broker = site.start("broker", "--idle", "1s")
    wait_until(site.broker_pid)
    with site.raw() as client:  # which has something at once, so that the broker is not idle while the holder starts
        client.acquire()
        held = client.granted()["id"]
        holder = site.holder("-n", "3")
        client.ask("release", what=[held])
    begin = time.monotonic()
    waiting = site.start("run", "-n", "2", "--wait", "2s", "--", "true")
    assert waiting.wait(30) == 75
    assert time.monotonic() - begin > 1.5
    assert broker.poll() is None
    holder.kill()
    assert broker.wait(30) == 0
    assert devices_of(site, "free") == [0, 1, 2, 3]


def test_a_broker_that_started_by_itself_has_no_terminal_and_no_parent_to_lose(site: Site) -> None:
    pid = site.ensure_broker()
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"


def test_a_socket_without_a_broker_does_not_keep_one_from_starting(site: Site) -> None:
    os.mkdir(site.directory, 0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{site.directory}/socket")
    assert site.run("get", "--owner", str(os.getpid())).stdout == "0\n"


def test_a_broker_that_is_about_to_end_does_not_keep_the_next_from_starting(site: Site) -> None:
    """Its lock is held until it is gone; a client tries again until then."""
    import fcntl

    os.mkdir(site.directory, 0o700)
    lock = os.open(f"{site.directory}/broker.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    client = site.start("get", "--owner", str(os.getpid()))
    wait_until(lambda: "already serves" in site.log())
    os.close(lock)
    assert client.communicate(timeout=30)[0] == "0\n"


def test_a_folder_that_cannot_be_made_is_a_clear_error(site: Site) -> None:
    Path(site.directory).write_text("a file\n")
    done = site.run("get", "--owner", str(os.getpid()))
    assert done.returncode == 69
    assert "not a directory" in done.stderr
    deep = site.run("get", "--owner", str(os.getpid()), GPULEASE_DIR=f"/{'x' * 120}")
    assert deep.returncode == 2
    assert "too long" in deep.stderr


def test_the_folder_is_its_users_alone(site: Site) -> None:
    before = os.umask(0)
    try:
        site.ensure_broker()
    finally:
        os.umask(before)
    modes = {name: os.stat(f"{site.directory}/{name}").st_mode & 0o777 for name in os.listdir(site.directory)}
    assert os.stat(site.directory).st_mode & 0o777 == 0o700
    assert {name for name in ("socket", "state.db", "broker.log") if modes[name] & 0o077} == set()


def test_the_brokers_environment_is_not_a_clients(site: Site) -> None:
    """A broker lives longer than who started it: it keeps none of their open files."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    done = subprocess.run(
        site.words("get", "--owner", str(os.getpid())),
        env=site.environ,
        pass_fds=(writing,),
        stdout=subprocess.PIPE,
        timeout=60,
    )
    os.close(writing)
    assert done.stdout == b"0\n"
    assert os.read(reading, 1) == b""  # nobody has it open any more
    os.close(reading)


def test_killed_brokers_leave_no_sampler_behind(site: Site) -> None:
    pid = site.ensure_broker()
    site.status()
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert len(children) == 1
    site.kill_broker()
    wait_for_end(children[0])


def test_status_says_which_broker(site: Site) -> None:
    assert site.status()["broker"] is None
    pid = site.ensure_broker()
    reply = site.status()["broker"]
    assert (reply["pid"], reply["kind"], reply["directory"]) == (pid, "own", site.directory)


def test_a_python_that_cannot_run_the_broker_is_reported(site: Site) -> None:
    """What the broker printed is in its log, and the client says where."""
    os.mkdir(site.directory, 0o700)
    os.mkdir(f"{site.directory}/state.db")
    done = site.run("get", "--owner", str(os.getpid()))
    assert done.returncode == 1
    assert "state.db" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("loss", ["socket", "folder"])
def test_a_broker_that_cannot_be_reached_any_more_ends_if_nothing_is_held(site: Site, loss: str) -> None:
    site.environ["GPULEASE_HOUSEKEEPING"] = "0.2"
    pid = site.ensure_broker()
    if loss == "socket":
        os.unlink(f"{site.directory}/socket")
    else:
        shutil.rmtree(site.directory)
    wait_for_end(pid)


def test_a_broker_ends_with_the_machine_that_it_simulates(site: Site) -> None:
    site.environ["GPULEASE_HOUSEKEEPING"] = "0.2"
    pid = site.ensure_broker()
    site.holder()
    for folder in (site.state, site.directory):
        shutil.rmtree(folder)
    wait_for_end(pid)


@pytest.mark.parametrize("loss", ["socket", "folder", "lock"])
def test_what_is_removed_under_a_broker_is_put_back_and_nothing_is_granted_twice(site: Site, loss: str) -> None:
    """Before, the next command started a second broker, which knew nothing of what the first had granted."""
    site.environ["GPULEASE_HOUSEKEEPING"] = "0.2"
    pid = site.ensure_broker()
    holder = site.holder("-n", "4")
    if loss == "folder":
        shutil.rmtree(site.directory)
    else:
        os.unlink(f"{site.directory}/{'socket' if loss == 'socket' else 'broker.lock'}")
    assert site.run("get", "--no-wait").returncode == 75
    assert [lease["pid"] for lease in site.status()["leases"]] == [holder.pid]
    assert site.broker_pid() == pid
    wait_until(lambda: all(os.path.exists(f"{site.directory}/{name}") for name in ("state.db", "broker.lock")))
    site.kill_broker()
    assert site.run("get", "--no-wait").returncode == 75
    assert [lease["pid"] for lease in site.status()["leases"]] == [holder.pid]


SQUAT = """
import socket, sys
name = socket.socket(socket.AF_UNIX); name.bind(sys.argv[1].replace("@", chr(0)))
if sys.argv[2] == "listens":
    name.listen()
print("ready", flush=True)
sys.stdin.read()
"""


@needs_root
@pytest.mark.parametrize("manner", ["listens", "is silent"])
def test_another_user_who_takes_the_brokers_name_keeps_nobody_out(site: Site, manner: str) -> None:
    os.mkdir(site.directory, 0o700)
    name = lock_name(site.directory).replace("\0", "@")
    squatter = site.popen([*becoming(61666), open_python(), "-c", SQUAT, name, manner], cwd="/")
    assert squatter.stdout is not None
    assert squatter.stdout.readline() == "ready\n"
    assert site.run("get", "--owner", str(os.getpid())).stdout == "0\n"


def test_a_time_between_checks_that_makes_no_sense_is_refused(site: Site) -> None:
    done = site.run("get", "--owner", str(os.getpid()), GPULEASE_HOUSEKEEPING="never")
    assert done.returncode == 2
    assert "GPULEASE_HOUSEKEEPING is 'never'." in done.stderr
