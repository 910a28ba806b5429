"""The profiler's page of a process that runs: `flow.profiler.serve()` and `flowvm top --web`.

Whoever watches serves: a process of its own, at the lowest priority, asks the VM's window as
`flowvm top` does and makes the page.  It listens on the loopback interface alone, answers nobody
who does not know the token in its address, and has nothing that could change anything.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import secrets
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from flowvm.errors import VMError
from flowvm.profiler.export.html import html, live_html
from flowvm.profiler.front.profiles import Profile
from flowvm.profiler.front.watcher import Watcher
from flowvm.vm.machine.words import REC

HOST = "127.0.0.1"
LOOK_S, RUN_S = 0.4, 2.0  # no answer is newer than that, however many pages ask
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    # the page holds its program and its style, and needs nothing from elsewhere
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; connect-src 'self'; img-src data:; frame-src 'self'; base-uri 'none'; "
    "form-action 'none'",
}


class Site:
    """The pages of one process; one answer is made at a time, and shared by all clients."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self._lock = threading.Lock()
        self._bodies: dict[str, tuple[float, bytes]] = {}

    def _fresh(self, key: str, seconds: float, make: Callable[[], str]) -> bytes:
        with self._lock:
            at, body = self._bodies.get(key, (0.0, b""))
            if not at or time.monotonic() - at >= seconds:
                body = make().encode()
                self._bodies[key] = (time.monotonic(), body)
            return body

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, str, bytes]:
        """Status, type and body of a path below the token."""
        page, values = "text/html; charset=utf-8", "application/json"
        try:
            if path == "":
                return 200, page, live_html().encode()
            if path == "live.json":
                return 200, values, self._fresh("live", LOOK_S, self._live)
            if path == "run.html":
                most_text = query.get("most", ["4000"])[-1]
                if not most_text.isdecimal() or len(most_text) > 9:
                    return 400, values, b'{"error": "most is how many instructions"}'
                most = min(max(int(most_text), 1), REC.LENGTH)
                return 200, page, self._fresh(f"run {most}", RUN_S, lambda: self._run(most))
        except VMError as error:
            return 503, values, json.dumps({"error": str(error)}).encode()
        except Exception as error:  # of flowvm's own: whoever looks is told, and may look again
            text = "".join(traceback.format_exception(error)[-3:])
            return 500, values, json.dumps({"error": text}).encode()
        return 404, values, b'{"error": "there is no such page"}'

    def _live(self) -> str:
        return json.dumps(dataclasses.asdict(self.watcher.look()))

    def _run(self, most: int) -> str:
        self._bodies = {k: v for k, v in self._bodies.items() if not k.startswith("run")}
        return html(Profile(self.watcher.ring(most)))


class Server(ThreadingHTTPServer):
    """A Site at an address that nobody can guess."""

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.site = site
        self.token = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up is no error; all others have an answer of their own."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "flowvm", ""
    timeout = 10  # for whoever connects and says nothing

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        address = urlsplit(self.path)
        token, _, path = address.path.removeprefix("/").partition("/")
        # by a name of its own a page from elsewhere could reach this port, too
        names = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        known = hmac.compare_digest(token.encode(), self.server.token.encode())
        if not known or self.headers.get("Host") not in names:
            status, kind, body = 403, "application/json", b'{"error": "not without the token"}'
        else:
            status, kind, body = self.server.site.answer(path, parse_qs(address.query))
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind), ("Content-Length", str(len(body))), *HEADERS.items(),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads a log of requests."""


def run(watcher: Watcher, port: int, on_address: Callable[[str], None]) -> int:
    """Serve until the watched process ends; return an exit code.  `on_address` gets the URL."""
    watcher.look()  # VMError now, and not for whoever opens the page
    try:
        server = Server(Site(watcher), port)
    except (OSError, OverflowError) as error:
        raise VMError(f"--port {port}: {error}") from None
    with server:
        threading.Thread(target=server.serve_forever, name="flowvm-web", daemon=True).start()
        on_address(server.url)
        while _lives(watcher.pid):
            time.sleep(0.5)
        server.shutdown()
    return 0


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return state[:1] != ["Z"]  # ended, and nobody has asked how
