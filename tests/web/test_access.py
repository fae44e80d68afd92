"""Who may look at the page and who may act: nobody without the token, nobody from another page."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from gpulease.web.access import FORGET, MOST, WAITING, Access, Refusal, Slowdown, Visit
from gpulease.web.picture import Viewer

TOKEN = "0123456789abcdef"
OWN = Access("ada", TOKEN)
ACTING = OWN._replace(actions=True)
PROXIED = OWN._replace(user_header="X-Remote-User", actions=True)


def asked(host: str = "127.0.0.1:8420", peer: str = "127.0.0.1", **more: object) -> Visit:
    return Visit(peer, host, **{"headers": {}, **more})  # type: ignore[arg-type]


def bearer(token: str = TOKEN, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **{name.replace("_", "-"): value for name, value in more.items()}}


def refused(judged: Viewer | Refusal | None) -> Refusal:
    assert isinstance(judged, Refusal), judged
    return judged


@pytest.mark.parametrize(
    "given", [{"token": TOKEN}, {"cookie": OWN.cookie}, {"headers": bearer()}], ids=["address", "cookie", "header"]
)
def test_the_token_lets_one_see_what_the_user_sees(given: dict[str, Any]) -> None:
    assert OWN.viewer(asked(**given)) == Viewer("ada")


def test_nothing_and_a_wrong_token_are_refused_and_only_the_wrong_one_counts_as_a_guess() -> None:
    assert not refused(OWN.viewer(asked())).guessed
    assert not refused(OWN.viewer(asked(cookie="of another server"))).guessed
    wrong: tuple[dict[str, Any], ...] = ({"token": TOKEN[:-1]}, {"token": ""}, {"token": "é" * 9999})
    no_text = "\udcff\udcfe"  # as bytes of a header that are no text
    for given in (*wrong, {"headers": bearer("guess")}, {"headers": bearer(no_text)}, {"cookie": no_text}):
        assert refused(OWN.viewer(asked(**given))).guessed


def test_the_cookie_is_not_the_token_and_is_no_token() -> None:
    assert TOKEN not in OWN.cookie
    assert refused(OWN.viewer(asked(token=OWN.cookie)))


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8420", "", "[", "localhost@evil.example:1"])
def test_a_name_that_somebody_else_s_dns_leads_here_is_refused(host: str) -> None:
    assert refused(OWN.viewer(asked(host, token=TOKEN))).status == 421
    assert refused(OWN._replace(public=True).viewer(asked(host))).status == 421


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:8420", "LOCALHOST:8420", "10.0.0.7:8420"])
def test_a_tunnel_may_have_another_port(host: str) -> None:
    assert isinstance(OWN.viewer(asked(host, token=TOKEN)), Viewer)


def test_everybody_sees_a_public_page_and_nobody_acts_there() -> None:
    viewer = ACTING._replace(public=True).viewer(asked())
    assert viewer == Viewer("", public=True)
    assert refused(ACTING.may_act(viewer, "http://127.0.0.1:8420", "127.0.0.1:8420", ""))


def test_a_proxy_names_the_user_only_if_it_shows_the_token_and_is_where_it_should_be() -> None:
    named = bearer(X_Remote_User="bob")
    viewer = PROXIED.viewer(asked(headers=named))
    assert isinstance(viewer, Viewer)
    assert (viewer.user, viewer.public) == ("bob", True)
    assert refused(PROXIED.viewer(asked(headers=named, peer="10.1.2.3")))
    assert refused(PROXIED.viewer(asked(headers=named, peer="")))
    assert refused(PROXIED.viewer(asked(headers={"X-Remote-User": "bob"})))
    assert refused(PROXIED.viewer(asked(headers=bearer("guess", X_Remote_User="bob")))).guessed
    for name in ("", "x" * 999, "a\x00b"):
        assert refused(PROXIED.viewer(asked(headers=bearer(X_Remote_User=name))))
    assert refused(PROXIED.viewer(asked(token=TOKEN, cookie=PROXIED.cookie)))


def test_the_header_means_nothing_where_it_was_not_asked_for() -> None:
    assert OWN.viewer(asked(headers=bearer(X_Remote_User="bob"))) == Viewer("ada")


def test_an_action_needs_our_origin_and_the_token_of_the_form() -> None:
    viewer = ACTING.viewer(asked(token=TOKEN))
    assert isinstance(viewer, Viewer)
    host, origin, token = "127.0.0.1:8420", "http://127.0.0.1:8420", viewer.action_token
    assert ACTING.may_act(viewer, origin, host, token) is None
    for other in (
        None,
        "null",
        "http://evil.example",
        "http://127.0.0.1:9999",
        "http://127.0.0.1:8420.evil.example",
        "http://[",
        "",
    ):
        assert refused(ACTING.may_act(viewer, other, host, token))
    for wrong in ("", TOKEN, ACTING.cookie):
        assert refused(ACTING.may_act(viewer, origin, host, wrong))
    assert refused(OWN.may_act(Viewer("ada"), origin, host, token))


def test_a_proxy_that_names_two_users_names_none() -> None:
    """The first of two headers counted; which of them is the browser's nobody can tell."""
    for name in ("X-Remote-User", "x-remote-user", "X_Remote_User", "X-Remote_User"):
        twice = CIMultiDict([*bearer(X_Remote_User="ada").items(), (name, "bob")])
        assert refused(PROXIED.viewer(asked(headers=twice)))
    assert refused(PROXIED.viewer(asked(headers={**bearer(), "X_Remote_User": "bob"})))
    twice = CIMultiDict([*bearer("guess", X_Remote_User="ada").items(), *bearer().items()])
    assert refused(PROXIED.viewer(asked(headers=twice)))


def test_users_behind_a_proxy_have_forms_of_their_own() -> None:
    ada, bob = (PROXIED.viewer(asked(headers=bearer(X_Remote_User=name))) for name in ("ada", "bob"))
    assert isinstance(ada, Viewer)
    assert isinstance(bob, Viewer)
    assert refused(PROXIED.may_act(ada, "http://127.0.0.1:8420", "127.0.0.1:8420", bob.action_token))


def test_each_wrong_token_is_answered_later_until_a_while_has_passed() -> None:
    moment = [100.0]
    slowdown = Slowdown(lambda: moment[0])
    delays = [slowdown.next_delay() for _ in range(10)]
    assert delays == sorted(delays, key=lambda delay: delay or 0)
    assert delays[0] == 0.25
    assert delays[-1] == MOST
    moment[0] += FORGET + 1
    assert slowdown.next_delay() == 0.25


def test_of_those_who_guess_only_so_many_are_kept_waiting() -> None:
    slowdown = Slowdown(lambda: 100.0)
    slowdown._waiting = WAITING
    assert slowdown.next_delay() is None
