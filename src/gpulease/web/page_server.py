"""The HTTP server: which address gives what, to whom, and with which headers. What it shows comes from the hub.

Each answer is for one viewer, whom `guard` has found out before anything else is done.

Answers have the headers that keep a page to itself: as HTML for a browser, as text for everything else. A click does
the same verbs as on the command line, about one job of the viewer's own.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

from aiohttp import web

from gpulease.errors import GpuleaseError, NotFound, NotPermitted, UsageError
from gpulease.hosts.watch import HostWatch
from gpulease.model.job_selection import one_job
from gpulease.render.metrics import CONTENT_TYPE, text
from gpulease.render.terminal import clean
from gpulease.web.access import Access, Refusal, Slowdown, Visit
from gpulease.web.broker_feed import BrokerFeed, BrokerLink
from gpulease.web.cards import ACTIONS, printable
from gpulease.web.fragments import first_page, job_page, refusal_page, sections, status_text
from gpulease.web.hub import MAX_VIEWERS, Hub, stream
from gpulease.web.job_watch import (
    NOT_SHOWN,
    JobEvents,
    JobWatch,
    about_log,
    as_text,
    ask_for_job,
    ask_totals,
    details,
    may_read,
)
from gpulease.web.picture import PagePicture, Row, Viewer, job_seen_by, seen_by, totals_seen_by

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


# -------------------------------------------------------------------- actions


def act(link: BrokerLink, action: str, id: int, viewer: Viewer) -> dict[str, Any]:
    """Whose job it is is asked first: this process may be root's, and the viewer is not."""
    if action not in ACTIONS:
        raise UsageError(f"There is no action {action[:40]!r}.", f"There are: {', '.join(ACTIONS)}.")
    if ask_for_job(link, id)["user"] != viewer.user:
        raise NotPermitted(f"Job {id} is not yours.", "Only its user or root may do that.")
    client = link.open()
    try:
        about: dict[str, Any] = {"id": id, "index": 0} if action == "move" else {"select": one_job(id)}
        if action == "kill" and link.for_others:
            about["by"] = viewer.user  # who pressed the button; the connection is of who runs the page
        done: dict[str, Any] = client.ask(action, **about)
        return done
    finally:
        client.close()


# -------------------------------------------------------------------- the server

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
LARGEST = 64 << 10  # bytes of a form
VIEWER_KEPT = 20.0  # seconds that one who was seen is taken to look: longer than a stream's pulse and a refresh


class PageServer:
    def __init__(self, access: Access, cookie: str, hub: Hub, feed: BrokerFeed, hosts: HostWatch | None) -> None:
        self._access, self._cookie, self._hub, self._feed, self._hosts = access, cookie, hub, feed, hosts
        self._link = BrokerLink(access.for_others)
        self._slowdown = Slowdown()
        self._threads = ThreadPoolExecutor(4, "asking")
        self._readers = ThreadPoolExecutor(4, "reading")  # apart: a disk that hangs must not keep others from acting
        self._watches: dict[int, JobWatch] = {}
        self._viewers = 0

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard], client_max_size=LARGEST)
        application.add_routes(
            [
                web.get("/", self._first),
                web.get("/stream", self._stream, allow_head=False),
                web.get(r"/jobs/{id:\d{1,18}}", self._job),
                web.get(r"/jobs/{id:\d{1,18}}/stream", self._job_stream, allow_head=False),
                web.post(r"/jobs/{id:\d{1,18}}/{action}", self._act),
                web.get("/metrics", self._metrics),
                web.get("/static/{name}", self._static),
            ]
        )
        return application

    # ---------------------------------------------------------------- who asks

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return headed(await self._guarded(request, handler))
        except Exception as error:  # a mistake of ours
            tell_mistake(f"{request.path} failed", error)
            return headed(answer_with(request, 500, "The server made a mistake. Its log says more."))

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        judged = self._access.viewer(self._asked(request))
        if isinstance(judged, Refusal) and not request.path.startswith("/static/"):
            return await self._refused(request, judged)
        try:
            response = await handler(request)
        except web.HTTPException as answer:  # no such address, or not by this method
            response = answer_with(request, answer.status, answer.reason)
        if isinstance(judged, Viewer) and self._access.by_token and "token" in request.query and not response.prepared:
            response.set_cookie(self._cookie, self._access.cookie, httponly=True, samesite="Strict", path="/")
        return response

    def _viewer(self, request: web.Request) -> Viewer:
        """Of a request that `guard` let pass."""
        judged = self._access.viewer(self._asked(request))
        assert isinstance(judged, Viewer)
        return judged

    def _asked(self, request: web.Request) -> Visit:
        peer = request.transport and request.transport.get_extra_info("peername")
        cookie = request.cookies.get(self._cookie)
        return Visit(peer[0] if peer else "", request.host, request.headers, request.query.get("token"), cookie)

    async def _refused(self, request: web.Request, refusal: Refusal) -> web.StreamResponse:
        if refusal.guessed and not await self._slowdown.wait():
            refusal = Refusal(429, "Too many wrong tokens.")
        return answer_with(request, refusal.status, refusal.what)

    # ---------------------------------------------------------------- looking

    async def _first(self, request: web.Request) -> web.StreamResponse:
        viewer = self._viewer(request)
        self._want()
        picture = await self._picture()
        if "json" not in request.query and wants_page(request):
            shown = seen_by(picture, viewer)
            return html(first_page(shown, sections(shown, viewer)))
        shown = seen_by(picture._replace(hosts=await self._hub.hosts()), viewer)
        if "json" in request.query:
            hosts = {"hosts": shown.hosts} if shown.hosts else {}
            trouble = shown.trouble or shown.status.get("trouble")
            return web.json_response({**shown.document(), "trouble": trouble, **hosts})
        return plain(status_text(shown, time.time()))

    def _want(self) -> None:
        """Somebody looks at the first page."""
        self._feed.want()
        if self._hosts is not None:
            self._hosts.want(VIEWER_KEPT)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        viewer, picture = self._viewer(request), await self._picture()
        totals = None
        if picture.trouble is None:
            totals = await asyncio.get_running_loop().run_in_executor(self._threads, ask_totals, self._link)
        shown = text(picture.document(), totals and totals_seen_by(totals, viewer, picture))
        return web.Response(body=shown.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _picture(self) -> PagePicture:
        self._feed.want()
        return await self._hub.ready()

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        await self._picture()
        page = self._hub.page(self._viewer(request))
        page.viewers += 1
        try:
            return await self._entered(request, page.told().next, self._want)
        finally:
            page.viewers -= 1
            self._hub.forget(page)

    async def _entered(
        self, request: web.Request, next_event: Callable[[], Awaitable[bytes]], seen: Callable[[], None]
    ) -> web.StreamResponse:
        if self._viewers >= MAX_VIEWERS:
            return answer_with(request, 503, f"{MAX_VIEWERS} viewers look already. Try again later.")
        self._viewers += 1
        try:
            return await stream(request, next_event, seen)
        finally:
            self._viewers -= 1

    # ---------------------------------------------------------------- one job

    def _watch(self, request: web.Request) -> JobWatch:
        id = int(request.match_info["id"])
        return self._watches.setdefault(id, JobWatch(id, self._link, self._readers))

    def _leave(self, watch: JobWatch) -> None:
        if not watch.viewers:
            self._watches.pop(watch.id, None)

    async def _job(self, request: web.Request) -> web.StreamResponse:
        watch, viewer = self._watch(request), self._viewer(request)
        try:
            hides = (await self._picture()).hides
            await watch.look()
            if watch.job is None:
                return answer_with(request, 404, watch.trouble or "There is no such job.")
            return self._shown_job(request, watch, job_seen_by(watch.job, viewer, hides), viewer)
        finally:
            self._leave(watch)

    def _shown_job(self, request: web.Request, watch: JobWatch, job: Row, viewer: Viewer) -> web.StreamResponse:
        readable = may_read(job, viewer)
        about = about_log(watch.log, watch.log_trouble) if readable else NOT_SHOWN
        log = watch.log.shown if readable and watch.log else ""
        if "json" in request.query:
            return web.json_response(job)
        if wants_page(request):
            host = self._hub.picture.status.get("host", "")
            return html(job_page(watch.id, host, details(job, viewer, time.time()), log, about))
        return plain(as_text(job, log or about, time.time()))

    async def _job_stream(self, request: web.Request) -> web.StreamResponse:
        await self._picture()
        watch = self._watch(request)
        watch.enter()
        job_events = JobEvents(watch, self._viewer(request), lambda: self._hub.picture.hides)
        try:
            return await self._entered(request, job_events.next, self._feed.want)
        finally:
            watch.leave()
            self._leave(watch)

    # ---------------------------------------------------------------- acting

    async def _act(self, request: web.Request) -> web.StreamResponse:
        viewer, token = self._viewer(request), await _form_token(request)
        if token is None:
            return answer_with(request, 400, "The form cannot be read.")
        origin = request.headers.get("Origin")
        refusal = self._access.may_act(viewer, origin, request.host, token)
        if refusal is not None:
            return answer_with(request, refusal.status, refusal.what)
        loop, id, action = asyncio.get_running_loop(), int(request.match_info["id"]), request.match_info["action"]
        try:
            done = await loop.run_in_executor(self._threads, act, self._link, action, id, viewer)
        except GpuleaseError as error:
            return answer_with(request, 404 if isinstance(error, NotFound) else 403, f"{error.what} {error.next_step}")
        except OSError:
            return answer_with(request, 503, "The broker ended before it answered. Check whether it did this.")
        if wants_page(request):
            return web.Response(status=303, headers={"Location": "../../"})
        return web.json_response(done)

    async def _static(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in STATIC:
            raise web.HTTPNotFound
        content = files("gpulease.web").joinpath("static", name).read_bytes()
        return web.Response(body=content, content_type=STATIC[name], charset="utf-8")


async def _form_token(request: web.Request) -> str | None:
    """None where the body is no form of ours: no text, in no charset, or with files."""
    if request.content_type != "application/x-www-form-urlencoded":
        return None
    try:
        token = (await request.post()).get("token", "")
    except (ValueError, LookupError):
        return None
    return token if isinstance(token, str) else None
