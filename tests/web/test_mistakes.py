"""A mistake of ours in the page's server: one line in its log, and an answer with the usual headers."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpulease.web.access import Access
from gpulease.web.broker_feed import BrokerFeed, BrokerLink
from gpulease.web.hub import Hub
from gpulease.web.page_server import PageServer

TOKEN = "0123456789abcdef"


async def mistaken(request: web.Request) -> web.StreamResponse:
    raise RuntimeError("a\x1b[31m mistake")


async def ask(path: str) -> tuple[int, str, str]:
    hub = Hub()
    application = PageServer(
        Access("ada", TOKEN), "cookie", hub, BrokerFeed(hub.hear, BrokerLink()), None
    ).application()
    application.router.add_get("/mistaken", mistaken)
    async with TestClient(TestServer(application)) as client:
        answer = await client.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
        return answer.status, answer.headers["Server"], answer.headers["Content-Security-Policy"]


def test_a_mistake_is_one_line_and_the_headers_are_there(capfd: pytest.CaptureFixture[str]) -> None:
    status, server, policy = asyncio.run(ask("/mistaken"))
    assert (status, server, "default-src 'none'" in policy) == (500, "gpulease", True)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("gpulease: /mistaken failed: RuntimeError(")
    assert line.isprintable()
