"""`gpulease get` holds for whoever asked, past its subshells, and not a moment longer."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.site import Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_for_end, wait_until

ALL = [0, 1, 2, 3]
OURS = f'gpulease() {{ "{sys.executable}" -m gpulease "$@"; }}\n'


@pytest.mark.parametrize(
    "taking",
    [
        "GPUID=$(gpulease get)",
        "read GPUID < <(gpulease get)",
        "GPUID=`gpulease get`",
        "GPUID=$(gpulease get | cat)",
        "GPUID=$(gpulease get | sed s/x/y/ | tr -d ' ')",
        "GPUID=$( (gpulease get) )",
        "GPUID=$(echo $(echo $(gpulease get)))",
        'GPUID=$(timeout 60 "$PYTHON" -m gpulease get)',
        "shopt -s lastpipe; set +m; gpulease get | read GPUID",
        "mapfile -t GPUIDS < <(gpulease get); GPUID=${GPUIDS[0]}",
        "gpulease get > $GPULEASE_DIR.out; GPUID=$(cat $GPULEASE_DIR.out)",
    ],
)
def test_every_way_of_asking_in_a_script_holds_for_the_script(site: Site, taking: str) -> None:
    script = f"echo $$; {taking}; echo $GPUID; gpulease status --json; gpulease release $GPUID"
    done = site.bash(script, PYTHON=sys.executable)
    lines = done.stdout.splitlines()
    shown = json.loads("".join(lines[2:-1]))
    assert lines[1] == "0", done.stderr
    assert [(lease["pid"], lease["kind"]) for lease in shown["leases"]] == [(int(lines[0]), "get")]
    assert lines[-1].startswith("released L1: GPU 0")


def test_a_shell_inside_a_shell_holds_for_itself_alone(site: Site) -> None:
    inner = f'"{sys.executable}" -m gpulease get'
    outer = site.popen(["bash", "-c", f"bash -c '{inner}; true'; read"])
    assert outer.stdout is not None
    assert outer.stdout.readline() == "0\n"
    wait_until(lambda: site.status()["leases"] == [])
    assert outer.poll() is None


REFUSED_OWNERS = [
    "G=$(gpulease get --owner $BASHPID)",
    'G=$("$PYTHON" -m gpulease get --owner $BASHPID)',
    'G=$("$PYTHON" -m gpulease get --owner $BASHPID; true)',
    'read G < <("$PYTHON" -m gpulease get --owner $BASHPID; true)',
    'G=$(timeout 60 "$PYTHON" -m gpulease get --owner $BASHPID)',
]


@pytest.fixture(scope="module")
def refusing() -> Iterator[Site]:
    """One broker for all who are refused."""
    site = Site()
    yield site
    site.close()


@pytest.mark.parametrize("taking", REFUSED_OWNERS)
def test_a_shell_that_ends_with_the_command_is_no_owner(refusing: Site, taking: str) -> None:
    done = refusing.bash(f'( {taking}; echo "<$G>" ) & wait', PYTHON=sys.executable)
    assert done.stdout == "<>\n"
    assert "me=$BASHPID; G=$(gpulease get --owner $me)" in done.stderr


@pytest.mark.parametrize(
    "taking",
    [
        "G=$(gpulease get --owner $me)",
        "gpulease get --owner $BASHPID; G=0",
        "gpulease get --owner $BASHPID >/dev/null; G=0",
    ],
)
def test_a_subshell_in_the_background_may_be_the_owner(site: Site, taking: str) -> None:
    """The output of the whole script is a pipe, as that of `$(…)`; its input is /dev/null, as cron's."""
    script = f"exec </dev/null; ( me=$BASHPID; {taking}; echo $me $G; gpulease status --json ) & wait"
    done = site.bash(script, PYTHON=sys.executable)
    reply, _, shown = done.stdout.removeprefix("0\n").partition("\n")
    assert reply.endswith(" 0"), done.stderr
    assert [lease["pid"] for lease in json.loads(shown)["leases"]] == [int(reply.split()[0])]


OUTPUTS: dict[str, Callable[[], tuple[int, int]]] = {
    "/dev/null": lambda: (os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)),
    "a terminal": pty.openpty,
    "a pipe, as cron reads it": os.pipe,
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_script_may_be_the_owner_whatever_output_its_parent_can_read(site: Site, output: str) -> None:
    """Only the shell that is forked for `$(…)` ends with the command; a script that was started lives on."""
    reading, writing = OUTPUTS[output]()
    script = site.popen(["bash", "-c", f"{OURS}gpulease get --owner $$ && read"], stdout=writing)
    try:
        wait_until(lambda: site.status()["leases"] or script.poll() is not None)
        assert [lease["pid"] for lease in site.status()["leases"]] == [script.pid], script.returncode
    finally:
        os.close(reading)
        os.close(writing)


def test_the_scripts_end_gives_back(site: Site) -> None:
    assert site.bash("GPUID=$(gpulease get -n 4); echo $GPUID").stdout == "0,1,2,3\n"
    wait_until(lambda: devices_of(site, "free") == ALL)
    why = site.json("events")["events"][-1]
    assert (why["what"], why["why"]) == ("ended", "its process ended")


def script_that_holds(site: Site, words: str = "-n 4") -> subprocess.Popen[str]:
    line = f'GPUID=$("{sys.executable}" -m gpulease get {words}); echo $GPUID; read'
    process = site.popen(["bash", "-c", line])
    assert process.stdout is not None
    assert process.stdout.readline().strip()
    return process


def test_the_scripts_kill_9_gives_back_at_once_to_who_waits(site: Site) -> None:
    script = script_that_holds(site)
    waiting = site.start("run", "-n", "4", "--", "echo", "mine")
    wait_until(lambda: site.status()["line"])
    script.kill()
    assert waiting.communicate(timeout=30)[0] == "mine\n"


def test_owner_names_any_process_of_ones_own(site: Site) -> None:
    owner = site.popen(["sleep", "600"])
    assert site.run("get", "--owner", str(owner.pid)).stdout == "0\n"
    assert site.status()["leases"][0]["pid"] == owner.pid
    owner.kill()
    wait_until(lambda: devices_of(site, "free") == ALL)
    owner.wait()
    gone = site.run("get", "--owner", str(owner.pid))
    assert gone.returncode == 1
    assert str(owner.pid) in gone.stderr
    assert site.run("get", "--owner", "-5").returncode != 0
    assert site.run("get", "--owner", "0").returncode != 0


def test_a_reservation_ends_by_the_clock_and_by_nothing_else(site: Site) -> None:
    done = site.run("get", "--for", "3s", "--note", "demo")
    assert done.stdout == "0\n"
    with site.raw() as client:  # which is quick: it is not for long
        lease = client.ask("status")["ok"]["leases"][0]
    assert (lease["kind"], lease["pid"], lease["note"]) == ("reservation", None, "demo")
    assert 2 < lease["until"] - lease["since"] <= 3.001
    site.kill_broker()
    wait_until(lambda: devices_of(site, "free") == ALL)
    ended = site.json("events")["events"][-1]
    assert ended["why"] == "its time was over"
    assert ended["time"] - lease["until"] >= 0


def test_a_reservation_is_renewed_and_released(site: Site) -> None:
    site.run("get", "--for", "1h")
    site.run("get", "--owner", str(os.getpid()))
    before = site.status()["leases"][0]
    assert site.run("renew", "L1", "--for", "4h").returncode == 0
    after = site.status()["leases"][0]
    assert after["until"] > before["until"] + 2 * 3600
    assert site.run("renew", "L2", "--for", "4h").returncode == 1
    assert site.run("renew", "--for", "nonsense").returncode == 2
    assert site.run("release", "L1").stdout == "released L1: GPU 0\n"


def test_release_by_id_by_index_by_uuid_and_mine(site: Site) -> None:
    owner = str(os.getpid())
    for _ in range(4):
        site.run("get", "--owner", owner)
    uuid = site.status()["devices"][2]["uuid"]
    assert site.run("release", "L1").stdout == "released L1: GPU 0\n"
    assert site.run("release", "1").stdout == "released L2: GPU 1\n"
    assert site.run("release", uuid).stdout == "released L3: GPU 2\n"
    assert site.run("release", "--mine").stdout == "released L4: GPU 3\n"
    assert site.run("release", "--mine").stdout == "nothing to release\n"
    assert site.run("release", "L1").returncode == 1
    assert site.run("release", "2").returncode == 1
    assert site.run("release", "9").returncode == 2
    assert site.run("release").returncode == 2


SCRIPT = """
gpulease get
read
gpulease release 0
echo "code $?"
read
"""


def test_a_script_whose_lease_ended_does_not_end_that_of_another_by_device(site: Site) -> None:
    """GPU 0 passed from the first to the second; before, the cleanup of the first ended the lease of the second."""
    scripts = []
    for _ in range(2):
        script = site.popen(["bash", "-c", OURS + SCRIPT])
        assert script.stdout is not None
        assert script.stdin is not None
        scripts.append((script.stdin, script.stdout))
        assert script.stdout.readline() == "0\n"
        if len(scripts) == 1:
            assert site.run("release", "L1").returncode == 0
    for (stdin, stdout), code in zip(scripts, ("2", "0"), strict=True):
        assert [lease["id"] for lease in site.status()["leases"]] == ["L2"]
        stdin.write("\n")
        stdin.flush()
        while "code" not in (line := stdout.readline()):
            assert line
        assert line == f"code {code}\n"
    assert not site.status()["leases"]


def test_in_a_container_the_script_that_asked_is_the_owner(site: Site) -> None:
    """There it has another pid, and the broker's process of that number is somebody else."""
    site.ensure_broker()
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("namespaces are not permitted here")
    lines = OURS + "gpulease get --owner 77777 2>&1; gpulease get; read"
    script = site.popen([*inside, "sh", "-c", 'bash -c "$1"; true', "sh", lines])
    assert script.stdout is not None
    assert "pid namespace of its own" in script.stdout.readline()
    while (line := script.stdout.readline()) != "0\n":
        assert line
    lease = site.status()["leases"][0]
    assert lease["pid"] not in (1, script.pid)
    assert Path(f"/proc/{lease['pid']}/comm").read_text() == "bash\n"
    script.kill()
    wait_until(lambda: not site.status()["leases"])


def test_release_is_all_or_nothing(site: Site) -> None:
    site.run("get", "--owner", str(os.getpid()))
    assert site.run("release", "0", "L77").returncode == 1
    assert devices_of(site, "leased") == [0]


def test_forms_of_output(site: Site) -> None:
    owner = str(os.getpid())
    uuids = [device["uuid"] for device in site.status()["devices"]]
    assert site.run("get", "--owner", owner, "--uuid").stdout == f"{uuids[0]}\n"
    assert site.json("get", "--owner", owner)["devices"][0]["label"] == "1"
    done = site.bash(f'eval "$(gpulease get --owner {owner} --export)"; echo $CUDA_VISIBLE_DEVICES $GPULEASE_DEVICES')
    assert done.stdout == f"{uuids[2]} 2\n"


def test_events_tell_who_took_and_gave_back_what_and_why(site: Site) -> None:
    site.run("get", "-n", "2", "--owner", str(os.getpid()))
    site.run("release", "L1")
    granted, ended = site.json("events", "--since", "1d")["events"]
    assert (granted["what"], granted["id"], granted["devices"]) == ("granted", "L1", ["0", "1"])
    assert (ended["what"], ended["why"]) == ("ended", "released by root" if os.geteuid() == 0 else ended["why"])
    assert granted["pid"] == os.getpid()
    table = site.run("events").stdout
    assert "L1 get, released by" in table
    assert "0,1" in table
    assert site.json("events", "--most", "1")["events"] == [ended]


def test_a_client_killed_between_grant_and_print_leaks_nothing(site: Site) -> None:
    """What was granted for another process and never taken in hand goes back when the client goes."""
    site.ensure_broker()
    with site.raw() as client:
        client.send("acquire", request={"gpus": 4}, kind="get", owner=os.getppid(), wait=0)
        assert "granted" in client.receive()
        assert devices_of(site, "leased") == ALL
    wait_until(lambda: devices_of(site, "free") == ALL)
    assert site.json("events")["events"][-1]["why"] == "its client left before it took it"


def test_get_into_a_closed_pipe_takes_nothing(site: Site) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = site.start("get", "--owner", str(os.getpid()), stdout=writing)
    os.close(writing)
    assert process.wait(30) != 0
    wait_until(lambda: devices_of(site, "free") == ALL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_get_interrupted_while_waiting_leaves_the_line(site: Site, number: signal.Signals) -> None:
    site.holder("-n", "4")
    process = site.start("get", "--owner", str(os.getpid()))
    wait_until(lambda: site.status()["line"])
    process.send_signal(number)
    wait_until(lambda: not site.status()["line"])
    assert process.communicate()[0] == ""


def test_the_owners_end_while_its_client_waits_ends_the_wait(site: Site) -> None:
    site.holder("-n", "4")
    owner = site.popen(["sleep", "600"])
    process = site.start("get", "--owner", str(owner.pid))
    wait_until(lambda: site.status()["line"])
    owner.kill()
    wait_until(lambda: not site.status()["line"])
    assert process.wait(30) == 75


def test_what_is_taken_survives_a_broker_that_dies_at_once(site: Site) -> None:
    """The script has its index by the time `get` has ended: the lease must be there whatever happens then."""
    script = script_that_holds(site, "-n 1")
    site.kill_broker()
    assert devices_of(site, "leased") == [0]
    with site.raw() as client:
        assert client.ask("status")["ok"]["leases"][0]["pid"] == script.pid
    script.kill()
    wait_for_end(script.pid)
    wait_until(lambda: devices_of(site, "free") == ALL)
