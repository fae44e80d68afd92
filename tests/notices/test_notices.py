"""A user is told of what they chose, by the channel they chose, in few messages; whoever hangs delays nobody."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.needs import NAMESPACES
from support.other_users import needs_root
from support.queue_site import QueueSite
from support.site import marked, words_of_all
from support.waiting import PATIENCE, wait_until
from support.web_hook import WebHook, web_hook

from gpulease.notices import address as own_file
from gpulease.notices.address import read_address

SECRET = f"T0p53cret{os.getpid()}"  # of this worker: another one may set its own address just now


@pytest.fixture(name="hook")
def fresh_hook() -> Iterator[WebHook]:
    with web_hook() as hook:
        yield hook


@pytest.fixture(name="queue")
def queue_with_folders() -> Iterator[QueueSite]:
    """With a config folder of its own and a stand-in for sendmail; messages are not paced."""
    site = QueueSite()
    programs = site.folder / "programs"
    programs.mkdir()
    (programs / "sendmail").write_text(f'#!/bin/sh\necho "$@" > {site.folder}/words\ncat > {site.folder}/letter\n')
    (programs / "sendmail").chmod(0o755)
    site.environ["XDG_CONFIG_HOME"] = str(site.folder / "config")
    site.environ["PATH"] = f"{programs}:{site.environ['PATH']}"
    try:
        site.ensure_broker()
        site.ask("set", name="notify-every", value="0s")
        yield site
        assert "Traceback" not in site.log(), site.log()
    finally:
        site.close()


def choose(queue: QueueSite, address: str, *more: str) -> str:
    done = queue.run("notify", "set", address, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def config(queue: QueueSite) -> Path:
    return Path(queue.environ["XDG_CONFIG_HOME"], "gpulease", "notify.json")


def last_trouble(queue: QueueSite) -> str | None:
    last = queue.json("notify")["last"]
    return None if last is None else last["trouble"]


def test_a_web_hook_hears_how_jobs_end_and_what_they_asked_for(queue: QueueSite, hook: WebHook) -> None:
    choose(queue, hook.url(SECRET))
    plain, failed = queue.submit("true"), queue.shell("exit 3")
    memory = queue.shell("echo CUDA out of memory; exit 1")
    asked = queue.run("add", "--notify", "--name", "mine", "--", "true")
    assert asked.returncode == 0, asked.stderr
    queue.end(plain, failed, memory, int(asked.stdout))
    wait_until(lambda: len(hook.events()) >= 3)
    found = {("ended", int(asked.stdout)), ("failed", failed), ("out-of-memory", memory)}
    assert set(hook.events()) == found
    assert set(hook.paths) == {f"/{SECRET}"}
    texts = "\n".join(body["text"] for body in hook.heard)
    assert f"Job {failed} (sh) is failed: exit code 3." in texts
    assert queue.job(int(asked.stdout))["notify"] == [
        "turn",
        "ended",
        "failed",
        "out-of-memory",
        "gpu-broken",
        "gpu-used",
    ]


def test_five_hundred_jobs_that_end_at_once_are_a_few_messages(queue: QueueSite, hook: WebHook) -> None:
    choose(queue, hook.url(SECRET), "--on", "failed")
    queue.ask("set", name="notify-every", value="1h")
    failing = queue.submit("false", hold=True)
    ids = queue.submit_all([["true"]] * 500, after=[failing])
    queue.act("resume", failing)
    wait_until(lambda: queue.ask("ls", ids=True, select={"state": "killed"})["ids"] == ids)
    queue.restart()  # what is left of them leaves then
    wait_until(lambda: hook.notices >= 501)
    assert hook.notices == 501
    assert len(hook.heard) <= 2
    assert all(len(body["text"].splitlines()) <= 31 for body in hook.heard)


def test_the_secret_is_nowhere_but_in_its_users_file(queue: QueueSite, hook: WebHook) -> None:
    shown = subprocess.run(
        queue.words("notify", "set", "-"),
        input=hook.url(SECRET) + "\n",
        env=queue.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert f"http://{hook.host}/…" in shown.stdout
    queue.end(queue.submit("false"))
    wait_until(lambda: hook.heard)
    hook.code = 404
    queue.end(queue.submit("false"))
    wait_until(lambda: last_trouble(queue) == "the server answered with code 404")
    said = shown.stdout + shown.stderr + queue.log()
    for words in (["notify"], ["notify", "--json"], ["status", "--json"], ["events", "--json"], ["set", "--json"]):
        done = queue.run(*words)
        said += done.stdout + done.stderr
    said += queue.run("show", "all", "--json").stdout
    failed = queue.run("notify", "test")
    assert failed.returncode == 1
    assert "code 404" in failed.stderr
    said += failed.stdout + failed.stderr
    assert SECRET not in said
    holding = [path for path in queue.folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert holding == [config(queue)]
    assert config(queue).stat().st_mode & 0o777 == 0o600


def test_a_secret_that_is_typed_is_not_shown(queue: QueueSite, hook: WebHook) -> None:
    ours, theirs = pty.openpty()
    try:
        asking = queue.start("notify", "set", "-", stdin=theirs, start_new_session=True)
        assert asking.stderr is not None
        assert asking.stderr.read(9) == "address: "  # from now on nothing is echoed
        os.write(ours, f"{hook.url(SECRET)}\n".encode())
        reply, complained = asking.communicate(timeout=PATIENCE)
        assert (asking.returncode, complained.strip()) == (0, "")
        assert SECRET not in reply
        os.set_blocking(ours, False)
        assert SECRET.encode() not in _all_of(ours)
    finally:
        os.close(ours)
        os.close(theirs)
    assert SECRET in config(queue).read_text()


def _all_of(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""


def test_mail_goes_by_the_local_sendmail_and_nothing_of_it_is_in_its_words(queue: QueueSite) -> None:
    choose(queue, "mailto:ada@example.org")
    queue.end(queue.submit("false", name="my\nBcc: all@example.org\x1b[2J"))
    letter = wait_until(lambda: text if "log" in (text := _read(queue.folder / "letter")) else None)
    header, _, body = letter.partition("\n\n")
    assert "To: ada@example.org\n" in header
    assert "\nBcc:" not in header
    assert "Job 1 (my Bcc: all@example.org [2J) is failed: exit code 1." in body
    assert (queue.folder / "words").read_text() == "-i -t\n"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


ON_A_TERMINAL = """
import os, pty, subprocess, sys
ours, theirs = pty.openpty()
other, quiet = pty.openpty()
os.chmod(os.ttyname(theirs), 0o620)
os.chmod(os.ttyname(quiet), 0o600)
for words in (["notify", "set", "tty"], ["add", "--name", "night\x1b]0;owned\x07run", "--", "false"]):
    subprocess.run([sys.executable, "-m", "gpulease", *words], check=True, stdout=subprocess.DEVNULL)
shown = b""
while b"gpulease log 1" not in shown:
    shown += os.read(ours, 4096)
os.set_blocking(other, False)
try:
    shown += b" AND ON ANOTHER: " + os.read(other, 4096)
except BlockingIOError:
    pass
print(ascii(shown))
"""


@needs_root
def test_a_terminal_that_takes_messages_shows_them_and_another_does_not(queue: QueueSite) -> None:
    """In a machine of terminals of its own: those of other tests would hear of it too."""
    queue.kill_broker()
    mount = "mount -t devpts -o newinstance,mode=620,ptmxmode=666 devpts /dev/pts"
    words = ["unshare", "-m", "sh", "-c", f'{mount} || exit 99; exec "$@"', "sh", sys.executable, "-c", ON_A_TERMINAL]
    done = queue.popen(words, cwd="/")
    shown, complained = done.communicate(timeout=2 * PATIENCE)
    if done.returncode == 99:
        pytest.skip(NAMESPACES)
    assert done.returncode == 0, complained
    assert "(night ]0;owned run) is failed: exit code 1." in shown
    assert "\\x1b" not in shown
    assert "AND ON ANOTHER" not in shown


def test_apprise_sends_to_its_own_kinds_of_addresses(queue: QueueSite, hook: WebHook) -> None:
    choose(queue, f"json://{hook.host}/{SECRET}")
    assert queue.json("notify")["address"] == "json://…"
    queue.end(queue.submit("false"))
    wait_until(lambda: hook.heard)
    assert hook.paths == [f"/{SECRET}"]
    assert "Job 1 (false) is failed: exit code 1." in hook.heard[0]["message"]


def test_without_apprise_its_addresses_are_refused_and_the_extra_is_named(queue: QueueSite) -> None:
    (queue.folder / "none").mkdir()
    (queue.folder / "none" / "apprise.py").write_text("raise ImportError\n")
    done = queue.run("notify", "set", f"slack://{SECRET}/b/c", PYTHONPATH=str(queue.folder / "none"))
    assert done.returncode == 2
    assert "gpulease[notify]" in done.stderr
    assert SECRET not in done.stderr
    assert not config(queue).exists()


def test_a_server_that_hangs_delays_neither_jobs_nor_broker(queue: QueueSite, hook: WebHook) -> None:
    hook.hang.set()
    choose(queue, hook.url(SECRET))
    queue.end(queue.submit("false"))
    wait_until(lambda: hook.heard)
    ids = queue.submit_all([["false"]] * 20)
    assert {job["state"] for job in queue.end(*ids)} == {"failed"}
    assert queue.ask("ping")
    wait_until(lambda: len(_running(queue, b"gpulease.notices.send")) == 1)  # one at a time
    assert SECRET not in words_of_all()
    assert queue.run("notify", "clear").returncode == 0


def _running(queue: QueueSite, module: bytes) -> list[int]:
    return [pid for pid in marked(queue.folder) if module in _words(pid)]


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


SEND = "from gpulease.notices import send as sending; sending.LONGEST, sending.PAUSES = {}; sending.main()"


def send(path: Path, address: str, longest: int) -> str | None:
    """What is wrong with it, if it could not be sent by the process that sends, without pauses between its tries."""
    own_file.write(str(path), read_address(address))
    order = {"file": str(path), "notice": {"event": "ended", "job": 1, "ran": 1.0}}
    words = [sys.executable, "-c", SEND.format((longest, (0, 0)))]
    subprocess.run(words, input=json.dumps(order), text=True, timeout=PATIENCE, check=True)
    reply = own_file.last(str(path))
    assert reply is not None
    trouble: str | None = reply["trouble"]
    return trouble


@pytest.mark.parametrize(("code", "tries"), [(503, 3), (429, 3), (404, 1), (301, 1)])
def test_what_may_pass_is_tried_three_times_and_what_is_refused_once(
    tmp_path: Path, hook: WebHook, code: int, tries: int
) -> None:
    hook.code = code
    assert f"code {code}" in (send(tmp_path / "notify.json", hook.url(SECRET), 60) or "")
    assert len(hook.heard) == tries


def test_a_server_that_never_finishes_its_answer_is_left_in_time(tmp_path: Path) -> None:
    """Each byte comes soon enough for a deadline of the network."""
    over = threading.Event()

    def dribble(listener: socket.socket) -> None:
        with listener.accept()[0] as connection:
            while not over.wait(0.1):
                connection.send(b"H")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=dribble, args=(listener,), daemon=True).start()
        trouble = send(tmp_path / "notify.json", f"http://127.0.0.1:{listener.getsockname()[1]}/{SECRET}", 1)
        over.set()
    assert trouble == "it took longer than 1 s"


def test_what_is_pending_leaves_when_the_broker_ends_however_it_ends(queue: QueueSite, hook: WebHook) -> None:
    choose(queue, hook.url(SECRET))
    queue.ask("set", name="notify-every", value="1h")
    for number in (1, 2):
        queue.end(queue.submit("false"))
        if number == 1:
            wait_until(lambda: hook.heard)
    queue.restart()
    wait_until(lambda: ("failed", 2) in hook.events())


def test_a_lease_that_waited_has_its_turn_told(queue: QueueSite, hook: WebHook) -> None:
    choose(queue, hook.url(SECRET), "--on", "turn")
    queue.ask("set", name="notify-waited", value="0s")
    holder = queue.holder("-n", "4")
    waiting = queue.start("run", "--", "true")
    wait_until(lambda: queue.status()["line"])
    assert holder.stdin is not None
    holder.stdin.close()
    assert waiting.wait(PATIENCE) == 0
    wait_until(lambda: len(hook.events()) >= 2)
    assert [one["kind"] for body in hook.heard for one in body["notices"]] == ["run", "run"]


def test_a_gpu_that_breaks_is_told_of_to_its_holder_and_to_the_hook(queue: QueueSite, hook: WebHook) -> None:
    reply = queue.folder / "told"
    queue.ask("set", name="on-broken", value=f"cat >> {reply}")
    choose(queue, hook.url(SECRET), "--on", "gpu-broken")
    queue.holder("-d", "2")
    queue.set("gpu.2.lost=1")
    wait_until(lambda: hook.heard)
    assert "GPU 2 is broken, the driver lost it" in hook.heard[0]["text"]
    assert "Your lease L" in hook.heard[0]["text"]
    document = json.loads(wait_until(lambda: _read(reply)))
    assert (document["devices"], document["users"]) == (["2"], [queue.status()["leases"][0]["user"]])


def test_set_show_test_and_clear(queue: QueueSite, hook: WebHook) -> None:
    assert "no address is set" in queue.run("notify").stdout
    assert queue.json("notify")["events"] is None
    no_address = queue.run("add", "--notify", "--", "true")
    assert (no_address.returncode, "gpulease notify set" in no_address.stderr) == (1, True)
    choose(queue, hook.url(SECRET), "--on", "none")
    assert queue.json("notify", "test") == {"sent_to": f"http://{hook.host}/…"}
    assert "Notices arrive here" in hook.heard[0]["text"]
    assert "a test was sent; no notice yet" in queue.run("notify").stdout
    assert "ended, failed" in choose_events(queue, "ended,failed")
    for wrong in (["set"], ["set", "--on", "bogus"], ["set", "gopher:x"], ["clear", "tty"], ["bogus"]):
        assert queue.run("notify", *wrong).returncode == 2, wrong
    assert queue.json("notify", "clear") == {"cleared": True}
    assert queue.json("notify")["address"] is None
    assert queue.run("notify", "test").returncode == 1
    assert not config(queue).exists()
    queue.end(queue.submit("false"))
    assert len(hook.heard) == 1


def choose_events(queue: QueueSite, events: str) -> str:
    done = queue.run("notify", "set", "--on", events)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_says_what_a_job_tells(queue: QueueSite, hook: WebHook) -> None:
    choose(queue, hook.url(SECRET), "--on", "all")
    code = "import gpulease; print(gpulease.submit(['true'], notify={}).id)"
    for notify, kept in (("True", 6), ("'failed'", 1), ("['failed', 'ended']", 2), ("'none'", 0)):
        done = subprocess.run(
            [sys.executable, "-c", code.format(notify)], env=queue.environ, capture_output=True, text=True, cwd="/"
        )
        assert done.returncode == 0, done.stderr
        assert len(queue.job(int(done.stdout))["notify"]) == kept


def test_the_agent_reaps_whoever_sent_and_sends_again(queue: QueueSite, hook: WebHook) -> None:
    choose(queue, hook.url(SECRET))
    agents = []
    for number in (1, 2):
        queue.end(queue.submit("false"))
        wait_until(lambda number=number: len(hook.heard) == number)  # type: ignore[misc]
        wait_until(lambda: not _dead_children(queue))
        agents.append(_running(queue, b"gpulease.broker.agent"))
    assert agents[0] == agents[1]


def _dead_children(queue: QueueSite) -> list[str]:
    """Of processes of this site; they are dead, and nobody has asked how they ended."""
    parents, found = set(map(str, marked(queue.folder))), []
    for folder in Path("/proc").iterdir():
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state == "Z" and parent in parents:
            found.append(folder.name)
    return found


def test_an_address_of_mail_without_a_mail_program_is_told_at_once(queue: QueueSite, tmp_path: Path) -> None:
    """Only `notify test` said so, and `last` was that of the address before."""
    config = {"XDG_CONFIG_HOME": str(tmp_path), "PATH": str(tmp_path)}
    assert queue.run("notify", "set", "tty", **config).stderr == ""
    assert queue.run("notify", "test", **config).returncode in (0, 1)
    own_file.write_last(str(tmp_path / "gpulease" / "notify.json"), 1, None)
    assert " sent" in queue.run("notify", **config).stdout
    reply = queue.run("notify", "set", "mailto:ada@example.org", **config)
    if Path("/usr/sbin/sendmail").exists() or Path("/usr/lib/sendmail").exists():
        assert reply.stderr == ""
    else:
        assert "no notice will arrive: there is no `sendmail` here" in reply.stderr
    assert "none was sent yet" in reply.stdout
