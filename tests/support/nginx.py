"""nginx with a server block that a page of the docs prints, on a free port of loopback, and a login service for it."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_connection, create_server
from typing import Any

from support.packages import find
from support.waiting import PATIENCE, wait_until
from support.web_site import Answer, Web

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "web.md"
MAIN = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors; {user}
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {server}
}}
"""


class LoginService:
    """Says who has a session: the one whose name stands in the cookie. What the browser says of itself is repeated."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, _, user = self.headers.get("Cookie", "").partition("session=")
                self.send_response(200 if user else 401)
                said = self.headers.get("X-Auth-Request-User") or user
                if user and user != "nameless":
                    self.send_header("X-Auth-Request-User", said)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Nginx:
    def __init__(self, folder: Path, block: str, web: Web, users: dict[str, str], login: int) -> None:
        """`block`: as printed; paths, ports and certificates are put in their places, and nothing else is changed."""
        with create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "users").write_text("".join(f"{name}:{{PLAIN}}{word}\n" for name, word in users.items()))
        (folder / "token.nginx").write_text(f'proxy_set_header Authorization "Bearer {web.token}";\n')
        server = re.sub(r" *ssl_certificate.*\n", "", block)
        for printed, here in {
            "listen 443 ssl;": f"listen 127.0.0.1:{self.port};",
            "/etc/nginx/gpulease-users": f"{folder}/users",
            "/etc/gpulease/web-token.nginx": f"{folder}/token.nginx",
            "http://127.0.0.1:8420/": f"http://127.0.0.1:{web.port}/",
            "http://127.0.0.1:4180/": f"http://127.0.0.1:{login}/",
        }.items():
            server = server.replace(printed, here)
        assert "/etc/" not in server
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, server=server, user=user))
        words = [str(find("nginx")), "-p", str(folder), "-e", f"{folder}/errors", "-c", f"{folder}/nginx.conf"]
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._process.stderr and self._process.stderr.read()
        try:
            create_connection(("127.0.0.1", self.port), PATIENCE).close()
        except ConnectionRefusedError:
            return False
        return True

    def ask(self, path: str, *headers: tuple[str, str], method: str = "GET", body: bytes = b"") -> Answer:
        """With these headers as they stand, also twice the same."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.putrequest(method, path)
            for name, value in (*headers, ("Content-Length", str(len(body)))):
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)


def printed_block(heading: str) -> str:
    """The server block below this heading of the page."""
    found = re.search(rf"^### {re.escape(heading)}\n.*?```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found, heading
    return found.group(1)
