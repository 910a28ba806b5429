"""A notebook's view of modules, graphs, plans and profiles: HTML that is whole and safe."""

from __future__ import annotations

import queue
import threading
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError
from flowvm.profiler import markup
from tools.browser import CHROMIUM, opened


class Seen(HTMLParser):
    """The elements and the text of a page, every element closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inside: list[str] = []
        self.text = ""
        self.open: list[bool] = []  # of each <details>
        self.below: list[tuple[int, str]] = []  # (how many <details> around, text)
        self.feed(page)
        self.close()
        assert not self.inside

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.inside.append(tag)
        if tag == "details":
            self.open.append("open" in dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"
        self.below.append((self.inside.count("details"), data))


class Evil(nn.Module):
    def extra_repr(self) -> str:
        return "<img src=x onerror=alert(1)>"

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x


class Own(nn.Module):
    def __repr__(self) -> str:
        return "a module of <mine>"


def test_a_module_is_a_tree_with_shapes() -> None:
    block = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)]
    model = nn.Sequential(*block, nn.BatchNorm1d(8), nn.LazyLinear(2), Evil(), Own())
    model[3].bias.requires_grad_(False)
    page = Seen(model._repr_html_())
    assert set(page.tags) <= {"div", "details", "summary"}
    assert all(page.open)
    assert page.below[0] == (1, "Sequential()  232 parameters")
    assert (2, "(0-2): 3 x Sequential()  72 parameters") in page.below
    assert (3, "(0): Linear(in_features=8, out_features=8, bias=True)  72 parameters") in page.below
    assert (3, "weight: parameter f32[8,8]") in page.below
    assert (2, "bias: parameter f32[8], no grad") in page.below
    assert (2, "running_var: buffer f32[8]") in page.below
    assert (2, "weight: parameter, its shape is not known yet") in page.below
    assert (1, "(5): Evil(<img src=x onerror=alert(1)>)") in page.below
    assert (1, "(6): a module of <mine>") in page.below


def test_a_large_tree_is_closed_below_its_root() -> None:
    model = nn.Sequential(*[nn.Linear(8, 8 + k % 2) for k in range(60)])
    page = Seen(model._repr_html_())
    assert page.open == [True] + [False] * 60


def test_rows_beyond_the_most_are_counted() -> None:
    page = Seen(markup.tree([markup.row(str(k)) for k in range(markup.MOST + 7)]))
    assert page.below[-1] == (0, "… and 7 more")


def test_a_graph_and_its_plan() -> None:
    class Named(nn.Graph):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def build(self, x: flow.Tensor) -> flow.Tensor:
            y: flow.Tensor = self.model(x)
            return y.sum()

    graph = Named(nn.Sequential(nn.Linear(4, 4), Evil()))
    assert "not captured yet" in Seen(graph._repr_html_()).text
    graph(flow.ones(2, 4))
    page = Seen(graph._repr_html_())
    assert (1, "(MODULE:model.1:Evil(<img src=x onerror=alert(1)>))") not in page.below
    assert (2, "(MODULE:model.1:Evil(<img src=x onerror=alert(1)>))") in page.below
    assert (3, "(PARAMETER:model.0.weight f32[4,4])") in page.below
    assert not [text for _, text in page.below if text.strip() == ")" or text.endswith("): (")]
    plan = Seen(graph.plan._repr_html_())
    tasks = len(graph.plan.tasks)
    assert (2, f"{tasks} tasks") in plan.below
    assert sum(text.startswith("task ") for depth, text in plan.below if depth == 2) == tasks


def test_a_summary_keeps_its_columns() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    summary = flow.summary(model, flow.ones(2, 4))
    page = Seen(summary._repr_html_())
    lines = summary.screen(160).plain().split("\n")
    shown = "".join(text for _, text in page.below)
    assert shown.replace(" ", "") == "".join(lines).replace(" ", "")
    assert len(page.open) == 2


def test_signatures_that_were_chosen() -> None:
    x = flow.ones(4, 4).to_global(flow.placement("cpu", [0]), flow.sbp.broadcast)
    page = Seen(flow.sbp.explain(lambda: (x @ x).relu())._repr_html_())
    assert "each rank receives 0 B in 2 calls" in page.text
    assert "B, B -> B" in page.text


@pytest.fixture(scope="module")
def run() -> flow.profiler.Profile:
    with flow.profiler.profile() as p:
        (flow.ones(8, 8) @ flow.ones(8, 8)).sum().item()
    return p


def test_the_widget_is_the_page_in_a_frame_that_reaches_nothing(
    run: flow.profiler.Profile, tmp_path: Path
) -> None:
    results: list[dict[str, str]] = []

    class Frame(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            results.append({"tag": tag} | dict(attrs))

    Frame().feed(run.widget(height=444)._repr_html_())
    (frame,) = results
    assert frame["tag"] == "iframe"
    assert frame["sandbox"] == "allow-scripts"
    assert "height:444px" in frame["style"]
    run.export(tmp_path / "run.html")
    assert frame["srcdoc"] == (tmp_path / "run.html").read_text()
    assert repr(run.widget()).startswith(f"<widget of {len(run)} instructions")
    for height in (99, "tall"):
        with pytest.raises(ArgumentError, match="height is pixels"):
            run.widget(height)  # type: ignore[arg-type]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_works_in_its_frame(run: flow.profiler.Profile, tmp_path: Path) -> None:
    """A server is told the page's verdict: the virtual time of `--dump-dom` ends before a frame of
    its own process has inflated the columns.
    """
    text = "document.getElementById('verdict').innerText"
    script = f"setInterval(() => {{ if ({text}) parent.postMessage({text}, '*') }}, 50)"
    framed = run.widget()._repr_html_().replace("&lt;/body>", "</body>")
    assert "</body>" in framed
    framed = framed.replace("</body>", f"<script>{script}</script></body>")
    hear = "onmessage = (e) => fetch('/told?' + encodeURIComponent(e.data))"
    page = f"<!doctype html><meta charset=utf-8><script>{hear}</script>{framed}"
    verdicts: queue.Queue[str] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, verdict = self.path.partition("/told?")
            if verdict:
                verdicts.put(unquote(verdict))
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"" if verdict else page.encode())

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    try:
        with opened(url, tmp_path / "p"):
            assert verdicts.get(timeout=200).startswith("bound by ")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("what", ["summary", "timeline", "memory", "graph", "critical_path"])
def test_views_are_text_with_colours(run: flow.profiler.Profile, what: str) -> None:
    page = Seen(getattr(run, what)()._repr_html_())
    assert set(page.tags) <= {"pre", "span"}
