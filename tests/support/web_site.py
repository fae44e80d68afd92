"""The page's server as a real process, and what a client of it sees: answers, and server-sent events."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from gpulease.errors import WrongState
from support.queue_site import ENDS, QueueSite
from support.site import Site
from support.waiting import PATIENCE, wait_until

BROWSER = "text/html,application/xhtml+xml"


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Events:
    """A viewer: each event is a change of the page."""

    def __init__(self, web: Web, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=PATIENCE)
        self._connection.request("GET", path, headers=web.headers())
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()

    def next(self) -> dict[str, Any]:
        while True:
            line = self._answer.readline()
            assert line, "the server closed the stream"
            if line.startswith(b"data: "):
                reply: dict[str, Any] = json.loads(line[6:])
                return reply

    def until(self, *words: str) -> str:
        """What was told, once all these words were in it."""
        reply = ""
        while not all(word in reply for word in words):
            reply += json.dumps(self.next())
        return reply

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


class Web:
    """A server that was started, with the token that it printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        reply = json.loads(line)
        self.address, self.port, self.token = reply["address"], reply["port"], reply["token"]

    def headers(self, **more: str) -> dict[str, str]:
        names = {name.replace("_", "-"): value for name, value in more.items()}
        return {"Authorization": f"Bearer {self.token}", **names}

    def ask(self, path: str = "/", method: str = "GET", body: str | bytes | None = None, **headers: str) -> Answer:
        """With exactly these headers, where there are any; else with the token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()} or self.headers()
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()

    def page(self, path: str = "/") -> str:
        """As a browser asks for it."""
        return self.ask(path, **self.headers(Accept=BROWSER)).text

    def act(self, id: int, action: str, token: str, **headers: str) -> Answer:
        given = {"Origin": f"http://127.0.0.1:{self.port}", **self.headers(**headers)}
        given["Content-Type"] = "application/x-www-form-urlencoded"
        return self.ask(f"/jobs/{id}/{action}", "POST", urlencode({"token": token}), **given)

    def events(self, path: str = "/stream") -> Events:
        return Events(self, path)

    def shows(self, *words: str, path: str = "/") -> str:
        """The page as text, once all these words are in it."""
        return wait_until(lambda: text if all(word in (text := self.ask(path).text) for word in words) else None)


def start_web(site: Site, *options: str, **more: Any) -> Web:
    return Web(site.start("web", "--json", "--port", "0", *options, **more))


def action_token(page: str) -> str:
    """Of the first form of a page."""
    return page.partition('name="token" value="')[2].partition('"')[0]


def end_all(site: QueueSite) -> None:
    """Nothing runs, waits or is held any more; the next test has the machine to itself."""
    open_jobs = [job["id"] for job in site.jobs() if job["state"] not in ENDS]
    if open_jobs:
        with contextlib.suppress(WrongState):  # they have ended meanwhile
            site.act("kill", *open_jobs)
        site.end(*open_jobs)
    site.ask("set", name="hide-commands", value="off")


@pytest.fixture(scope="module")
def web_site() -> Iterator[QueueSite]:
    """Four simulated GPUs and a broker, for the tests of one file; a server that is started here ends with them."""
    made = QueueSite()
    try:
        made.ensure_broker()
        yield made
        assert "Traceback" not in made.log(), made.log()
    finally:
        made.close()


@pytest.fixture(scope="module")
def web(web_site: QueueSite) -> Web:
    """With buttons."""
    return start_web(web_site, "--actions")


@pytest.fixture
def site(web_site: QueueSite) -> Iterator[QueueSite]:
    yield web_site
    web_site.ensure_broker()
    end_all(web_site)
