"""Where brokers live: found in one order, and never where somebody else could have put one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from support.island import ASK, Island, fresh_island, gpulease  # noqa: F401  # pytest finds the fixture here
from support.needs import needs_root
from support.site import Site
from support.users import User
from support.waiting import wait_until

FIRST, SECOND, THIRD = 61001, 61002, 61666

pytestmark = needs_root


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(shared=True)
    common = site.folder / "common"
    common.mkdir()
    common.chmod(0o1777)
    site.directory = str(common / "dir")
    site.environ["GPULEASE_DIR"] = site.directory
    try:
        yield site
    finally:
        site.close()


def refuses(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 69, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_folder_made_by_a_third_user_is_refused_by_broker_and_client(site: Site) -> None:
    third, first = User(site, THIRD), User(site, FIRST)
    third.folder(site.folder / "common" / "dir")
    refuses(first.run("broker", "--shared"), site.directory, f"belongs to {THIRD}")
    refuses(first.run("get", "--for", "1h"), f"belongs to {THIRD}")
    refuses(site.run("broker", "--shared"), f"belongs to {THIRD}")


def test_a_symbolic_link_is_refused_by_broker_and_client(site: Site) -> None:
    third, first = User(site, THIRD), User(site, FIRST)
    trap = first.folder(site.folder / "firsts")
    os.symlink(trap, site.directory)
    os.lchown(site.directory, THIRD, THIRD)
    refuses(first.run("broker", "--shared"), "symbolic link")
    refuses(first.run("get", "--for", "1h"), "symbolic link")
    assert os.listdir(trap) == []
    assert third.uid != first.uid


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_may_write_in_is_refused_by_broker_and_client(site: Site, mode: int) -> None:
    first = User(site, FIRST)
    first.folder(site.folder / "common" / "dir", mode)
    refuses(first.run("broker", "--shared"), "others may write")
    refuses(first.run("get", "--for", "1h"), "others may write")


FAKE = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); listener.listen()
print("ready", flush=True)
while True:
    connected, _ = listener.accept()
    print("somebody came", connected.recv(1000), flush=True)
"""


def test_a_listener_that_is_not_the_folders_owner_is_not_spoken_to(site: Site) -> None:
    third, first, second = (User(site, uid) for uid in (THIRD, FIRST, SECOND))
    folder = first.folder(site.folder / "common" / "dir")
    folder.chmod(0o777)
    fake = third.popen([third.interpreter, "-c", FAKE, str(folder / "socket")])
    assert fake.stdout is not None
    assert fake.stdout.readline() == "ready\n"
    folder.chmod(0o755)
    refuses(second.run("get", "--for", "1h"))
    fake.kill()
    assert set(fake.stdout.read().splitlines()) <= {"somebody came b''"}


LIAR = """
import json, os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); listener.listen()
print("ready", flush=True)
evil = "0; touch /tmp/should-not-be"
device = {"label": evil, "uuid": evil, "name": "A100", "vendor": "nvidia"}
answer = json.dumps({"granted": {"id": evil, "devices": [device], "memory": None, "since": 0, "until": None}}).encode()
while True:
    connected, _ = listener.accept()
    print("heard", connected.recv(1 << 20), flush=True)
    try:
        connected.sendall(len(answer).to_bytes(4, "big") + answer)
    except OSError:
        pass
"""


@pytest.fixture
def liar(site: Site) -> subprocess.Popen[str]:
    """A broker of a third user's in a folder of that user's, which says and hears what it likes."""
    third = User(site, THIRD)
    folder = third.folder(site.folder / "common" / "dir")
    fake = third.popen([third.interpreter, "-c", LIAR, str(folder / "socket")])
    assert fake.stdout is not None
    assert fake.stdout.readline() == "ready\n"
    return fake


@pytest.mark.parametrize("words", [["get", "--export"], ["get"], ["get", "--uuid"], ["run", "--", "true"]])
def test_what_a_strangers_broker_grants_gets_into_no_shell(
    site: Site, liar: subprocess.Popen[str], words: list[str]
) -> None:
    done = User(site, FIRST).run(*words, *([] if words[0] == "run" else ["--for", "1h"]))
    fails = "(exit 1)\n" if "--export" in words else ""  # which an eval of it does too
    assert (done.returncode != 0, done.stdout) == (True, fails)
    assert "is not a device" in done.stderr
    assert liar.poll() is None


def test_a_strangers_broker_does_not_hear_the_environment_of_a_job(site: Site, liar: subprocess.Popen[str]) -> None:
    first = User(site, FIRST)
    submit = "import gpulease; gpulease.submit(['true'])"
    done = first.run("add", "--", "true", HUNTER="2")
    assert (done.returncode, str(THIRD) in done.stderr) == (77, True)
    assert "NotPermitted" in first.python(submit, HUNTER="2").stderr
    liar.kill()
    assert liar.stdout is not None
    assert "HUNTER" not in liar.stdout.read()


def test_a_users_own_broker_is_of_no_use_to_others(site: Site) -> None:
    first, second = User(site, FIRST), User(site, SECOND)
    assert first.run("get", "--for", "1h").stdout == "0\n"
    seen = os.stat(site.directory)
    assert (seen.st_uid, seen.st_mode & 0o777) == (FIRST, 0o700)
    refuses(second.run("get", "--for", "1h"))
    direct = second.python(f"import socket; socket.socket(socket.AF_UNIX).connect('{site.directory}/socket')")
    assert "PermissionError" in direct.stderr


def test_system_needs_root(site: Site) -> None:
    done = User(site, FIRST).run("broker", "--system")
    assert done.returncode == 77
    assert "root" in done.stderr


# -------------------------------------------------------------------- which broker is found


def test_clients_find_the_systems_broker_then_a_shared_one_then_their_own(island: Island) -> None:
    assert "No broker" in island.found(FIRST)
    shared = island.broker(SECOND, "--shared")
    wait_until(lambda: island.found(FIRST) == "shared /tmp/gpulease")
    system = island.broker(0, "--system")
    wait_until(lambda: island.found(FIRST) == "system /run/gpulease")
    taken = island.run(FIRST, gpulease("get", "--for", "1h"))
    assert taken.stdout == "0\n", taken.stderr
    reply = island.run(SECOND, gpulease("status", "--json")).stdout
    assert '"kind": "system"' in reply
    island.run(FIRST, gpulease("release", "0"))
    system.terminate()
    system.wait()
    assert "is down" in island.found(FIRST)  # nobody falls through to another user's, though nothing is held
    island.run(0, ["-c", "import shutil; shutil.rmtree('/run/gpulease')"])
    wait_until(lambda: island.found(FIRST) == "shared /tmp/gpulease")
    shared.terminate()
    wait_until(lambda: "No broker" in island.found(FIRST))


def test_nobody_grants_beside_a_broker_for_everybody_that_is_down(island: Island) -> None:
    system = island.broker(0, "--system")
    wait_until(lambda: island.found(FIRST) == "system /run/gpulease")
    assert island.run(FIRST, gpulease("get", "--for", "1h")).stdout == "0\n"
    system.kill()
    wait_until(lambda: "is down" in island.found(FIRST))
    refused = island.run(SECOND, gpulease("get", "--no-wait"))
    assert (refused.returncode, refused.stdout) == (69, "")
    assert "broker --system" in refused.stderr
    system = island.broker(0, "--system")
    wait_until(lambda: island.found(FIRST) == "system /run/gpulease")
    system.terminate()
    wait_until(lambda: "is down" in island.found(FIRST))


def test_a_simulated_machine_never_meets_the_real_ones_broker(island: Island) -> None:
    island.broker(0, "--system")
    wait_until(lambda: island.found(FIRST) == "system /run/gpulease")
    assert island.run(FIRST, ["-c", ASK.format(start=False)], GPULEASE_SIMULATE="2").stdout == ""


@pytest.mark.parametrize("act", ["", "open('/tmp/gpulease/socket', 'w')", "os.symlink('x', '/tmp/gpulease/socket')"])
def test_a_squatter_at_the_well_known_place_is_passed_by(island: Island, act: str) -> None:
    island.run(THIRD, ["-c", f"import os; os.mkdir('/tmp/gpulease'); {act}"])
    refused = island.broker(SECOND, "--shared")
    _, error = refused.communicate(timeout=30)
    assert refused.returncode == 69
    assert f"belongs to {THIRD}" in error
    done = island.run(FIRST, ["-c", ASK.format(start=True)])
    assert done.stdout.startswith("own "), done.stderr
    system = island.broker(0, "--system")
    wait_until(lambda: island.found(FIRST) == "system /run/gpulease")
    system.kill()


@pytest.mark.parametrize(
    ("act", "why"),
    [("chmod 777 /run/gpulease", "others may write in it"), (f"chown {SECOND} /run/gpulease", "belongs to")],
)
def test_whoever_passes_the_systems_place_by_since_it_is_not_roots_alone_is_told_so(
    island: Island, act: str, why: str
) -> None:
    """Each user got a broker of their own, and nobody knew."""
    island.sh(f"mkdir -m 755 /run/gpulease; {act}")
    done = island.run(FIRST, ["-c", ASK.format(start=True)])
    assert done.stdout.startswith("own ")
    assert done.stderr.count("is ignored") == 1
    assert why in done.stderr
    found = " ".join(island.run(FIRST, gpulease("doctor")).stdout.split())
    assert why in found
    assert "chown root /run/gpulease" in found


def test_doctor_says_why_the_systems_broker_does_not_start(island: Island) -> None:
    system = island.broker(0, "--system")
    wait_until(lambda: island.found(FIRST) == "system /run/gpulease")
    system.kill()
    wait_until(lambda: "is down" in island.found(FIRST))
    config = island.site.folder / "config.toml"
    config.write_text("# ours\ngrcae = 1\n")
    found = island.run(FIRST, gpulease("doctor"), GPULEASE_CONFIG=str(config), COLUMNS="300").stdout
    assert "is down" in found
    assert "line 2: There is no parameter 'grcae'" in found
    assert "journalctl -u gpulease" in found


def test_who_is_not_of_the_sockets_group_is_told_so(island: Island) -> None:
    """It was told that the broker is down."""
    config = island.site.folder / "config.toml"
    config.write_text('socket-group = "team"\n')
    broker = island.site.popen(
        island.words(0, gpulease("broker", "--system")),
        cwd="/",
        env={**island.environ, **island.simulated, "GPULEASE_CONFIG": str(config)},
    )
    wait_until(lambda: "group team" in island.found(FIRST))
    refused = island.run(FIRST, gpulease("ls"))
    assert (refused.returncode, "next login" in refused.stderr) == (77, True)
    assert island.found(0) == "system /run/gpulease"
    broker.kill()
