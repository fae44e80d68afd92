"""Starting and ending the server: its port, its token, its one loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import secrets
import signal
import socket
import stat
from collections.abc import Callable, Sequence

from aiohttp import web

from gpulease.errors import NotPermitted, UsageError, in_words
from gpulease.hosts.watch import HostWatch
from gpulease.web.access import LONGEST, Access
from gpulease.web.broker_feed import BrokerFeed, BrokerLink
from gpulease.web.hub import Hub
from gpulease.web.page_server import OneLine, PageServer
from gpulease.web.picture import PagePicture

PORT = 8420
TRIED = 50  # ports from the first on, where none was asked for
BACKLOG = 1024
FILES = 4096  # open at a time: each viewer is one
SHORTEST = 16  # characters of a token


def listen(address: str, port: int | None) -> socket.socket:
    """At the port that was asked for, or at the first free one from 8420 on."""
    ports = range(PORT, PORT + TRIED) if port is None else [port]
    for one in ports:
        try:
            return _bound(address, one)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(f"The page cannot be at {address} port {one}: {error.strerror}.") from None
    if port is not None:
        raise UsageError(f"Port {port} is in use.", "Give another --port, or none: the first free one is taken.")
    raise UsageError(f"The ports {PORT} to {PORT + TRIED - 1} are all in use.", "Give a free one: --port.")


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def token_of(path: str | None) -> str:
    """A new one; or that of a file of one's own, which is made where there is none."""
    if path is None:
        return secrets.token_hex(16)
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _kept_token(path)
    except OSError as error:
        raise UsageError(f"The token cannot be kept in {path!r}: {error.strerror}.") from None
    token = secrets.token_hex(16)
    with open(made, "w") as file:
        file.write(f"{token}\n")
    return token


def _kept_token(path: str) -> str:
    try:
        with open(path) as file:
            about, text = os.fstat(file.fileno()), file.read(4 * LONGEST).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The token in {path!r} cannot be read: {in_words(error)}.") from None
    if not stat.S_ISREG(about.st_mode) or about.st_mode & 0o077 or about.st_uid != os.geteuid():
        raise NotPermitted(f"Others can read the token in {path!r}, or it is not yours.", f"chmod 600 {path}")
    if not SHORTEST <= len(text) <= LONGEST or not (text.isascii() and text.isalnum()):
        raise UsageError(
            f"The token in {path!r} is not valid.",
            f"Use {SHORTEST} to {LONGEST} letters and digits, or remove the file.",
        )
    return text


def serve(
    listening: socket.socket,
    access: Access,
    begun: Callable[[], None],
    watch: Callable[[PagePicture], None] | None,
    hosts: Sequence[str] = (),
) -> None:
    """Until it is told to end. `watch` hears of each change, though nobody looks; `hosts` are shown too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, FILES)), hard))
    asyncio.run(_serve(listening, access, begun, watch, hosts))


async def _serve(
    listening: socket.socket,
    access: Access,
    begun: Callable[[], None],
    watch: Callable[[PagePicture], None] | None,
    hosts: Sequence[str],
) -> None:
    hub = Hub()
    feed = BrokerFeed(hub.hear, BrokerLink(access.for_others), always=watch is not None)
    hub.on_picture = watch or hub.on_picture
    host_watch = HostWatch(hosts, hub.hear_hosts) if hosts else None
    server = PageServer(access, f"gpulease-{listening.getsockname()[1]}", hub, feed, host_watch)
    runner = web.AppRunner(
        server.application(), access_log=None, logger=_logger(), shutdown_timeout=0.5, handler_cancellation=True
    )
    await runner.setup()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    feed.start()
    if host_watch is not None:
        host_watch.start()
    await web.SockSite(runner, listening).start()
    begun()
    try:
        await ended.wait()
    finally:
        if host_watch is not None:
            host_watch.stop()
        feed.stop()
        await runner.cleanup()


def _logger() -> logging.Logger:
    logger = logging.getLogger("gpulease.web")
    logger.propagate = False
    logger.addHandler(OneLine())
    return logger
