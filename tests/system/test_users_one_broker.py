"""Several users at one broker, the system's or a shared one: one line, and nobody touches another's."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.accounts import Accounts, Namespace
from support.needs import needs_root
from support.open_python import open_python
from support.site import HOLD, Site, devices_of
from support.users import User, shared_cache
from support.waiting import PATIENCE, wait_until
from support.web_site import start_web

from gpulease.protocol.wire import pack

CONTENDER = (Path(__file__).parents[1] / "support" / "contender.py").read_text()
FIRST, SECOND, CAROL = 61001, 61002, 61003

pytestmark = needs_root


class Town:
    """A site with a broker for everybody and two users."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.site = Site(shared=True)
        common = self.site.folder / "common"
        common.mkdir()
        common.chmod(0o1777)
        self.site.directory = str(common / "dir")
        self.site.environ["GPULEASE_DIR"] = self.site.directory
        self.first, self.second, self.carol = (User(self.site, uid) for uid in (FIRST, SECOND, CAROL))
        self.log = self.site.folder / "log"
        self.namespace = Namespace(self.site, Accounts(self.site.folder).mounts)
        self.start_broker()

    def start_broker(self) -> None:
        with open(self.log, "a") as log:
            options = {"stdout": log, "stderr": log}
            if self.kind == "system":
                words = self.namespace.words(open_python(), "-m", "gpulease", "broker", "--system")
                self.broker = self.site.popen(
                    words, environ={"XDG_CACHE_HOME": shared_cache(self.site)}, cwd="/", **options
                )
            else:
                self.broker = self.carol.start("broker", "--shared", **options)
        wait_until(lambda: self.site.broker_pid() == self.broker.pid)

    def holder(self, user: User, *request: str) -> subprocess.Popen[str]:
        process = user.start("run", *request, "--", user.interpreter, "-c", HOLD)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
        return process


@pytest.fixture(params=["system", "shared"])
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    town = Town(request.param)
    try:
        yield town
        assert "Traceback" not in town.log.read_text(), town.log.read_text()
    finally:
        town.site.close()


SEEN = """
import json, gpulease
from gpulease.client.subscriptions import Subscription
with Subscription("devices", "leases", "line") as told:
    print(json.dumps(told.receive(30)))
print(gpulease.status(), gpulease.events(), *[gpulease.explain(f"L{number}") for number in (1, 2)])
"""


def test_hidden_commands_and_notes_are_hidden_wherever_they_could_be_seen(town: Town) -> None:
    """By status, explain, events and subscriptions they leaked to everybody."""
    command = "sys.stdin.read"  # of a process of root's, without a lease
    with town.site.occupied("3"):
        town.holder(town.first, "-n", "3", "--note", "SECRET")
        town.first.start("run", "--note", "SECRET", "--", "true")
        wait_until(lambda: town.site.status()["line"])
        open_to_all = town.second.python(SEEN).stdout
        assert (town.site if town.kind == "system" else town.carol).run("set", "hide-commands", "on").returncode == 0
        hidden, own = town.second.python(SEEN), town.first.python(SEEN)
    assert "SECRET" in open_to_all
    assert command in open_to_all
    assert "(hidden)" in hidden.stdout, hidden.stderr
    assert "SECRET" not in hidden.stdout
    assert command not in hidden.stdout + own.stdout
    assert own.stdout.count("SECRET") == open_to_all.count("SECRET")


USAGE_BY_HAND = """
import json
from gpulease.client.connection import Client
print(json.dumps(Client().ask("usage", user="*", everybody=True)))
"""


def test_one_sees_ones_own_usage_and_who_keeps_the_broker_sees_all(town: Town) -> None:
    keeper = town.site if town.kind == "system" else town.carol
    both = {str(FIRST), str(SECOND)}
    for user, gpu in ((town.first, "0"), (town.second, "1")):
        town.holder(user, "--devices", gpu)

    def seen(user: Site | User) -> tuple[set[str], bool]:
        reply = json.loads(user.run("usage", "--json").stdout)
        return {row["name"] for row in reply["rows"]}, reply["everybody"]

    assert seen(town.first) == ({str(FIRST)}, False)
    assert seen(town.second) == ({str(SECOND)}, False)
    assert seen(keeper) == seen(town.site) == (both, True)
    by_hand = json.loads(town.first.python(USAGE_BY_HAND).stdout)
    assert {row["user"] for row in (*by_hand["rows"], *by_hand["counts"])} == {str(FIRST)}
    assert town.first.run("set", "usage-shown", "all").returncode == 77
    assert keeper.run("set", "usage-shown", "all").returncode == 0
    assert seen(town.first) == (both, True)


def test_both_are_served_in_one_line_and_shown_by_name(town: Town) -> None:
    first = town.holder(town.first, "-n", "4")
    waiting = town.second.start("run", "--", "echo", "mine")
    wait_until(lambda: town.site.status()["line"])
    shown = json.loads(town.second.run("status", "--json").stdout)
    assert [lease["user"] for lease in shown["leases"]] == [str(FIRST)]
    assert [entry["user"] for entry in shown["line"]] == [str(SECOND)]
    assert shown["broker"]["kind"] == town.kind
    assert shown["broker"]["user"] == ("gpulease" if town.kind == "system" else str(CAROL))
    first.kill()
    assert waiting.communicate(timeout=30)[0] == "mine\n"


def test_a_foreign_lease_is_released_by_its_user_or_root_only(town: Town) -> None:
    holder = town.holder(town.first, "--devices", "0")
    for what in ("L1", "0", town.site.status()["devices"][0]["uuid"]):
        done = town.second.run("release", what)
        assert done.returncode == 77, done.stderr
        assert str(FIRST) in done.stderr
    assert town.second.run("release", "--mine").stdout == "nothing to release\n"
    assert town.second.run("renew", "L1", "--for", "1h").returncode in (1, 77)
    assert holder.poll() is None
    assert [lease["id"] for lease in town.site.status()["leases"]] == ["L1"]
    assert town.first.run("release", "L1").returncode == 0
    second = town.holder(town.first, "--devices", "0")
    assert town.site.run("release", "0").returncode == 0
    assert second.poll() is None


def test_only_managers_manage(town: Town) -> None:
    for words in (("exclude", "0"), ("include", "0"), ("release", "--all"), ("stop",)):
        assert town.first.run(*words).returncode == 77
    if town.kind == "shared":
        assert town.carol.run("exclude", "0").returncode == 0
    assert town.site.run("exclude", "1").returncode == 0
    assert town.broker.poll() is None


LINKS = """
from gpulease.web.broker_feed import BrokerLink
BrokerLink().open().close()
BrokerLink(for_others=True).open().close()
"""


def test_root_shows_others_the_systems_broker_and_nobody_elses(town: Town) -> None:
    """Another's broker could name any file of root's as the output of a job, at the first connection or a later one."""
    linked = town.site.python(LINKS).communicate(timeout=PATIENCE)[1]
    if town.kind == "system":
        assert linked == ""
        assert start_web(town.site, "--user-header", "X-Remote-User").ask("/").status == 403
        return
    assert f"NotPermitted: The broker is run by {CAROL}" in linked.splitlines()[-1]
    for option in (("--public",), ("--user-header", "X-Remote-User")):
        refused = town.site.run("web", *option)
        assert (refused.returncode, f"run by {CAROL}" in refused.stderr) == (77, True)


@pytest.mark.parametrize("town", ["shared"], indirect=True)
def test_a_shared_broker_sends_no_notices_of_others_and_nothing_is_set(town: Town) -> None:
    refused = town.first.run("notify", "set", "tty")
    assert refused.returncode == 77
    assert f"The broker of {CAROL} cannot send notices for another user." in refused.stderr
    assert "job" not in refused.stderr
    assert "no address is set" in town.first.run("notify").stdout


def test_nobody_holds_for_or_cancels_what_is_anothers(town: Town) -> None:
    holder = town.holder(town.first, "-n", "4")
    done = town.second.run("get", "--owner", str(holder.pid))
    assert done.returncode == 77
    waiting = town.first.start("run", "--", "echo", "mine")
    wait_until(lambda: town.site.status()["line"])
    id = town.site.status()["line"][0]["id"]
    cancel = f"from gpulease.client.connection import Client; print(Client().ask('cancel', id={id!r}))"
    assert "NotPermitted" in town.second.python(cancel).stderr
    resume = (
        "from gpulease.client.connection import Client; c = Client();"
        f"c.send('acquire', request={{'gpus': 1}}, kind='acquire', wait=0, id={id!r}); print(c.receive(20))"
    )
    assert "NotGranted" in town.second.python(resume).stderr
    assert [entry["id"] for entry in town.site.status()["line"]] == [id]
    holder.kill()
    assert waiting.communicate(timeout=30)[0] == "mine\n"


def test_identity_in_the_message_is_ignored(town: Town) -> None:
    code = (
        "from gpulease.client.connection import Client; c = Client();"
        f"c.send('acquire', request={{'gpus': 1}}, kind='acquire', uid={FIRST}, user='root', pid=1);"
        "print(c.receive(20)); print(c.ask('status')['leases'])"
    )
    done = town.second.python(code)
    assert f"'user': '{SECOND}'" in done.stdout, done.stderr


def test_two_users_contend_and_nothing_is_granted_twice(town: Town) -> None:
    observer = town.site.folder / "observer"
    observer.mkdir()
    observer.chmod(0o777)
    words = ["-c", CONTENDER, str(observer), "8"]
    processes = [
        user.popen([user.interpreter, *words, str(10 * n + user.uid), "share"], stderr=None, stdin=subprocess.DEVNULL)
        for n in range(6)
        for user in (town.first, town.second)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [output for output in outputs if "DOUBLE" in output] == []
    assert [process.returncode for process in processes] == [0] * 12
    users = {event["user"] for event in json.loads(town.site.run("events", "--since", "1h", "--json").stdout)["events"]}
    assert users == {str(FIRST), str(SECOND)}
    wait_until(lambda: devices_of(town.site, "free") == [0, 1, 2, 3])


def test_clients_wait_for_the_same_broker_to_come_back_and_start_none_of_their_own(town: Town) -> None:
    observer = town.site.folder / "observer"
    observer.mkdir()
    observer.chmod(0o777)
    words = ["-c", CONTENDER, str(observer), "100000"]
    processes = [
        user.popen([user.interpreter, *words, str(10 * n + user.uid), "share"], stderr=None, stdin=subprocess.DEVNULL)
        for n in range(2)
        for user in (town.first, town.second)
    ]
    dice = random.Random(3)
    for process in processes:
        process.stdout.readline()  # type: ignore[union-attr]  # it knows the broker by now
    for _ in range(4):
        processes[dice.randrange(4)].stdout.readline()  # type: ignore[union-attr]
        town.broker.send_signal(signal.SIGKILL)
        town.broker.wait()
        town.start_broker()
    (observer / "stop").touch()
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [output for output in outputs if "DOUBLE" in output] == []
    assert [process.returncode for process in processes] == [0] * 4
    assert town.site.status()["broker"]["kind"] == town.kind
    wait_until(lambda: devices_of(town.site, "free") == [0, 1, 2, 3])


def test_while_everybodys_broker_is_down_nobody_grants(town: Town) -> None:
    town.broker.kill()
    town.broker.wait()
    wait_until(lambda: town.site.broker_pid() is None)
    for user in (town.first, town.site):
        done = user.run("get", "--for", "1h")
        assert done.returncode == 69
        assert done.stdout == ""
        assert "gpulease broker" in done.stderr or "belongs to" in done.stderr
    mode = os.stat(town.site.directory).st_mode & 0o777
    assert mode == 0o755


def test_what_is_in_the_folder_is_the_brokers(town: Town) -> None:
    town.holder(town.first)
    for name in ("state.db", "state.db-wal", "broker.lock"):
        path = f"{town.site.directory}/{'state/' if town.kind == 'system' else ''}{name}"
        assert "PermissionError" in town.second.python(f"open({path!r})").stderr
    for action in (f"open('{town.site.directory}/x', 'w')", f"__import__('os').unlink('{town.site.directory}/socket')"):
        assert "PermissionError" in town.second.python(action).stderr


STARVE = """
import socket, sys, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
kept, message = [], bytes.fromhex(sys.argv[2])
for _ in range(1500):
    one = socket.socket(socket.AF_UNIX); one.connect(sys.argv[1]); one.setblocking(False)
    try:
        one.send(message)
    except OSError:
        pass
    kept.append(one)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("town", ["system"], indirect=True)
@pytest.mark.parametrize("attack", ["requests", "questions", "half messages"])
def test_a_user_who_tries_to_starve_the_broker_leaves_others_served(town: Town, attack: str) -> None:
    town.holder(town.first, "--devices", "0")
    message = {
        "requests": pack({"v": 1, "do": "acquire", "request": {"gpus": 4}, "kind": "acquire"}) * 3,
        "questions": pack({"v": 1, "do": "status"}) * 30,
        "half messages": (1 << 20).to_bytes(4, "big") + b"{" * 10_000,
    }[attack]
    starver = town.second.popen([town.second.interpreter, "-c", STARVE, f"{town.site.directory}/socket", message.hex()])
    assert starver.stdout is not None
    assert starver.stdout.readline() == "ready\n"
    done = town.first.run("get", "--devices", "1", "--for", "1h", "--wait", "20s")
    assert done.stdout == "1\n", done.stderr
    assert town.first.run("release", "--mine").returncode == 0
    if attack == "requests":
        assert town.second.run("events").returncode != 0  # it is second who is turned away
    starver.kill()
    starver.wait()
    wait_until(lambda: not town.site.status()["line"])
