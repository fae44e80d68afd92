"""The nginx configurations of the docs, attacked: nobody sees or ends another's job, whatever a browser sends."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from support.needs import needs
from support.nginx import LoginService, Nginx, printed_block
from support.queue_site import QueueSite
from support.web_site import (  # noqa: F401  # pytest finds the fixtures here
    BROWSER,
    Answer,
    Web,
    action_token,
    site,
    start_web,
    web_site,
)

pytestmark = needs("nginx")
HEADER = "X-Remote-User"
OTHER = "bob"  # logs in, and has no job here
Headers = tuple[tuple[str, str], ...]


class Proxied(NamedTuple):
    nginx: Nginx
    web: Web
    known: dict[str, Headers]  # what somebody sends who is logged in, by name
    nobody: tuple[Headers, ...]  # what others send

    def ask(self, path: str, *headers: tuple[str, str]) -> Answer:
        return self.nginx.ask(f"/gpus{path}", ("Accept", BROWSER), *headers)

    def kill(self, id: int, token: str, *headers: tuple[str, str]) -> Answer:
        origin = ("Origin", f"http://127.0.0.1:{self.nginx.port}")
        form = ("Content-Type", "application/x-www-form-urlencoded")
        path, body = f"/gpus/jobs/{id}/kill", urlencode({"token": token}).encode()
        return self.nginx.ask(path, origin, form, *headers, method="POST", body=body)


def basic(user: str, password: str) -> tuple[str, str]:
    return "Authorization", f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.fixture(params=["With passwords that nginx checks", "With a login page"])
def proxied(request: pytest.FixtureRequest, site: QueueSite, tmp_path: Path) -> Iterator[Proxied]:  # noqa: F811
    user = site.job(site.shell("true"))["user"]
    web = start_web(site, "--user-header", HEADER, "--actions")
    login = LoginService()
    nginx = Nginx(tmp_path, printed_block(request.param), web, {user: "right", OTHER: "other"}, login.port)
    wrong: tuple[Headers, ...] = (
        (),
        (basic(user, "wrong"),),
        (basic(user, ""),),
        (("Authorization", f"Basic {user}"),),
    )
    if "passwords" in request.param:
        known: dict[str, Headers] = {user: (basic(user, "right"),), OTHER: (basic(OTHER, "other"),)}
    else:
        known = {name: (("Cookie", f"session={name}"),) for name in (user, OTHER)}
        wrong += ((("Cookie", "session="),), (basic(user, "right"),))
    try:
        yield Proxied(nginx, web, known, wrong)
    finally:
        nginx.close()
        login.close()


def forged(user: str) -> list[Headers]:
    """What a browser might send to be taken for this user."""
    names = (
        HEADER,
        HEADER.lower(),
        HEADER.upper(),
        "X_Remote_User",
        "X-Remote_User",
        "X-Auth-Request-User",
        "Remote-User",
    )
    return [
        *[((name, user),) for name in names],
        ((HEADER, user), (HEADER, user)),
        ((HEADER, user), ("X_Remote_User", user)),
        ((HEADER, f"{OTHER}, {user}"),),
        ((HEADER, ""), (HEADER, user)),
        (("Connection", HEADER), (HEADER, user)),
    ]


def test_who_proved_who_they_are_sees_and_ends_their_own_jobs(proxied: Proxied, site: QueueSite) -> None:  # noqa: F811
    id = site.shell("echo output $((40 + 2)); sleep 60")
    site.said(id, "output 42")
    user = site.job(id)["user"]
    mine = proxied.known[user]
    assert proxied.ask("/", *mine).status == 200
    shown = proxied.ask(f"/jobs/{id}", *mine).text
    assert "output 42" in shown
    assert proxied.kill(id, action_token(shown), *mine).status in (200, 303)
    (job,) = site.end(id)
    assert (job["state"], job["why"]) == ("killed", f"killed by {user}")


def test_nobody_is_anybody_without_proof(proxied: Proxied, site: QueueSite) -> None:  # noqa: F811
    id = site.shell("echo output $((40 + 2)); sleep 60")
    site.said(id, "output 42")
    user = site.job(id)["user"]
    for sent in proxied.nobody:
        for more in ((), *forged(user)):
            for path in ("/", f"/jobs/{id}", "/metrics", f"/jobs/{id}/stream"):
                assert proxied.ask(path, *sent, *more).status in (400, 401, 403), (path, sent, more)


def test_who_is_somebody_else_stays_that_whatever_they_send(proxied: Proxied, site: QueueSite) -> None:  # noqa: F811
    id = site.shell("echo output $((40 + 2)); sleep 60")
    site.said(id, "output 42")
    user = site.job(id)["user"]
    token = action_token(proxied.ask(f"/jobs/{id}", *proxied.known[user]).text)
    other = proxied.known[OTHER]
    assert proxied.ask(f"/jobs/{id}", *other).status == 200
    others_basic = [
        ((basic(user, "wrong"),)),
        (basic(user, ""),),
        (("Authorization", f"Bearer {proxied.web.token[:-1]}"),),
    ]
    for more in ((), *forged(user), *others_basic):
        for sent in ((*other, *more), (*more, *other)):
            shown = proxied.ask(f"/jobs/{id}", *sent)
            assert "output 42" not in shown.text, sent
            assert "<form" not in shown.text, sent
            assert proxied.kill(id, token, *sent).status in (400, 401, 403), sent
    assert site.job(id)["state"] == "running"


def test_a_login_service_that_says_no_name_lets_nobody_in(proxied: Proxied, site: QueueSite) -> None:  # noqa: F811
    user = next(iter(proxied.known))
    for more in ((), *forged(user)):
        assert proxied.ask("/", ("Cookie", "session=nameless"), *more).status in (401, 403), more
