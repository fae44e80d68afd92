"""Server-sent events to one viewer, until it leaves or does not read.

What is sent waits in no queue of ours: the next event is asked for when the last was taken. Who takes nothing for a
while is dropped; a browser comes back by itself and gets everything anew.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

MOST_VIEWERS = 1000
PULSE = 15.0  # seconds after which a line is sent that says nothing, so that a dead connection is noticed
PATIENCE = 20.0  # seconds for a viewer to take what was sent
BUFFER = 32 << 10  # bytes that wait for one viewer here
KERNEL = 128 << 10  # bytes that wait for one viewer in the kernel, which would let it be some MiB
RETRY = b"retry: 1000\n\n"
NOTHING = b": \n\n"


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
                event = NOTHING
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()
    except Exception:  # the answer has begun: it can be ended, and nothing else
        if request.transport is not None:
            request.transport.abort()
        raise
    return response
