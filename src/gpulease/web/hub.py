"""Server-sent events for viewers. Each kind of viewer has one page, rendered once for all of them.

A viewer has no queue. It knows which version it was told last, and gets what changed since, or everything when it
missed a version; so one that reads slowly costs no memory, and one that does not read at all is dropped.

What is sent waits in no queue of ours: the next event is asked for when the last was taken. Who takes nothing for a
while is dropped; a browser comes back by itself and gets everything anew.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from aiohttp import web

from gpulease.errors import GpuleaseError
from gpulease.hosts.watch import is_known
from gpulease.web.fragments import Section, Sections, sections
from gpulease.web.picture import NOTHING, PagePicture, Row, Viewer, seen_by

MAX_VIEWERS = 1000
PULSE = 15.0  # seconds after which a line is sent that says nothing, so that a dead connection is noticed
PATIENCE = 20.0  # seconds for a viewer to take what was sent
BUFFER = 32 << 10  # bytes that wait for one viewer here
KERNEL = 128 << 10  # bytes that wait for one viewer in the kernel, which would let it be some MiB
RETRY = b"retry: 1000\n\n"
KEEP_ALIVE = b": \n\n"


async def stream(
    request: web.Request, next_event: Callable[[], Awaitable[bytes]], seen: Callable[[], None]
) -> web.StreamResponse:
    """`next_event` may be given up and asked again; `seen` is called now and then while somebody looks."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    response.headers["Cache-Control"] = "no-store"
    event = RETRY
    try:
        await response.prepare(request)
        if request.transport is not None:
            request.transport.set_write_buffer_limits(high=BUFFER)
            request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL)
        while True:
            seen()
            async with asyncio.timeout(PATIENCE):
                await response.write(event)
            try:
                event = await asyncio.wait_for(next_event(), PULSE)
            except TimeoutError:
                event = KEEP_ALIVE
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()
    except Exception:  # the answer has begun: it can be ended, and nothing else
        if request.transport is not None:
            request.transport.abort()
        raise
    return response


# -------------------------------------------------------------------- the hub

RENDER = 0.1  # seconds between two versions
FIRST = 10.0  # seconds for the broker's first answer
FIRST_HOSTS = 2.0  # seconds for the first answers of other hosts, where nothing follows what is sent
MAX_PAGES = 200  # kinds of viewers, where a proxy names them


class Page:
    """As one kind of viewer sees it."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.viewers = 0
        self.version = 0
        self.sections: Sections = {}
        self.change = b""  # from the version before
        self.changed = asyncio.Event()

    def show(self, shown: Sections) -> None:
        before, self.sections = self.sections, shown
        change = {name: news for name, part in shown.items() if (news := difference(before.get(name, {}), part))}
        if change:
            self.version += 1
            self.change = packed(change)
            self.changed.set()
            self.changed = asyncio.Event()

    def whole(self) -> bytes:
        return packed({name: difference({}, part) or {"rows": {}, "order": []} for name, part in self.sections.items()})

    def told(self) -> Told:
        return Told(self)


class Told:
    """One viewer of a page, and which version it was told last."""

    def __init__(self, page: Page) -> None:
        self._page, self._version = page, -1

    async def next(self) -> bytes:
        """What it needs, as soon as there is something."""
        page = self._page
        while page.version == self._version:
            await page.changed.wait()
        one_behind = self._version >= 0 and page.version == self._version + 1
        self._version = page.version
        return page.change if one_behind else page.whole()


def difference(before: Section, after: Section) -> dict[str, object]:
    """Elements that are new or changed, and the order where that did; nothing when all is as it was."""
    news: dict[str, object] = {}
    rows = {key: html for key, html in after.items() if before.get(key) != html}
    if rows:
        news["rows"] = rows
    if list(before) != list(after):
        news |= {"rows": rows, "order": list(after)}
    return news


def packed(change: Mapping[str, object]) -> bytes:
    """One server-sent event. JSON has no line breaks."""
    return b"data: " + json.dumps(change, separators=(",", ":")).encode() + b"\n\n"


class Hub:
    """Lives in the loop; the feed's thread hands pictures in by `hear`."""

    def __init__(self) -> None:
        self.picture = NOTHING
        self._loop = asyncio.get_running_loop()
        self._pages: dict[Viewer, Page] = {}
        self._known = asyncio.Event()
        self._hosts: tuple[Row, ...] = ()
        self._hosts_known = asyncio.Event()
        self._rendered = 0.0
        self._due: asyncio.TimerHandle | None = None
        self.on_picture: Callable[[PagePicture], None] = lambda picture: None

    def hear(self, picture: PagePicture) -> None:
        """From another thread."""
        try:
            self._loop.call_soon_threadsafe(self._take, picture)
        except RuntimeError:
            pass  # the loop has ended, and so does the server

    def hear_hosts(self, rows: tuple[Row, ...]) -> None:
        """From another thread."""
        try:
            self._loop.call_soon_threadsafe(self._take_hosts, rows)
        except RuntimeError:
            pass  # as above

    def _take_hosts(self, rows: tuple[Row, ...]) -> None:
        self._hosts = rows
        if all(map(is_known, rows)):
            self._hosts_known.set()
        else:
            self._hosts_known.clear()
        self._take(self.picture)

    def _take(self, picture: PagePicture) -> None:
        self.picture = picture._replace(hosts=self._hosts)
        if not picture.status and picture.trouble is None:
            self._known.clear()  # nobody looks
            return
        self._known.set()
        self._tell_watcher(picture)
        if self._due is None:
            self._due = self._loop.call_later(max(0.0, self._rendered + RENDER - time.monotonic()), self._render)

    def _tell_watcher(self, picture: PagePicture) -> None:
        try:
            self.on_picture(picture)
        except GpuleaseError as error:  # a disk that is full now; the next picture is tried again
            print(f"gpulease: {error.what}", file=sys.stderr, flush=True)

    def _render(self) -> None:
        self._due, self._rendered = None, time.monotonic()
        for page in self._pages.values():
            self._show(page)

    def _show(self, page: Page) -> None:
        page.show(sections(seen_by(self.picture, page.viewer), page.viewer))

    async def ready(self) -> PagePicture:
        """The picture, once the broker has answered; else what it is, with the trouble."""
        try:
            await asyncio.wait_for(self._known.wait(), FIRST)
        except TimeoutError:
            return self.picture._replace(trouble="The broker does not answer.", time=time.time())
        return self.picture

    async def hosts(self) -> tuple[Row, ...]:
        """Once all of them have answered, or that took too long."""
        if self._hosts:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hosts_known.wait(), FIRST_HOSTS)
        return self._hosts

    def page(self, viewer: Viewer) -> Page:
        """Of this kind of viewer; those at which nobody looks are forgotten when there are many."""
        page = self._pages.get(viewer)
        if page is None:
            if len(self._pages) >= MAX_PAGES:
                self._pages = {key: one for key, one in self._pages.items() if one.viewers}
            page = self._pages[viewer] = Page(viewer)
        if not page.viewers:
            self._show(page)
        return page

    def forget(self, page: Page) -> None:
        """Nobody looks at it any more: it is not rendered."""
        if not page.viewers:
            self._pages.pop(page.viewer, None)
