"""The benchmark measures every op there is, and its expressions run.  Nothing is timed here."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.declare.registry import SAMPLES
from tools.bench import history
from tools.bench.cases import CASES, OPERANDS, WITHOUT, all_cases, covered
from tools.bench.ceilings import bytes_per_second, flops_per_second, hand_over, levels
from tools.bench.heatmap import print_over, print_table, save_svg
from tools.bench.history import Line, Ratio, line_of, load, print_trends, trends
from tools.bench.kernels import Library, Timing, checkout, results, runners, time_case
from tools.bench.limits import MODELS, limit_of, needs_of
from tools.bench.targets import STEPS, TARGETS, stepping

(OURS,) = runners([])


def test_every_declared_op_is_timed_or_has_a_reason():
    timed = covered() | {case.name for case in all_cases()}
    without = sorted({s.name for s in SAMPLES} - timed - {"_"})
    assert not without, f"give these a case in tools/bench/cases.py, or a reason: {without}"


def test_the_lists_name_only_what_exists():
    known = {s.name for s in SAMPLES} | {s.name.replace(" ", "_") for s in SAMPLES}
    named = {name for line in WITHOUT.values() for name in line.split()}
    named |= {op for case in CASES for op in case.ops}
    assert not named - known


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
@pytest.mark.product(4)
def test_each_case_runs_on_ours(case, rng):
    size = max(case.least, 64)
    arrays = [OPERANDS[kind](rng, size) for kind in case.operands]
    function = eval(f"lambda x, y=None, z=None: {case.expr}", dict(OURS.space))
    tensors = [flow.tensor(a) for a in arrays]
    if case.grad:
        for t in tensors:
            if t.dtype.is_floating_point:
                t.requires_grad_(True)
        function(*tensors).sum().backward()
    else:
        function(*tensors)
    flow.vm.sync()


def test_a_row_has_times_and_a_share_of_what_the_machine_can():
    case = next(c for c in CASES if c.name == "matmul, square")
    row = time_case(case, 1 << 12, [OURS], rounds=1)
    assert row.seconds["flowvm"] > 0
    assert row.bytes == 3 * 4 * 4096
    assert 0 < row.share < 20  # no other unit: the ceilings are measured while others run
    assert row.bound in ("bytes", "operations")


def test_the_grid_times_backward_where_there_is_one():
    cases = [next(c for c in CASES if c.name == name) for name in ("tril", "argmax, rows")]
    rows = results(cases, [6], [OURS], rounds=1, grid=True)
    assert [row.name for row in rows] == ["tril", "tril, with backward", "argmax, rows"]


def test_another_checkout_is_timed_in_its_own_process():
    case = next(c for c in CASES if c.name == "softmax, rows")
    other = checkout(str(Path(__file__).parents[2]))
    try:
        row = time_case(case, 64, [OURS, other], rounds=1)
        assert row.seconds.keys() == {"flowvm", "checkout"}
        assert row.ratios["checkout"] > 0
    finally:
        process = other.space["checkout"].process
        process.stdin.close()
        assert process.wait(30) == 0


def test_ceilings_are_of_this_world():
    assert 1e9 < bytes_per_second(1 << 16) < 1e13
    assert 1e9 < flops_per_second() < 1e12


def test_names_are_looked_up_in_one_module_after_another():
    library = Library(np, np.linalg, clamp="clip")
    assert library.exp is np.exp
    assert library.det is np.linalg.det
    assert library.clamp is np.clip
    with pytest.raises(AttributeError):
        _ = library.no_such_name


def test_the_heat_map_as_table_and_picture(tmp_path, capsys):
    rows = [
        Timing("a < b", "elementwise", 1, {"flowvm": 2e-6, "torch": 1e-6}, {"torch": 2.0}),
        Timing("a < b", "elementwise", 64, {"flowvm": 2e-6, "torch": 8e-6}, {"torch": 0.25}),
        Timing("alone", "order", 64, {"flowvm": 2e-3}),
    ]
    print_table(rows, [0, 6])
    text = capsys.readouterr().out
    assert re.search(r"a < b\s+2.00\s+0.25\s+2 us", text)
    assert "2 cells: geometric mean 0.71x of the time of torch" in text
    print_over([*rows, Timing("c", "order", 4096, {}, {"torch": 3.0})], 1.1)
    assert re.search(r"2 of 3 .*\n +3.00  c, 2\^12\n +2.00  a < b, 2\^0\n", capsys.readouterr().out)
    save_svg(rows, [0, 6], str(tmp_path / "map.svg"))
    drawn = ElementTree.parse(tmp_path / "map.svg").getroot()
    texts = ["".join(t.itertext()) for t in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"2.00", "0.25", "2^6"} <= set(texts)


def test_targets_have_names_of_their_own():
    names = [t.name for t in TARGETS] + [name for name, _, _ in STEPS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("name", "make", "reach"), STEPS)
def test_training_steps_learn(name, make, reach):
    step = make(flow)
    for _ in range(2):
        step()
    flow.vm.sync()


def test_a_step_takes_no_less_than_it_needs():
    limit = limit_of("MLP", steps=2)
    counts = {need.op: need.count for need in limit.eager}
    assert counts["_matmul_tn"] == 3  # the gradient of each weight
    # forward 3 products, by the weights 3, by the inputs of all layers but the first
    wide = 2 * 32 * 64 * (64 + 64 + 10)
    operations = 2 * wide + 2 * 32 * 64 * (64 + 10)
    assert limit.eager.sum("operations") == pytest.approx(operations / flops_per_second() * 1e3)
    assert limit.graph.sum("operations") == pytest.approx(operations / flops_per_second() * 1e3)
    assert 0 < limit.eager.sum("needed") < limit.eager.sum("took")
    assert limit.eager[0].over == max(need.over for need in limit.eager)


def test_the_least_time_of_each_instruction_counts():
    step = stepping(MODELS["MLP"])(flow)
    step()
    runs = []
    for _ in range(3):
        with flow.profiler.profile() as profile:
            step()
            flow.vm.sync()
        runs.append(profile.run)
    all_of_them = needs_of(runs, 1)
    alone = [needs_of([run], 1).sum("took") for run in runs]
    assert all_of_them.sum("took") <= min(alone)


def test_a_hand_over_and_the_levels_are_of_this_world():
    assert 1e-9 < hand_over() < 1e-3
    rows = levels()
    assert rows[-1].name == "memory"
    assert all(1e8 < rate < 1e13 for level in rows for rate in (level.read, level.copied))


def _history(*ratios, spread=1.02, kind="Zen 3, AVX2"):
    rows = [Ratio(r / spread, r, r * spread) for r in ratios]
    return [Line("2026-11-27", str(k), kind, {"add / torch": r}) for k, r in enumerate(rows)]


@pytest.mark.parametrize(
    ("ratios", "spread", "verdict"),
    [
        ((0.5, 0.51, 0.49, 0.6), 1.02, "worse"),
        ((0.5, 0.51, 0.49, 0.6), 1.3, ""),  # runs differed by more
        ((0.5, 0.51, 0.49, 0.52), 1.001, ""),  # less than 5 % is never a change
        ((0.5, 0.51, 0.49, 0.4), 1.02, "better"),
        ((0.5,), 1.02, ""),
    ],
)
def test_a_row_is_worse_beyond_noise_alone(ratios, spread, verdict):
    (trend,) = trends(_history(*ratios, spread=spread))
    assert trend.verdict == verdict
    assert trend.ratios == list(ratios)


def test_kinds_of_machines_have_trends_of_their_own():
    lines = [*_history(0.5), *_history(0.9, kind="Sapphire Rapids, AVX-512"), *_history(0.5)]
    assert [(t.kind[0], t.verdict) for t in trends(lines)] == [("S", ""), ("Z", "")]


def test_runs_of_the_bench_become_a_line(tmp_path):
    rows = [{"name": "add", "peer_name": "torch", "ratio": r} for r in (0.5, 0.4, 0.7)]
    rows.append({"name": "an actor", "peer_name": "", "ratio": None})
    line = line_of(map(json.dumps, rows), "2026-11-27", "abc", "Zen 3, AVX2")
    assert line.rows == {"add / torch": (0.4, 0.5, 0.7)}
    path = tmp_path / "history.jsonl"
    path.write_text(line.text() + "\n")
    assert load(path) == [line]
    path.write_text(line.text() + '\n{"date": 3}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl:2 is no line"):
        load(path)
    with pytest.raises(ValueError, match="no row has a ratio"):
        line_of([json.dumps(rows[-1])], "2026-11-27", "abc", "Zen 3, AVX2")


def test_the_history_is_drawn(tmp_path, capsys):
    rows = trends(_history(0.5, 0.51, 0.6))
    print_trends(rows)
    assert re.search(r"add / torch\s+\S+\s+0.60\s+\+19%\s+5%\s+worse", capsys.readouterr().out)
    history.save_svg(rows, str(tmp_path / "history.svg"))
    drawn = ElementTree.parse(tmp_path / "history.svg").getroot()
    (curve,) = drawn.iter("{http://www.w3.org/2000/svg}polyline")
    heights = [float(point.split(",")[1]) for point in curve.attrib["points"].split()]
    assert len(heights) == 3
    assert heights[2] < heights[1] < heights[0]  # slower is higher


def test_the_history_of_the_project_is_read():
    assert all(line.rows for line in load())
