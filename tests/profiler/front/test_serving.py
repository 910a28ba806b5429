"""The profiler's page of a running process: its readers, their view, and its end."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, VMError
from flowvm.profiler.front import server as page_server
from flowvm.profiler.front.server import Server, Site
from flowvm.profiler.front.watcher import Watcher
from tests.profiler.export.test_export_html import column_of
from tests.vm.live import until
from tools.browser import CHROMIUM, browse


def work() -> None:
    x = flow.ones(8, 8)
    for _ in range(20):
        with flow.profiler.span("step"):
            (x @ x).tanh().sum().item()


@pytest.fixture
def server() -> Iterator[Server]:
    """Return the server of `flowvm top --web`, for this process."""
    work()
    with Server(Site(Watcher())) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_it_shows_streams_and_the_last_instructions(server: Server) -> None:
    base = f"/{server.token}/"
    assert server.url == f"http://127.0.0.1:{server.server_port}{base}"
    status, headers, body = get(server, base)
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert not re.search(rb"""(src|href)\s*=\s*["']|https?://|@import|url\(""", body)
    status, _, body = get(server, base + "live.json")
    view = json.loads(body)
    assert status == 200
    assert view["pid"] == os.getpid()
    assert "cpu" in [s["name"] for s in view["streams"]]
    status, _, body = get(server, base + "run.html?most=50")
    match = re.search(r'id="data">(.*?)</script>', body.decode(), re.S)
    assert match
    data = json.loads(match.group(1))
    seq = column_of(data, "seq")
    assert 0 < len(seq) <= 50
    assert seq[-1] in flow.profiler.last().run.seq[-5:]  # the newest may not have ended yet
    assert "matmul" in data["names"]


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", "/wrong/live.json", "live.json", "/%2e%2e/", "//"]
)
def test_nobody_looks_without_the_token(server: Server, path: str) -> None:
    status, _, body = get(server, path)
    assert (status, json.loads(body)) == (403, {"error": "not without the token"})


def test_what_else_is_refused(server: Server) -> None:
    base = f"/{server.token}/"
    assert get(server, base, Host="evil.example:80")[0] == 403  # a name that leads here
    assert get(server, base, "POST")[0] == 501
    assert get(server, base + "other")[0] == 404
    assert get(server, base + "run.html?most=many")[0] == 400
    assert get(server, base + "run.html?most=" + "9" * 30)[0] == 400
    status, _, body = get(server, base, "HEAD")
    assert (status, body) == (200, b"")


def test_many_who_ask_are_one_question(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    watcher = server.site.watcher
    look = watcher.look
    monkeypatch.setattr(page_server, "LOOK_S", 1000.0)
    monkeypatch.setattr(watcher, "look", lambda: looks.append(1) or look())
    bodies = {get(server, f"/{server.token}/live.json")[2] for _ in range(5)}
    assert len(looks) == len(bodies) == 1


def test_a_process_that_is_gone_is_said() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    site = Site(Watcher(child.pid))
    status, _, body = site.answer("live.json", {})
    assert status == 503
    assert f"there is no process {child.pid}" in json.loads(body)["error"]
    with pytest.raises(VMError, match="there is no process"):
        page_server.run(Watcher(child.pid), 0, print)


def test_serve_is_another_process_that_ends() -> None:
    work()
    with flow.profiler.serve() as shown:
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{20,})/", shown.url)
        assert match
        connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=30)
        connection.request("GET", f"/{match[2]}/live.json")
        assert json.loads(connection.getresponse().read())["pid"] == os.getpid()
        connection.close()
        assert shown.url in repr(shown)
        process = shown._process
        assert process.pid != os.getpid()
        assert process.poll() is None
        with pytest.raises(VMError, match=f"--port {match[1]}.*in use"):
            flow.profiler.serve(int(match[1]))
    assert process.poll() is not None
    shown.close()  # once more
    assert repr(shown) == "serve, closed"
    for port in (-1, 1 << 16, 1.5, True):
        with pytest.raises(ArgumentError, match="0 \\(any that is free\\) to 65535"):
            flow.profiler.serve(port)  # type: ignore[arg-type]


def test_it_ends_with_the_process_that_is_watched() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    watcher = Watcher()  # shows this process, and is told that it watches the child
    urls: list[str] = []
    thread = threading.Thread(target=lambda: page_server.run(watcher, 0, urls.append))
    watcher.pid = child.pid
    thread.start()
    until(lambda: bool(urls), "the page is served")
    child.communicate()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_both_pages(server: Server, tmp_path: Any) -> None:
    out = browse(server.url, tmp_path / "chromium", "--dump-dom", "--virtual-time-budget=4000")
    assert f"pid {os.getpid()}" in out
    assert "in flight" in out
    assert "undefined" not in out.split("<script>")[0]
    assert re.search(r"[\d,]+ instructions · wall", out)  # what the inner page says
