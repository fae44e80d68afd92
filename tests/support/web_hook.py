"""A web server on this machine that hears notices: it answers with a code, or never."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebHook:
    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"
        self.heard: list[Any] = []  # bodies, as they came
        self.paths: list[str] = []
        self.code = 200
        self.hang = threading.Event()  # set: nobody is answered
        self.over = threading.Event()

    def url(self, path: str) -> str:
        return f"http://{self.host}/{path}"

    @property
    def notices(self) -> int:
        return sum(body["count"] for body in self.heard)

    def events(self) -> list[tuple[str, int | None]]:
        return [(one["event"], one.get("job")) for body in self.heard for one in body["notices"]]


@contextmanager
def web_hook() -> Iterator[WebHook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.paths.append(self.path)
            hook.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if hook.hang.is_set():
                hook.over.wait()
                return
            self.send_response(hook.code)
            if 300 <= hook.code < 400:
                self.send_header("Location", hook.url("elsewhere"))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hook = WebHook(server.server_address[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hook
    finally:
        hook.over.set()
        server.shutdown()
        server.server_close()
