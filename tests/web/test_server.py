"""The page's server: what it shows to whom, and what it makes of bad input."""

from __future__ import annotations

import http.client
import itertools
import os
import socket
import time
from pathlib import Path

import pytest
from support.queue_site import QueueSite
from support.waiting import PATIENCE, wait_until
from support.web_site import BROWSER, Web, action_token, site, start_web, web, web_site

FIXTURES = (site, web, web_site)

NASTY = "<script>alert(1)</script>\x1b[31m"


def test_the_same_address_gives_a_page_text_and_json(site: QueueSite, web: Web) -> None:
    id = site.shell("sleep 60", name="train")
    text = web.shows(f"J{id}", "train")
    assert "4 SIMULATED GPUs" in text
    assert max(map(len, text.splitlines())) <= 80
    document = web.ask("/?json").json()
    assert (len(document["devices"]), [one["id"] for one in document["leases"]]) == (4, [f"J{id}"])
    page = web.page()
    assert page.startswith("<!doctype html>")
    assert f'<a href="jobs/{id}">' in page


def test_a_browser_without_javascript_gets_a_page_that_is_right_and_refreshes(site: QueueSite, web: Web) -> None:
    id = site.shell("echo hello; sleep 60", name="train")
    site.said(id, "hello")
    web.shows("train")
    page = web.page()
    assert '<noscript><meta http-equiv="refresh" content="10; url=./">' in page
    assert "1 held" in page
    job = web.page(f"/jobs/{id}")
    assert "hello\n</pre>" in job
    assert f'content="10; url={id}"' in job
    answer = web.act(id, "kill", action_token(job), Accept=BROWSER)
    assert (answer.status, answer.headers["Location"]) == (303, "../../")
    assert site.until(id, "killed")


def test_all_text_of_users_is_escaped_and_no_script_stands_in_the_page(site: QueueSite, web: Web) -> None:
    id = site.shell(f"printf '%s\\n' {NASTY!r}; sleep 60", name=f"{NASTY}\udcff", note=NASTY, label="<i>")
    wide = site.shell("true", request={"gpus": 4}, name=NASTY, note=NASTY)
    site.said(id, "</script>")
    wait_until(lambda: "&lt;script&gt;" in web.page())
    for path in ("/", f"/jobs/{id}", f"/jobs/{wide}"):
        answer = web.ask(path, Accept=BROWSER, Authorization=f"Bearer {web.token}")
        assert "&lt;script&gt;alert(1)" in answer.text
        assert "<script>" not in answer.text
        assert "\x1b" not in answer.text
        assert "<i>" not in answer.text
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert web.ask(path).status == web.ask(f"{path}?json").status == 200
    assert "alert(1)" in web.events(f"/jobs/{id}/stream").until("alert(1)")


def test_without_the_token_nothing_is_told_and_with_it_a_cookie_serves(web: Web) -> None:
    assert web.ask("/", Host="localhost").status == 403
    for path in ("/?json", "/stream", "/jobs/1", "/jobs/1/stream", "/metrics", "/nothing"):
        assert web.ask(path, Host="localhost").status == 403
    first = web.ask(f"/?token={web.token}", Accept=BROWSER)
    cookie = first.headers["Set-Cookie"]
    assert f"gpulease-{web.port}=" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert web.token not in cookie
    assert web.ask("/", Cookie=cookie.partition(";")[0]).status == 200
    assert web.ask("/", Host="evil.example", Authorization=f"Bearer {web.token}").status == 421


def test_a_wrong_token_is_answered_late_and_the_right_one_is_not(web: Web) -> None:
    web.shows("GPU")
    wrong = [http.client.HTTPConnection("127.0.0.1", web.port, timeout=PATIENCE) for _ in range(4)]
    begin = time.monotonic()
    for one in wrong:
        one.request("GET", "/?token=guess")
    assert web.ask("/").status == 200
    answers = [one.getresponse() for one in wrong]
    assert {answer.status for answer in answers} == {403}
    assert time.monotonic() - begin >= 1.9  # the fourth of them
    for one in wrong:
        one.close()


def test_a_port_in_use_is_one_clear_error_and_without_one_the_next_is_taken(site: QueueSite, web: Web) -> None:
    done = site.run("web", "--port", str(web.port))
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"gpulease: Port {web.port} is in use."
    assert "Traceback" not in done.stderr
    others = [Web(site.start("web", "--json")) for _ in range(2)]
    assert others[0].port != others[1].port
    assert all(other.port >= 8420 for other in others)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--public", "--actions"), "--actions"),
        (("--port", "99999"), "65535"),
        (("--bind", "203.0.113.1"), "203.0.113.1"),
        (("--proxy", "10.0.0.0/8"), "--user-header"),
        (("--user-header", "X-User", "--proxy", "nowhere"), "nowhere"),
        (("--dcgm-mapping", "/nonexistent"), "nonexistent"),
        (("--token-file", "/nonexistent/token"), "nonexistent"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(site: QueueSite, options: tuple[str, ...], word: str) -> None:
    done = site.run("web", *options)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_is_kept_in_a_file_that_only_its_user_reads(site: QueueSite) -> None:
    path = site.folder / "token"
    first = start_web(site, "--token-file", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert start_web(site, "--token-file", str(path)).token == first.token
    path.chmod(0o644)
    assert site.run("web", "--token-file", str(path)).returncode == 77
    path.chmod(0o600)
    for no_token in ("short", "a" * 257, "é" * 20):
        path.write_text(f"{no_token}\n")
        assert site.run("web", "--token-file", str(path)).returncode == 2


# ---------------------------------------------------------------------- live


def test_a_job_that_is_added_and_ends_is_told_of_and_so_is_its_output(site: QueueSite, web: Web) -> None:
    viewer = web.events()
    viewer.next()
    os.mkfifo(site.folder / "go")
    id = site.shell("read line < go; echo done $line", name="train")
    viewer.until(f"jobs/{id}", "train", "1 held")
    reader = web.events(f"/jobs/{id}/stream")
    reader.next()
    (site.folder / "go").write_text("well\n")
    reader.until("done well", "complete")
    viewer.until("4 free")


def test_the_broker_restarts_and_the_page_says_so_and_comes_back(site: QueueSite, web: Web) -> None:
    viewer = web.events()
    viewer.next()
    site.kill_broker()
    viewer.until("The broker ended")
    assert "The broker" in web.ask("/").text
    assert "gpulease_up 0" in web.ask("/metrics").text
    site.ensure_broker()
    id = site.shell("sleep 60")
    viewer.until(f"jobs/{id}")
    assert "The broker" not in web.ask("/").text


def test_many_viewers_are_one_subscription_to_the_broker(site: QueueSite, web: Web) -> None:
    viewers = [web.events() for _ in range(40)]
    for viewer in viewers:
        viewer.next()
    broker = Path(f"/proc/{site.broker_pid()}/fd")
    connections = len([one for one in broker.iterdir() if os.path.islink(one) and "socket" in os.readlink(one)])
    id = site.shell("sleep 60")
    for viewer in viewers:
        viewer.until(f"jobs/{id}")
        viewer.close()
    assert connections < 20


@pytest.mark.long("faces")
def test_five_hundred_viewers_are_all_told(site: QueueSite, web: Web) -> None:
    viewers = [web.events() for _ in range(500)]
    for viewer in viewers:
        viewer.next()
    id = site.shell("sleep 60")
    for viewer in viewers:
        viewer.until(f"jobs/{id}")


def test_a_viewer_that_never_reads_costs_little_memory_and_delays_nobody(site: QueueSite, web: Web) -> None:
    web.shows("GPU")
    before = _resident(web.process.pid)
    silent = [_silent(web) for _ in range(60)]
    viewer = web.events()
    viewer.next()
    site.until(site.shell("sleep 60", request={"gpus": 4}), "running")
    ids = site.submit_all([["sleep", "60"]] * 120)
    reply = 0
    for id in ids[-1:-30:-1]:  # each comes to the front of the line, so all rows on the page change
        site.ask("move", id=id, index=0)
        reply += len(viewer.until(f'id=\\"line-J{id}\\"'))
    assert reply * len(silent) > 32 << 20  # what would have been kept for them
    assert _resident(web.process.pid) - before < 24 << 20
    for one in silent:
        one.close()


@pytest.mark.long("faces")
def test_a_viewer_that_never_reads_is_dropped(site: QueueSite, web: Web) -> None:
    silent = _silent(web)
    port = silent.getsockname()[1]
    wait_until(lambda: _connected(web, port))
    site.submit_all([["sleep", "60", NASTY * 20]] * 200)
    number = itertools.count()

    def closed() -> bool:
        """Whether the server has ended it; what it had sent before is still there to read."""
        site.submit("true", name=f"another {next(number)}")  # so that there is always something to tell
        return not _connected(web, port)

    wait_until(closed, deadline=100, pause=0.2)
    silent.close()


def _connected(web: Web, port: int) -> bool:
    """Whether the server's side of a connection from that port is open, by the kernel's word."""
    rows = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    pairs = [(here.partition(":")[2], there.partition(":")[2]) for here, there, state in rows if state == "01"]
    return (f"{web.port:04X}", f"{port:04X}") in pairs


def _silent(web: Web) -> socket.socket:
    """The kernel's buffers are made small, so that they are full soon."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", web.port))
    one.sendall(f"GET /stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {web.token}\r\n\r\n".encode())
    return one


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_log_of_a_gigabyte_is_shown_by_its_end(site: QueueSite, web: Web) -> None:
    id = site.shell("truncate -s 1000M /proc/self/fd/1; echo the $((40 + 2)) end; sleep 60")
    web.shows("the 42 end", path=f"/jobs/{id}")
    page = web.page(f"/jobs/{id}")
    assert len(page) < 1 << 20
    assert "The end of 1000" in page


# ---------------------------------------------------------------------- acting


def test_without_actions_the_page_only_shows(site: QueueSite) -> None:
    web = start_web(site)
    id = site.shell("sleep 60")
    site.until(id, "running")
    web.shows(f"J{id}")
    assert "<form" not in web.page()
    assert web.act(id, "kill", "").status == 403
    assert site.job(id)["state"] == "running"


def test_actions_need_the_origin_and_the_form_s_token(site: QueueSite, web: Web) -> None:
    id = site.shell("sleep 60")
    token = wait_until(lambda: action_token(web.page()))
    assert web.act(id, "kill", token, Origin="http://evil.example").status == 403
    assert web.act(id, "kill", "guess").status == 403
    assert web.ask(f"/jobs/{id}/kill", "GET").status == 405
    assert web.act(id, "rm", token).status == 403  # no button does that
    assert web.act(999, "kill", token).status == 404
    assert site.until(id, "running")
    assert web.act(id, "pause", token).status == 200
    assert site.until(id, "paused")
    assert web.act(id, "resume", token).status == 200
    assert site.until(id, "running")
    assert web.act(id, "kill", token).json()["ids"] == [id]
    assert site.until(id, "killed")


def test_a_waiting_job_is_moved_to_the_front(site: QueueSite, web: Web) -> None:
    site.until(site.shell("sleep 60", request={"gpus": 4}), "running")
    first, second = site.shell("true"), site.shell("true")
    wait_until(lambda: [row["id"] for row in web.ask("/?json").json()["line"]] == [f"J{first}", f"J{second}"])
    token = wait_until(lambda: action_token(web.page()))
    assert web.act(second, "move", token).status == 200
    wait_until(lambda: [row["id"] for row in web.ask("/?json").json()["line"]] == [f"J{second}", f"J{first}"])


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", b"token=\xff"),
        ("application/x-www-form-urlencoded; charset=nope", b"token=x"),
        ("multipart/form-data", b"token=x"),
    ],
)
def test_a_form_that_cannot_be_read_is_a_bad_request(web: Web, kind: str, body: bytes) -> None:
    answer = web.ask("/jobs/1/kill", "POST", body, **web.headers(Content_Type=kind))
    assert (answer.status, answer.text) == (400, "The form cannot be read.\n")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_a_token_that_is_no_text_is_a_wrong_one(site: QueueSite) -> None:
    web = start_web(site)
    for header in ({"Authorization": "Bearer \xff\xfe"}, {"Cookie": f"gpulease-{web.port}=\xff"}):
        answer = web.ask("/", **header)
        assert (answer.status, answer.text) == (403, "The token is wrong.\n")
        assert (answer.headers["Server"], "default-src" in answer.headers["Content-Security-Policy"]) == (
            "gpulease",
            True,
        )
    web.process.terminate()
    assert web.process.wait(PATIENCE) == 0
    assert web.process.stderr is not None
    assert web.process.stderr.read() == ""


def test_a_request_that_is_no_http_is_one_line_in_the_log(site: QueueSite) -> None:
    web = start_web(site)
    with socket.create_connection(("127.0.0.1", web.port), PATIENCE) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nNo Header\r\n\r\n")
        assert b" 400 " in connection.recv(1000)
    web.process.terminate()
    assert web.process.wait(PATIENCE) == 0
    assert web.process.stderr is not None
    (line,) = web.process.stderr.read().splitlines()
    assert line.startswith("gpulease: Error handling request")


def test_a_bar_of_progress_is_written_over_in_the_page(site: QueueSite, web: Web) -> None:
    os.mkfifo(site.folder / "step")
    id = site.shell("printf 'begin\\n10%%'; read line < step; printf '\\r20%%'; sleep 60")
    site.said(id, "10%")
    reader = web.events(f"/jobs/{id}/stream")
    reader.until('"log": "begin\\n"', '"log_tail": "10%"')
    (site.folder / "step").write_text("on\n")
    reader.until('"log_tail": "20%"')
    assert "begin\n20%</pre>" in web.page(f"/jobs/{id}")


# ---------------------------------------------------------------------- for others


def test_a_public_page_hides_commands_where_they_are_hidden_and_never_shows_output(site: QueueSite) -> None:
    id = site.shell("echo output $((40 + 2)) secret; sleep 60", name="secret-name", note="secret-note")
    site.said(id, "output 42")
    web = start_web(site, "--public")
    assert "token" not in web.address
    shown = wait_until(lambda: text if "secret-name" in (text := web.ask("/", Host="localhost").text) else None)
    assert f"J{id}" in shown
    assert "Set-Cookie" not in web.ask("/?token=whatever", Host="localhost").headers  # it would open another server
    assert "output 42" not in web.ask(f"/jobs/{id}", Host="localhost").text
    site.ask("set", name="hide-commands", value="on")
    wait_until(lambda: "secret" not in web.ask("/", Host="localhost", Accept=BROWSER).text)
    for path in ("/", "/?json", f"/jobs/{id}", f"/jobs/{id}?json", "/metrics"):
        assert "secret" not in web.ask(path, Host="localhost").text
    mine = start_web(site)
    mine.shows("secret-name")


def test_behind_a_proxy_each_user_sees_what_is_theirs(site: QueueSite) -> None:
    id = site.shell("echo output $((40 + 2)) secret; sleep 60", name="secret-name")
    site.said(id, "output 42")
    site.ask("set", name="hide-commands", value="on")
    user = site.job(id)["user"]
    web = start_web(site, "--user-header", "X-Remote-User", "--actions")
    bearer = {"Authorization": f"Bearer {web.token}"}
    assert web.ask("/", X_Remote_User=user).status == 403
    assert web.ask(f"/?token={web.token}", X_Remote_User=user).status == 403
    own = {"X-Remote-User": user, **bearer, "Accept": BROWSER}
    wait_until(lambda: "secret-name" in web.ask("/", **own).text)
    assert "output 42" in web.ask(f"/jobs/{id}", **own).text
    other = {"X-Remote-User": "bob", **bearer, "Accept": BROWSER}
    for path in ("/", f"/jobs/{id}"):
        assert "secret" not in web.ask(path, **other).text
    assert "<form" not in web.ask(f"/jobs/{id}", **other).text
    token = action_token(web.ask(f"/jobs/{id}", **own).text)
    assert web.act(id, "kill", token, X_Remote_User="bob").status == 403
    assert site.job(id)["state"] == "running"
    assert web.act(id, "kill", token, X_Remote_User=user).status == 200


def test_it_ends_at_once_though_somebody_looks(site: QueueSite) -> None:
    server = start_web(site)
    server.events().next()
    server.process.terminate()
    assert server.process.wait(PATIENCE) == 0
    assert server.process.stderr is not None
    assert server.process.stderr.read() == ""
