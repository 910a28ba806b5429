"""The HTML report: one file, safe against any name's text, and alive in a browser.

The browser's tests need Chromium; where there is none they are skipped.
"""

from __future__ import annotations

import base64
import json
import re
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.private import frames
from flowvm.profiler import Profile, profile
from flowvm.profiler.export.html import html
from flowvm.profiler.views.summary.verdict import WORDS
from flowvm.vm.machine.words import KIND
from tests.profiler.synthetic import synthetic, three_ranks
from tools import browser
from tools.browser import CHROMIUM


@pytest.fixture(scope="module")
def run() -> Profile:
    side = flow.Stream("html side")
    x = flow.randn(16, 16)
    graph = flow.compile(lambda t: (t @ t).tanh().sum())
    graph(x)
    with profile() as p:
        for _ in range(4):
            with flow.profiler.span("step"):
                with flow.stream(side):
                    y = x * 2
                z = (y @ x).tanh()
                graph(z).item()
    return p


def data_of(page: str) -> Any:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert match
    return json.loads(match.group(1))


def column_of(data: Any, name: str) -> Any:
    """A column, unpacked as the page does it."""
    raw = np.frombuffer(zlib.decompress(base64.b64decode(data["packed"])), np.uint8)
    at = 0
    for other, count in data["counts"].items():
        dtype = np.dtype({"f": "<f8", "i": "<i4", "b": "u1"}[data["kinds"][other]])
        own = raw[at : at + count * dtype.itemsize].reshape(dtype.itemsize, count)
        at += own.size
        if other == name:
            return np.ascontiguousarray(own.T).view(dtype)[:, 0]
    raise KeyError(name)


def test_the_page_holds_the_run_and_nothing_from_outside(run):
    page = html(run)
    data = data_of(page)
    seq = column_of(data, "seq")
    assert seq.tolist() == run.run.seq.tolist()
    assert data["wall"] == run.run.wall
    assert {lane["name"] for lane in data["lanes"]} >= {"critical path", "cpu", "html side"}
    assert data["plans"][0]["launches"] == 4
    assert data["plans"][0]["notes"] == list(run.plan().notes)
    assert data["plans"][0]["registers"] == run.plan().registers
    assert "test_export_html.py" in " ".join(data["sources"])
    page = page.replace("http://www.w3.org/2000/svg", "")  # the name of what pictures are
    assert not re.search(r"""(src|href)\s*=\s*["']|https?://|@import|url\((?!#)""", page)


def test_no_name_becomes_markup():
    run = synthetic(1)
    evil = "</script><img src=x onerror=alert(1)><!--"
    run.names[0], run.lines[0], run.streams[0] = evil, evil, evil
    page = html(Profile(run))
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert data_of(page)["names"][0] == evil


def test_a_large_run_is_written_in_seconds(tmp_path):
    p = Profile(synthetic(3, length=20_000))
    p.observed, p.lanes, p.memory_of()  # what an analysis has anyway
    began = time.perf_counter()
    size = len(html(p))
    assert size < 6_000_000
    assert time.perf_counter() - began < 60  # a hang, not a target: that is benchmarked


def test_what_failed_is_on_the_page(tmp_path):
    table = flow.randn(5, 2)

    def read():
        (table[flow.tensor([7])] * 2).sum().item()

    with pytest.raises(IndexError), profile() as p:
        read()
    data = data_of(html(p))
    assert data["wrong"][0].startswith("left by")
    assert "index_select" in data["wrong"][1]
    status = column_of(data, "status")
    assert status.tolist() == p.run.status.tolist()
    if CHROMIUM:
        failed = int(np.flatnonzero(status)[0])
        page = html(p).replace(
            "</body>",
            "<script type='module'>while (!window.flowvm) await new Promise((done) => "
            f"setTimeout(done, 5)); flowvm.select({failed})</script></body>",
        )
        dom = dumped(page, tmp_path)
        assert "failed     #" in dom
        assert '<div class="critical">failed</div>' in dom


@pytest.mark.skipif(bool(frames.why_not()), reason="threads are looked at more seldom")
def test_whoever_wasted_the_time_is_on_the_page(tmp_path):
    """The page has the terminal's cause of the host's time, its line, and its heat."""
    flow.ones(3)  # its kernel is loaded
    flow.vm.sync()
    with profile() as p:
        flow.ones(3)
        time.sleep(0.05)
        flow.vm.sync()
    page = html(p)
    data, first = data_of(page), p.summary().parts[0]
    assert data["bound"][0][:2] == [WORDS[first.cause][0], first.share]
    assert data["facts"] == [list(fact) for fact in p.summary().facts if fact[1]]
    assert ["mostly", p.summary().mostly] in data["facts"]
    assert data["floor"] == p.summary().fastest
    if first.cause == "asleep":  # the machine had a core for it
        assert data["bound"][0][2] == "host"
    if first.cause == "asleep" and CHROMIUM:
        dom = dumped(page, tmp_path)
        assert "bound by asleep" in dom
        assert "mostly test_export_html.py:" in dom
        asleep = next(row for row in data["tables"]["line"] if row["name"] == first.line)
        assert asleep["host"] > 25_000_000  # the rest: kept from waking
        assert re.search(r'class="heat" style="--heat: ?100%;?">time\.sleep\(0\.05\)', dom)


def test_an_empty_run_has_a_page():
    with profile() as p:
        pass
    assert data_of(html(p))["wall"] >= 1


# --- in a browser ---------------------------------------------------------------------------------

# without a window there are no frames to draw in
FRAMES = """<script>
window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 4);
</script>"""


def acting(what: str = "") -> str:
    """The program that acts in the page in place of a person."""
    name = f"browser_{what}.js" if what else "browser.js"
    return f"<script>{(Path(__file__).parent / name).read_text()}</script>"


def dumped(page: str, folder: Path, name: str = "report.html") -> str:
    """Return the page's document after all scripts have run."""
    file = folder / name
    file.write_text(page.replace("<body>", f"<body>{FRAMES}"), "utf-8")
    out = browser.browse(
        f"file://{file}", folder / "chromium", "--dump-dom", "--allow-file-access-from-files",
        "--virtual-time-budget=5000", "--window-size=1200,800",
    )  # fmt: skip
    assert out
    return out


def browse(page: str, folder: Path, name: str = "report.html", acting: str = acting()) -> Any:
    """Return the findings of `browser.js` in the page."""
    dom = dumped(page.replace("</body>", f"{acting}</body>"), folder, name)
    match = re.search(r'<pre id="result">(.*?)</pre>', dom, re.S)
    assert match, dom[-2000:]
    text = match.group(1)
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(entity, char)
    return json.loads(text)


def framed(page: str, folder: Path, frame: str) -> Any:
    """Return the findings of a page in a frame, which has any size."""
    (folder / "report.html").write_text(page.replace("<body>", f"<body>{FRAMES}"))
    shell = f"""<body>{frame}<script>addEventListener("load", () => setTimeout(() => {{
      const found = document.querySelector("iframe").contentDocument.querySelector("#result");
      const pre = document.createElement("pre"); pre.id = "result";
      pre.textContent = found.textContent; document.body.append(pre);
    }}, 1000));</script></body>"""
    return browse(shell, folder, "shell.html", acting="")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_it_draws_searches_zooms_and_selects(run, tmp_path):
    report = browse(html(run), tmp_path)
    assert report["errors"] == []
    assert report["tabs"] == [
        "verdict",
        "timeline",
        "dag",
        "moment",
        "flame",
        "memory",
        "plan",
        "source",
    ]
    assert report["unnamed"] == []
    assert (
        min(report["timeline"], report["dag"], report["memory"]) > 500
    )  # pixels that are not empty
    assert report["found"] == 4
    assert "4 found" in report["hits"]
    assert not report["hidden"]
    assert "matmul" in report["detail"]
    assert "waited for" in report["detail"]
    assert "gating" in report["detail"]
    assert report["links"] >= 2
    assert run.run.names[run.run.op[report["moved"]]] != "matmul"
    assert report["zoomed"]
    assert report["whole"] == run.run.wall
    assert len(report["clicked"]) > 8
    assert min(report["clicked"]) >= 0  # not the gap beside it, however narrow it is
    assert len(set(report["clicked"]) & set(report["meant"])) > 1
    graph_is_layered(run, report)
    assert report["flame"] > 500
    assert report["whole_flame"] == report["flame_sum"] == run.flame().total > 0
    assert report["flame_inner"] == "matmul"
    assert report["pressed"] == ["false", "true"]
    assert "B" in report["flame_bytes"]
    time_can_be_rewound(run, report)


def graph_is_layered(p: Profile, report: Any) -> None:
    """Check the graph: boxes, layers, the search, keys."""
    run, release = p.run, (KIND.RELEASE, KIND.BARRIER)
    assert report["closed"] < report["open"] == int((~np.isin(run.kind, release)).sum())
    assert report["releases"] == len(run)
    assert report["upwards"] == report["doubled"] == 0
    assert report["shared"] == report["through"] == 0
    assert run.names[run.op[report["went"]]] == "tanh"
    assert report["seen"]
    assert 0 <= report["above"] < report["height"]
    gate = int(p.order.producer[report["went"]])
    assert report["up"] == gate
    assert report["down"] in run.target[run.source == gate]
    assert report["shut"]
    assert report["smaller"]
    assert report["clickedFrame"]


def time_can_be_rewound(p: Profile, report: Any) -> None:
    """Check the time machine: its buttons and its slider."""
    assert report["moments"] == [0, 1, len(p.moments), len(p.moments)]
    assert "has issued everything" in report["end"]
    assert f"{len(p.run)} done".replace(",", "") in report["end"].replace(",", "")
    assert "was received by the scheduler" in report["waits"]
    assert report["playing"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_passes_stand_before_and_after(tmp_path: Path) -> None:
    graph = flow.compile(lambda t: ((t @ t).relu() * 1.0 + 0.0 * t.tanh()).exp())
    x = flow.rand(6, 6)
    for _ in range(3):
        graph(x)
    with profile() as p:
        graph(x).sum().item()
    ((name, record),) = p.run.info["passes"].items()
    report = browse(html(p), tmp_path, acting=acting("plans"))
    assert report["errors"] == []
    assert report["rows"] == len(record["pairs"]) == sum(report["kinds"])
    same, merged, removed, *_ = report["kinds"]
    assert merged > 0
    assert removed == sum(after is None for _, after, *_ in record["pairs"])
    assert report["left"] == report["rows"] - same
    assert sorted(report["marked"]) == ["", "passes changed"]  # its task's row, too
    assert report["task"]["plan"] == name
    assert re.search(r"does the work of \d captured nodes", report["detail"])
    assert p.run.names[p.run.op[report["selected"]]] == name
    assert report["after"] is None
    assert report["moved"]
    assert report["turned"] == "1"
    assert min(report["drawn"]) > 1000
    assert report["falling"] == sorted(report["falling"], reverse=True)
    assert report["rising"] == sorted(report["rising"])
    assert report["sorted"] == "ascending"
    assert report["roofline"] == 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_memory_says_who_holds_it_at_the_sliders_moment(tmp_path: Path) -> None:
    layer = flow.nn.Linear(64, 64)
    with profile() as p:
        for _ in range(3):
            layer(flow.rand(128, 64)).sum().backward()
        flow.vm.sync()
    report = browse(html(p), tmp_path, acting=acting("memory"))
    assert report["errors"] == []
    data, run = p.memory_of(), p.run
    assert "the peak while #" in report["peak"]
    assert f"at the peak, {(data.peak_time - run.begun) / 1e6:.3f}"[:16] in report["peak"]
    assert "at 0.000 ms" in report["begin"]
    assert "paramsLinearbefore the runLinear.weight and 1 more" in report["begin"]
    assert abs(report["time"] - run.wall / 2) < run.wall / 20
    assert report["at_peak"] == data.peak_time - run.begun
    first = p.holdings_of().at(data.peak_time)[0]
    assert f"{first.kind}{first.module}{first.op}" in report["said"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_ranks_are_groups_of_lanes(seed: int, tmp_path: Path) -> None:
    ranks = three_ranks(seed)
    p = ranks.joined
    report = browse(html(p), tmp_path, acting=acting("ranks"))
    assert report["errors"] == []
    assert report["lanes"] == 6
    assert report["row"] == 4  # path, Python, cpu, comm
    tied = p.tied
    assert tied is not None
    assert "all_reduce 0 of all ranks" in report["together"]
    assert f"rank {tied.late[0]} came last" in report["together"]
    assert report["other"] in tied.instruction[0, 1:]
    assert f"rank {tied.late[0]} to come" in report["moment"]
    assert "for whom others wait" in report["moment"]
    assert "3 ranks, bound by" in report["verdict"]
    assert ranks.summary().late[0] in report["verdict"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_phone_has_room_for_every_tab(run: Profile, tmp_path: Path) -> None:
    acting = """<script>addEventListener("load", async () => {
      const out = {};
      for (const { textContent: tab } of document.querySelectorAll("#tabs button")) {
        flowvm.show(tab); await new Promise((done) => setTimeout(done, 30));
        const main = document.querySelector("main").getBoundingClientRect();
        out[tab] = [document.documentElement.scrollWidth, main.width, main.height];
      }
      const pre = document.createElement("pre"); pre.id = "result";
      pre.textContent = JSON.stringify(out); document.body.append(pre);
    });</script>"""
    # a window of Chromium is no narrower than 500 pixels, a frame in it may be
    shell = '<iframe style="width:360px;height:740px;border:0" src="report.html"></iframe>'
    sizes = framed(html(run).replace("<body>", f"<body>{acting}"), tmp_path, shell)
    for tab, (wide, width, height) in sizes.items():
        assert wide <= 360, tab
        assert width >= 355, tab
        assert height > 300, tab


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_first_screen_shows_many_instructions(tmp_path: Path) -> None:
    net = flow.nn.Sequential(
        flow.nn.Linear(4, 8), flow.nn.ReLU(), flow.nn.Linear(8, 8), flow.nn.Tanh(),
        flow.nn.Linear(8, 4),
    )  # fmt: skip
    optimizer = flow.optim.Adam(net.parameters(), lr=0.1)
    side, x, y = flow.Stream("html side"), flow.rand(2, 4), flow.rand(2, 4)
    with profile() as p:
        for _ in range(15):
            with flow.profiler.span("step"):
                with flow.stream(side):
                    z = x * 2
                loss = flow.nn.functional.mse_loss(net(z), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    assert 400 < len(p) < 700
    acting = """<script>addEventListener("load", async () => {
      while (!window.flowvm) await new Promise((done) => setTimeout(done, 5));
      flowvm.show("dag"); await new Promise((done) => setTimeout(done, 60));
      const pre = document.createElement("pre"); pre.id = "result";
      pre.textContent = JSON.stringify(flowvm.inSight()); document.body.append(pre);
    });</script>"""
    shell = '<iframe style="width:1280px;height:800px;border:0" src="report.html"></iframe>'
    assert framed(html(p).replace("</body>", f"{acting}</body>"), tmp_path, shell) >= 40


def test_an_earlier_run_beside_this_one(run: Profile, tmp_path: Path) -> None:
    other = Profile(synthetic(7))
    page = html(run, other)
    data = data_of(page)
    assert data["beside"]["op"] == json.loads(json.dumps(other.diff(run).to_dict()))
    assert list(data["beside"]) == list(data["tables"])
    assert data_of(html(run))["beside"] is None
    with pytest.raises(ArgumentError, match=r"only an \.html page"):
        run.export(tmp_path / "run.json", against=other)
    assert run.export(tmp_path / "two.html", against=other).read_text("utf-8") == page
    if CHROMIUM:
        dom = dumped(page, tmp_path)
        assert ("faster: wall" in dom) or ("slower: wall" in dom)
        assert ">new<" in dom  # an operator that the other run has not
        assert ">gone<" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_hostile_names_and_many_instructions_do_no_harm(tmp_path):
    run = synthetic(5, length=8_000)
    evil = "</script><img src=x onerror=\"document.title='hit'\">"
    run.names[0], run.lines[0] = evil, evil
    report = browse(html(Profile(run)), tmp_path)
    assert report["errors"] == []
    assert report["timeline"] > 500
