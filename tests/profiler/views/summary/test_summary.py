"""The summary screen: its view model, and the text at the widths that terminals have."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import Profile, profile
from flowvm.profiler.grammar import Column, Screen, table
from flowvm.profiler.run.columns import CAUSES
from flowvm.profiler.run.roof import Roofline
from flowvm.profiler.run.run import Samples, Waits
from flowvm.profiler.views.summary.advice import advice
from flowvm.profiler.views.summary.facts import Facts
from flowvm.profiler.views.summary.summary import Steps
from flowvm.profiler.views.summary.verdict import Part
from flowvm.vm.machine.words import KIND, OPERAND
from tests.profiler.synthetic import of_rows, synthetic


@pytest.fixture
def small():
    """Python for 2 ms, a product of 1 ms on one stream, another of 3 ms that is waited for."""
    ms = 1_000_000
    run = of_rows(
        [
            (0, KIND.OP_CALL, 0, 2 * ms, 2 * ms, 3 * ms),
            (1, KIND.OP_CALL, 0, 2 * ms, 3 * ms, 6 * ms),
            (2, KIND.TOUCH, 0, 2 * ms, 6 * ms, 6 * ms),
        ],
        [[(1, OPERAND.MUT)], [(2, OPERAND.MUT), (1, OPERAND.CONST)], [(2, OPERAND.CONST)]],
        [(CAUSES.index("sync"), 2 * ms, 7 * ms)],
        7 * ms,
    )
    run.names = ["relu", "matmul", "wait"]
    run.lines = ["model.py:21", "train.py:44"]
    run.nbytes = np.array([64_000_000, 30_000_000, 0])
    run.flops = np.array([0, 6_000_000, 0])
    run.info["level"] = 2
    return Profile(run)


def test_what_the_screen_says(small):
    s = small.summary()
    assert (s.instructions, s.wall, s.floor, s.level) == (3, 7_000_000, 4_000_000, 2)
    assert [c for c, _ in s.bound] == ["run", "host", "sync"]
    assert [round(share * 7) for _, share in s.bound] == [4, 2, 1]
    assert [(r.name, r.count, r.path) for r in s.rows] == [
        ("matmul", 1, 3_000_000), ("relu", 1, 1_000_000)
    ]  # fmt: skip
    assert s.rows[0].gigabytes == 10.0
    assert s.rows[0].gigaflops == 2.0
    assert s.advice[0].startswith("matmul at train.py:44 is 43 %: in half the time 7.00 → 5.50 ms")
    assert not any("waited for a value" in text for text in s.advice)  # once is not often


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("run", "matmul at train.py:44 is 43 %: in half the time 7.00 → 5.50 ms; p.what_if('mat"),
        ("host", "Python is 25 % of the path: the run was too short for samples"),
        ("import", "train.py:9 f(x) imports modules, 25 % of the path, once a process"),
        ("python", "train.py:9 f(x) is your own Python: without it 7.00 → 5.25 ms; a graph would"),
        ("asleep", "train.py:9 f(x) sleeps or waits for something outside flowvm: without it 7.00"),
        (
            "loader",
            "train.py:9 f(x) is where the DataLoader's next batch comes from: more num_workers",
        ),
        ("capture", "train.py:9 f(x) captured a graph: the same shapes again are replayed"),
        ("flowvm", "issuing ops one by one is 25 % of the path: flow.compile or nn.Graph"),
        ("sched", "the VM took 25 % of the path to start what was ready: larger ops"),
        ("gil", "train.py:9 f(x) had the GIL or a core 25 % of the path: do it before"),
        ("core", "no core was free, 25 % of the path: record again"),
        ("jit", "kernels were compiled: run it once before"),
        ("dep", ""),
    ],
)
def test_advice_is_that_of_the_largest_cause(small, cause, words):
    part = Part(cause, 0.25, "train.py:9", "train.py:9 f(x)", "", 1_750_000, 0.25)
    rows = small.table() if cause == "run" else []
    message = list(advice(Facts(small, "op", [part], rows, None)))[: 1 if rows else None]
    assert [text[: len(words)] for text in message] == ([words] if words else [])


def test_a_graph_is_advised_where_it_is_known_to_help(small):
    small.run.info["level"] = 1
    (text,) = advice(Facts(small, "op", [Part("host", 0.25, "", "", "", 0, 0.25)], [], None))
    assert text.startswith("Python is 25 % of the path: profile(level=2) says whether that is your")


def test_the_text(small):
    assert small.summary().screen(100).plain() == "\n".join(
        [
            "flow.profiler  3 instructions · wall 7.00 ms · recorder level 2, overhead not "
            "measured yet",
            "bound by   RUN 57 %   host 29 %   sync 14 %   [observed path, sums to wall]",
            "mostly     train.py:44 has 43 %: matmul, running",
            "floor      4.00 ms by data alone, if Python took no time (1.8x headroom) · "
            "host on the path 2.00 ms",
            " op      n  run ms  on path       dep ms  sched ms  GB/s  GFLOP/s  hottest line",
            " matmul  1    3.00    42.9%  ██▏   0.000     0.000  10.0      2.0  train.py:44",
            " relu    1    1.00    14.3%  ▊     0.000     0.000  64.0        -  model.py:21",
            " 1 more: p.table() has all",
            "next  1. matmul at train.py:44 is 43 %: in half the time 7.00 → 5.50 ms; "
            "p.what_if('matmul')",
            "      2. Python is 29 % of the path: the run was too short for samples; a longer run "
            "says whether",
            "         that is your own code, a sleep, or flowvm issuing op by op, which "
            "flow.compile and nn.Graph",
            "         do away with",
            '      3. p.summary("line")',
        ]
    )


def test_what_the_recorder_took_is_in_the_first_line(small):
    small.run.info["recording"] = [140_000 / 3, 0.0]
    small.run.marks = [["step", k, k + 1, 1, k, k + 1] for k in range(3)]
    first = [small.summary().screen(width).plain().splitlines()[0] for width in (80, 100, 160)]
    assert first == [
        "flow.profiler  3 instructions · wall 7.00 ms · recorder overhead 2 %",
        "flow.profiler  3 instructions · wall 7.00 ms · 3 steps of 3.00 ms · recorder overhead 2 %",
        "flow.profiler  3 instructions · wall 7.00 ms · 3 steps of 3.00 ms (0.000 to 3.00) · "
        "recorder overhead 2 % at level 2",
    ]


def test_the_code_of_lines(small):
    small.run.info["sources"] = {"model.py:21": "y = x.relu()", "train.py:44": "z = y @ w"}
    text = small.summary().screen(120).plain()
    assert re.search(r"train\.py:44 +z = y @ w", text)
    by_line = small.summary("line").screen(100).plain()
    assert "code" in by_line
    assert by_line.count("train.py:44") == 2  # the verdict's, and the row
    assert "y = x.relu()" in by_line
    assert by_line.endswith("p.timeline()")


def test_one_of_a_thing_is_no_plural(small):
    only = Profile(small.run.part(0, 1, 0, 7))
    assert "flow.profiler  1 instruction · wall" in str(only)


def test_shares_of_the_roofline_are_shown_where_it_is_known(small):
    assert small.summary().roof == ()
    small.run.info["roofline"] = Roofline("a processor", 2, 128.0, 4.0).to_dict()
    s = small.summary()
    assert s.roof == (0.5, 0.5)  # 2 of 4 GFLOP/s; 64 of 128 GB/s
    assert [r.name for r in small.summary("op", "roof").rows] == ["matmul", "relu", "wait"]
    text = s.screen(110).plain()
    assert "roof" in text
    assert " 50 %  train.py:44" in text
    assert [row["roof"] for row in s.to_dict()["rows"]] == [0.5, 0.5]
    small.run.info["roofline"]["gigaflops"] = 100.0
    small.run.info["roofline"]["gigabytes"] = 1000.0
    assert "matmul reaches 2 % of the roofline" in small.summary().advice[0]


def test_steps_are_spans_of_that_name(small):
    assert small.summary().steps is None
    ms = 1_000_000
    small.run.marks = [["step", k * ms, (k + 1) * ms, 0, k, k + 1] for k in (0, 1)]
    small.run.marks += [["step", 6 * ms, 7 * ms, 0, 3, 3], ["other", 0, 7 * ms, 0, 0, 3]]
    # what they issued had run at 3 and 6 ms; the last issued nothing, and was over at 7
    assert small.summary().steps == Steps(3, 3 * ms, ms, 3 * ms)
    assert "3 steps of 3.00 ms (1.00 to 3.00)" in small.summary().screen(100).plain()


def test_as_html_without_a_script(small):
    small.run.lines[0] = "<module>:1"
    html = small._repr_html_()
    assert html.startswith("<pre")
    assert "<script" not in html
    assert "&lt;module&gt;:1" in html
    assert 'font-weight:bold">flow.profiler<' in html


@pytest.mark.parametrize("width", [80, 90, 100, 120, 160])
@pytest.mark.parametrize("unicode", [True, False])
def test_it_fits(seed, width, unicode):
    text = Profile(synthetic(seed)).summary().screen(width).plain(not unicode)
    table = text.split("\n")
    assert max(map(len, table)) <= width
    assert "on path" in text
    assert "run ms" in text
    if not unicode:
        text.encode("ascii")


def test_rich_shows_the_same_and_plain_where_there_is_no_terminal(small):
    plain, colour = io.StringIO(), io.StringIO()
    Console(file=plain, width=100).print(small)
    Console(file=colour, width=100, force_terminal=True).print(small)
    assert plain.getvalue().rstrip("\n") == small.summary().screen(100).plain()
    assert "\x1b[" not in plain.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m", "", colour.getvalue()) == plain.getvalue()


def test_sorting_and_cutting(seed):
    p = Profile(synthetic(seed))
    for sort in ("run", "count", "dep", "gigabytes"):
        values = [getattr(r, sort) for r in p.summary("op", sort).rows]
        assert values == sorted(values, reverse=True)
    names = [r.name for r in p.summary("op", "name").rows]
    assert names == sorted(names)
    with pytest.raises(ArgumentError, match="sort='size'"):
        p.summary(sort="size")
    with pytest.raises(ArgumentError, match="by='size'"):
        p.summary(by="size")


def unhurried(run):
    """The run, as if a machine had given each instruction all that it wanted: what views show is
    what took time, which on a busy machine may be anything.
    """
    n, stages = run.times.shape
    run.times = run.begun + 1000 * (np.arange(n)[:, None] + np.array([0, 0, 0, 0, 0, 1, 1]))
    run.times[:, 0] = run.begun + 1  # all was issued at once
    assert stages == 7
    run.ended = int(run.time("ended").max())
    run.waits, run.samples = Waits(), Samples()
    run.info.pop("load", None)
    return run


@pytest.mark.parametrize("width", [60, 40])
def test_a_file_and_line_is_what_a_narrow_screen_drops_last(width):
    x = flow.ones(8, 8)
    with profile() as p:
        for _ in range(2):
            (x @ x).relu().sum().item()
    p = Profile(unhurried(p.run))
    number = int(p.run.seq[1])
    views = [
        p.summary(), p.summary("line"), p.critical_path(), p.timeline(), p.memory(), p.graph(),
        p.graph(collapse="line"), p.why(number), p.query("op == 'relu'"), p.instr[number],
        p.flame(), p.at(instr=number),
    ]  # fmt: skip
    place = next(line for line in p.run.lines if "test_summary.py" in line).split(" ")[0]
    place = place.rpartition("/")[2][-9:]  # "mary.py:180", its end
    for view in views:
        text = view.screen(width).plain()
        assert max(map(len, text.split("\n"))) <= width, view
        # a gap of the timeline names one where Python was sampled there, a flame graph what was
        assert place in text or view in (views[3], views[10]), text


def test_of_a_place_its_end_is_kept():
    columns = [Column("op", grow=True), Column("line", grow=True, where=True), Column("ms")]
    rows = [["a long operator", "a/long/folder/of/train.py:123 x @ x", "1.00"]]
    for width, text in ((60, "train.py:123 x @ x"), (34, "…train.py:123"), (28, "rain.py:123")):
        lines = Screen(table(columns, rows, width)).plain().split("\n")
        assert max(map(len, lines)) <= width
        assert text in lines[1] or lines[1].endswith(text), (width, lines)
