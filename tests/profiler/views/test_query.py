"""Queries: expressions have Python's meaning, row by row; nothing else can be said."""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ConfigError
from flowvm.profiler import Profile, profile
from flowvm.profiler.views.query import COLUMNS, query
from tests.profiler.synthetic import synthetic


def rows_of(p):
    """Each instruction's columns as plain values, worked out one by one."""
    run, waits = p.run, p.waits
    on_path = {s.instruction for s in p.observed if s.cause == "run"}
    started, ended = run.time("started"), run.time("ended")
    for i in range(len(run)):
        dep, queue, sched = (int(a[i]) / 1e6 for a in (waits.dep, waits.queue, waits.sched))
        yield {
            "seq": int(run.seq[i]), "op": run.names[run.op[i]], "line": run.lines[run.line[i]],
            "stream": run.streams[run.stream[i]], "run": max(0, int(ended[i] - started[i])) / 1e6,
            "dep": dep, "queue": queue, "sched": sched, "critical": i in on_path,
            "bytes": int(run.nbytes[i]), "issued": (int(run.time("issued")[i]) - run.begun) / 1e6,
        }  # fmt: skip


QUERIES = [
    ("op == 'op1' and wait.dep > 0.0001", lambda r: r["op"] == "op1" and r["dep"] > 0.0001),
    ("'op' in op and not critical", lambda r: not r["critical"]),
    ("0.00001 < run <= 0.0004", lambda r: 0.00001 < r["run"] <= 0.0004),
    ("op in ('op2', 'op3') or stream == 's1'",
     lambda r: r["op"] in ("op2", "op3") or r["stream"] == "s1"),
    ("op not in ['op2'] and line != 'a.py:1'",
     lambda r: r["op"] != "op2" and r["line"] != "a.py:1"),
    ("seq % 3 == 1 and -seq < -110", lambda r: r["seq"] % 3 == 1 and -r["seq"] < -110),
    ("wait * 2 > run + wait.sched / 2 - 1e-9",
     lambda r: (r["dep"] + r["queue"] + r["sched"]) * 2 > r["run"] + r["sched"] / 2 - 1e-9),
    ("issued ** 2 >= bytes // 10 - 6", lambda r: r["issued"] ** 2 >= r["bytes"] // 10 - 6),
    ("critical == True", lambda r: r["critical"]),
    ("'1' in line", lambda r: "1" in r["line"]),
    ("line in 'a.py:1 a.py:3'", lambda r: r["line"] == "a.py:1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "true"), QUERIES, ids=[text for text, _ in QUERIES])
def test_it_is_true_of_what_python_says(text, true):
    for seed in range(3):
        p = Profile(synthetic(seed))
        rows = p.query(text, limit=None)
        expected = {r["seq"] for r in rows_of(p) if true(r)}
        assert {row.seq for row in rows} == expected, f"seed {seed}"
        assert len(rows) == rows.count == len(expected)
        lasted = [row.run for row in rows]
        assert lasted == sorted(lasted, reverse=True)
        assert rows.run == sum(lasted)
        assert rows.wait == sum(row.dep + row.queue + row.sched for row in rows)


def test_columns_are_all_there():
    p = Profile(synthetic(4))
    for name in COLUMNS:
        text = f"{name} == {name}" if name != "critical" else "critical or not critical"
        assert query(p, text).count == len(p)
    with pytest.raises(ArgumentError, match=r"no column 'wait\.other'"):
        p.query("wait.other > 1")


WRONG = [
    ("op = 'a'", 3, "use =="),
    ("foo > 1", 0, "no column 'foo'"),
    ("run > 1 and bar", 12, "no column 'bar'"),
    ("op > 3", 0, "a text with a number"),
    ("__import__('os').system('true')", 0, "no Call"),
    ("seq.__class__", 0, "no column 'seq.__class__'"),
    ("op", 0, "no question"),
    ("run and critical", 0, "neither true nor false"),
    ("critical and seq[0] == 1", 13, "no Subscript"),
    ("run > 1 and", 11, "no expression"),
    ("op in 3", 6, "looks for"),
    ("op in ('a', 3)", 12, "of another kind"),
    ("'a' * 9 == op", 0, "a text, and a number"),
    ("run is 3", 0, "use =="),
    ("(lambda: 1) == 1", 1, "no Lambda"),
    ("1 // 0 == seq", 0, "zero"),
    ("[x for x in op] == 1", 0, "no ListComp"),
    ("", 0, "no expression"),
    ("'\N{GREEK SMALL LETTER MU}' in op and foo", 14, "no column 'foo'"),
]


@pytest.mark.parametrize(("text", "at", "why"), WRONG, ids=[text for text, *_ in WRONG])
def test_what_is_wrong_has_a_caret(text, at, why):
    with pytest.raises(ArgumentError, match=why) as caught:
        Profile(synthetic(0)).query(text)
    shown, caret = str(caught.value).split("\n")[-2:]
    assert shown == f"    {text}"
    assert caret.index("^") - 4 == at


def test_more_wrong_input():
    p = Profile(synthetic(0))
    for wrong in (3, None, b"run > 1"):
        with pytest.raises(ArgumentError, match="an expression as a text"):
            p.query(wrong)
    with pytest.raises(ArgumentError, match="limit=-1"):
        p.query("run > 1", limit=-1)
    with pytest.raises(ArgumentError, match="letters"):
        p.query("(" * 3000)
    with pytest.raises(ArgumentError, match="no expression"):
        p.query("(" * 900 + "seq" + ")" * 900)
    assert p.query("2 ** 2 ** 2 ** 2 ** 2 ** 2 > seq").count == len(p)  # a float, at once


def test_an_empty_run():
    rows = Profile().query("run > 1")
    assert (len(rows), list(rows)) == (0, [])
    assert "0 of 0" in repr(rows)


def test_tasks_are_rows():
    @flow.compile
    def graph(x):
        return (x @ x).exp().sum() + x.sum()

    x = flow.ones(16, 16)
    graph(x)
    with profile() as p:
        graph(x)
    tasks = p.query("kind == 'task'", limit=None)
    assert len(tasks) == len(p.run.tasks.launch) > 1
    launch = p.query("kind == 'launch'")
    assert {row.seq for row in tasks} == {row.seq for row in launch}
    assert p.query("op == 'matmul'").rows[0].name == f"#{launch.rows[0].seq}.0"
    both = p.query("kind in ('task', 'launch')")
    assert both.run == launch.run >= tasks.run, "a launch has the time of its tasks"


def test_it_prints_in_any_width_and_is_json():
    p = Profile(synthetic(2, length=300))
    rows = p.query("run > 0")
    for width in (60, 80, 100, 160):
        lines = rows.screen(width).plain().split("\n")
        assert max(map(len, lines)) <= width
        assert all(f"#{row.seq} " in "\n".join(lines) for row in rows)
    assert "p.query(..., limit=None)" in lines[-1]
    assert json.loads(json.dumps(rows.to_dict()))["count"] == len(rows)


def test_one_instruction():
    seed = random.randrange(1000)
    p = Profile(synthetic(seed))
    run = p.run
    assert len(p.instr) == len(run)
    for one in p.instr:
        i = run.index(one.seq)
        assert one.op == run.names[run.op[i]], f"seed {seed}"
        assert [(o.tensor, o.access) for o in one.operands] == [
            (int(run.tensor[k]), int(run.access[k]) & 3)
            for k in range(run.offsets[i], run.offsets[i + 1])
        ]
        assert {m.seq for m in one.waits_for} == {
            int(run.seq[a]) for a, b in zip(run.source, run.target, strict=True) if b == i
        }
        assert {m.seq for m in one.blocks} == {
            int(run.seq[b]) for a, b in zip(run.source, run.target, strict=True) if a == i
        }
        assert f"#{one.seq} {one.op}" in one.screen(80).plain()
        assert max(map(len, one.screen(80).plain().split("\n"))) <= 80
        json.dumps(one.to_dict())
    with pytest.raises(ArgumentError, match="#7 is not in this run"):
        p.instr[7]
    with pytest.raises(ArgumentError, match="number of an instruction"):
        p.instr["matmul"]
    assert p.instr[np.int64(100)].seq == 100


def test_the_expression_has_carets(tmp_path):
    a, b = flow.ones(8, 8), flow.ones(8, 8)
    with profile() as p:
        c = (a @ b).relu() + b * 2
    assert c.sum().item() == 64 * 10
    for op, expected in (("matmul", "a @ b"), ("relu", "(a @ b).relu()"), ("mul", "b * 2")):
        (row,) = p.query(f"op == {op!r}")
        spot = p.instr[row.seq].spot
        assert spot.text[spot.first : spot.last] == expected
        assert spot.function.endswith("test_the_expression_has_carets")
        line, carets = p.instr[row.seq].screen(100).plain().split("\n")[1:3]
        assert line.strip() == "c = (a @ b).relu() + b * 2"
        assert line[carets.index("^") : len(carets)] == expected
        assert carets in p.why(op).screen(100).plain().split("\n")
    p.save(tmp_path / "r.flowtrace")
    assert repr(flow.profiler.load(tmp_path / "r.flowtrace").why("relu")) == repr(p.why("relu"))
    part = Profile(p.run.part(1, 3, p.run.begun, p.run.ended))
    assert [one.spot for one in part.instr] == [one.spot for one in p.instr][1:3]


def test_all_columns() -> None:
    p = Profile(synthetic(3, 60))
    columns = p.to_columns()
    assert list(columns) == list(COLUMNS)
    assert {len(c) for c in columns.values()} == {60}
    assert columns["seq"].tolist() == p.run.seq.tolist()
    assert columns["wait.dep"].sum() == pytest.approx(p.waits.dep.sum() / 1e6)
    pandas = pytest.importorskip("pandas")
    frame = p.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.groupby("op")["run"].sum().sum() == pytest.approx(columns["run"].sum())


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        Profile(synthetic(3, 5)).to_pandas()
