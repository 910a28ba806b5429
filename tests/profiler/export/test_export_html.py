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
from flowvm.profiler.views.verdict import WORDS
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
    assert not re.search(r"""(src|href)\s*=\s*["']|https?://|@import|url\(""", page)


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
    with profile() as p:
        flow.ones(3)
        time.sleep(0.05)
        flow.vm.sync()
    page = html(p)
    data, first = data_of(page), p.summary().parts[0]
    assert data["bound"][0] == [WORDS[first.cause][0], first.share, "host"]
    assert data["mostly"] == [p.summary().mostly]
    if first.cause == "asleep" and CHROMIUM:  # the machine had a core for it
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


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_it_draws_searches_zooms_and_selects(run, tmp_path):
    found = browse(html(run), tmp_path)
    assert found["errors"] == []
    assert found["tabs"] == [
        "verdict",
        "timeline",
        "dag",
        "moment",
        "flame",
        "memory",
        "plan",
        "source",
    ]
    assert found["unnamed"] == []
    assert min(found["timeline"], found["dag"], found["memory"]) > 500  # pixels that are not empty
    assert found["found"] == 4
    assert "4 found" in found["hits"]
    assert not found["hidden"]
    assert "matmul" in found["detail"]
    assert "waited for" in found["detail"]
    assert "gating" in found["detail"]
    assert found["links"] >= 2
    assert run.run.names[run.run.op[found["moved"]]] != "matmul"
    assert found["zoomed"]
    assert found["whole"] == run.run.wall
    assert len(found["clicked"]) > 8
    assert min(found["clicked"]) >= 0  # not the gap beside it, however narrow it is
    assert len(set(found["clicked"]) & set(found["meant"])) > 1
    graph_is_layered(run, found)
    assert found["flame"] > 500
    assert found["whole_flame"] == found["flame_sum"] == run.flame().total > 0
    assert found["flame_inner"] == "matmul"
    assert found["pressed"] == ["false", "true"]
    assert "B" in found["flame_bytes"]
    time_can_be_rewound(run, found)


def graph_is_layered(p: Profile, found: Any) -> None:
    """Check the graph: boxes, layers, the search, keys."""
    run, release = p.run, (KIND.RELEASE, KIND.BARRIER)
    assert found["closed"] < found["open"] == int((~np.isin(run.kind, release)).sum())
    assert found["releases"] == len(run)
    assert found["upwards"] == found["doubled"] == 0
    assert run.names[run.op[found["went"]]] == "tanh"
    assert found["seen"]
    assert 0 <= found["above"] < found["height"]
    gate = int(p.order.producer[found["went"]])
    assert found["up"] == gate
    assert found["down"] in run.target[run.source == gate]
    assert found["shut"]
    assert found["smaller"]
    assert found["clickedFrame"]


def time_can_be_rewound(p: Profile, found: Any) -> None:
    """Check the time machine: its buttons and its slider."""
    assert found["moments"] == [0, 1, len(p.moments), len(p.moments)]
    assert "has issued everything" in found["end"]
    assert f"{len(p.run)} done".replace(",", "") in found["end"].replace(",", "")
    assert "was received by the scheduler" in found["waits"]
    assert found["playing"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_passes_stand_before_and_after(tmp_path: Path) -> None:
    graph = flow.compile(lambda t: ((t @ t).relu() * 1.0 + 0.0 * t.tanh()).exp())
    x = flow.rand(6, 6)
    for _ in range(3):
        graph(x)
    with profile() as p:
        graph(x).sum().item()
    ((name, told),) = p.run.info["passes"].items()
    found = browse(html(p), tmp_path, acting=acting("plans"))
    assert found["errors"] == []
    assert found["rows"] == len(told["pairs"]) == sum(found["kinds"])
    same, merged, removed, *_ = found["kinds"]
    assert merged > 0
    assert removed == sum(after is None for _, after, *_ in told["pairs"])
    assert found["left"] == found["rows"] - same
    assert sorted(found["marked"]) == ["", "passes changed"]  # its task's row, too
    assert found["task"]["plan"] == name
    assert re.search(r"does the work of \d captured nodes", found["detail"])
    assert p.run.names[p.run.op[found["selected"]]] == name
    assert found["after"] is None
    assert found["moved"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_memory_says_who_holds_it_at_the_sliders_moment(tmp_path: Path) -> None:
    layer = flow.nn.Linear(64, 64)
    with profile() as p:
        for _ in range(3):
            layer(flow.rand(128, 64)).sum().backward()
        flow.vm.sync()
    found = browse(html(p), tmp_path, acting=acting("memory"))
    assert found["errors"] == []
    data, run = p.memory_of(), p.run
    assert "the peak while #" in found["peak"]
    assert f"at the peak, {(data.peak_time - run.begun) / 1e6:.3f}"[:16] in found["peak"]
    assert "at 0.000 ms" in found["begin"]
    assert "paramsLinearbefore the runLinear.weight and 1 more" in found["begin"]
    assert abs(found["time"] - run.wall / 2) < run.wall / 20
    assert found["at_peak"] == data.peak_time - run.begun
    first = p.holdings_of().at(data.peak_time)[0]
    assert f"{first.kind}{first.module}{first.op}" in found["said"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_ranks_are_groups_of_lanes(seed: int, tmp_path: Path) -> None:
    ranks = three_ranks(seed)
    p = ranks.joined
    found = browse(html(p), tmp_path, acting=acting("ranks"))
    assert found["errors"] == []
    assert found["lanes"] == 6
    assert found["row"] == 4  # path, Python, cpu, comm
    tied = p.tied
    assert tied is not None
    assert "all_reduce 0 of all ranks" in found["together"]
    assert f"rank {tied.late[0]} came last" in found["together"]
    assert found["other"] in tied.instruction[0, 1:]
    assert f"rank {tied.late[0]} to come" in found["moment"]
    assert "for whom others wait" in found["moment"]
    assert "3 ranks, bound by" in found["verdict"]
    assert ranks.summary().late[0] in found["verdict"]


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
    (tmp_path / "report.html").write_text(html(run).replace("<body>", f"<body>{FRAMES}{acting}"))
    shell = """<body><iframe style="width:360px;height:740px;border:0" src="report.html"></iframe>
    <script>addEventListener("load", () => setTimeout(() => {
      const found = document.querySelector("iframe").contentDocument.querySelector("#result");
      const pre = document.createElement("pre"); pre.id = "result";
      pre.textContent = found.textContent; document.body.append(pre);
    }, 1000));</script></body>"""
    sizes = browse(shell, tmp_path, "shell.html", acting="")
    for tab, (wide, width, height) in sizes.items():
        assert wide <= 360, tab
        assert width >= 355, tab
        assert height > 300, tab


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
    made = synthetic(5, length=8_000)
    evil = "</script><img src=x onerror=\"document.title='hit'\">"
    made.names[0], made.lines[0] = evil, evil
    found = browse(html(Profile(made)), tmp_path)
    assert found["errors"] == []
    assert found["timeline"] > 500
