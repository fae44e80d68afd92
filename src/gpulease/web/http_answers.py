"""Answers with the headers that keep a page to itself: as HTML for a browser, as text for everything else."""

from __future__ import annotations

import logging
import sys

from aiohttp import web

from gpulease.render.terminal import clean
from gpulease.web.markup import printable
from gpulease.web.pages import refusal_page

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "gpulease",
}


def wants_page(request: web.Request) -> bool:
    """A browser says so; curl takes anything, and gets text."""
    return "text/html" in request.headers.get("Accept", "")


def html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8")


def answer_with(request: web.Request, status: int, what: str) -> web.Response:
    return html(refusal_page(what), status) if wants_page(request) else plain(f"{what}\n", status)


def plain(text: str, status: int = 200) -> web.Response:
    """Of other people's texts only what can be printed: a half letter would be no answer at all."""
    return web.Response(text=printable(text), status=status)


def tell_mistake(about: str, error: object) -> None:
    """A line, however often it is asked for: a traceback for each request would fill the disk."""
    print(f"gpulease: {clean(about)[:80]}: {clean(repr(error))[:200]}", file=sys.stderr, flush=True)


class OneLine(logging.Handler):
    """For what the HTTP library says by itself, as of requests that are no HTTP."""

    def emit(self, record: logging.LogRecord) -> None:
        tell_mistake(record.getMessage(), record.exc_info[1] if record.exc_info else None)


def headed(response: web.StreamResponse) -> web.StreamResponse:
    if not response.prepared:
        response.headers.update(HEADERS)
    return response
