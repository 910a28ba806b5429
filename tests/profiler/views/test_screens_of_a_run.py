"""Screens of one small run: what each shows, held to what was issued."""

import pytest

import flowvm as flow
from flowvm.profiler.analysis.verifier import verified
from flowvm.profiler.front.widget import Widget
from flowvm.profiler.run.shapes import shapes_of
from flowvm.profiler.views.diff import Diff
from flowvm.profiler.views.instruction import Instr
from flowvm.profiler.views.memory.memory import MemoryView
from flowvm.profiler.views.spots import spot_of
from flowvm.profiler.views.sql import Rows

CALLS = 3


@pytest.fixture(scope="module")
def run():
    x = flow.ones(4, 4)
    flow.relu(x @ x).sum().item()
    with flow.profiler.profile() as p:
        for _ in range(CALLS):
            x = flow.relu(x @ x)
        x.sum().item()
    return p


def test_diff_of_a_run_with_itself_has_no_change(run):
    screen = run.diff(run)
    assert isinstance(screen, Diff)
    assert screen.changes
    for change in screen.changes:
        assert change.count[0] == change.count[1]
        assert change.run[0] == change.run[1]


def test_sql_counts_the_instructions_of_a_run(run):
    rows = run.sql("select count(*) from instructions where op = 'matmul'")
    assert isinstance(rows, Rows)
    assert str(CALLS) in str(rows)


def test_instruction_and_its_spot_are_those_of_a_line_here(run):
    first = int((run.run.op == run.run.names.index("matmul")).argmax())
    instr = run.instr[int(run.run.seq[first])]
    assert isinstance(instr, Instr)
    assert "matmul" in str(instr)
    spot = spot_of(run.run, first)
    assert spot.text[spot.first : spot.last] == "x @ x"


def test_memory_of_a_run_is_that_of_its_tensors(run):
    assert isinstance(run.memory(), MemoryView)


def test_verifier_finds_nothing_wrong_with_a_run(run):
    assert verified(run.run, run.order) == run.verify()


def test_shapes_of_a_run_are_its_operands(run):
    assert [[4, 4], [4, 4]] in shapes_of(run.run).values()


def test_widget_has_the_page_of_a_run(run):
    widget = run.widget(height=500)
    assert isinstance(widget, Widget)
    assert "500" in widget._repr_html_()
