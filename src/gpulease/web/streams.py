"""Server-sent events to one viewer, until it leaves or does not read.

What is sent waits in no queue of ours: the next event is asked for when the last was taken. Who takes nothing for a
while is dropped; a browser comes back by itself and gets everything anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from aiohttp import web

from gpulease.web.hub import Page

MOST_VIEWERS = 1000
PULSE = 15.0  # seconds after which a line is sent that says nothing, so that a dead connection is noticed
PATIENCE = 20.0  # seconds for a viewer to take what was sent
BUFFER = 32 << 10  # bytes that wait for one viewer beside those of the kernel
RETRY = b"retry: 1000\n\n"


async def page_events(page: Page) -> AsyncGenerator[bytes, None]:
    version, event = page.version, page.whole()
    while True:
        yield event
        version, event = await page.next(version)


async def stream(
    request: web.Request, events: AsyncGenerator[bytes, None], seen: Callable[[], None]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    response.headers["Cache-Control"] = "no-store"
    await response.prepare(request)
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=BUFFER)
    try:
        await _send(request, response, RETRY)
        await _send_all(request, response, events, seen)
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()
    finally:
        await events.aclose()
    return response


async def _send_all(
    request: web.Request, response: web.StreamResponse, events: AsyncGenerator[bytes, None], seen: Callable[[], None]
) -> None:
    waiting = asyncio.ensure_future(anext(events))
    try:
        while True:
            seen()
            done, _ = await asyncio.wait({waiting}, timeout=PULSE)
            event = waiting.result() if done else b": \n\n"
            await _send(request, response, event)
            if done:
                waiting = asyncio.ensure_future(anext(events))
    finally:
        waiting.cancel()


async def _send(request: web.Request, response: web.StreamResponse, event: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        await response.write(event)
