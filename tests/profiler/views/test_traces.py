"""The screen of a recorded trace: lanes on the left, a row an instruction."""

import flowvm as flow
from flowvm.profiler.views.traces import trace_screen


def test_rows_of_a_trace_have_their_instruction():
    trace = flow.vm.trace(lambda x: (x + 1) * x, flow.ones(3))
    for width in (50, 100, 160):
        screen = trace_screen(trace, width)
        lines = ["".join(text for text, _ in line) for line in screen.lines]
        assert max(map(len, lines)) <= width
        assert len(lines) == 1 + len(trace.rows())
        assert "op" in lines[0].split()
        assert "add" in lines[1]
        assert "mul" in lines[2]


def test_lanes_stand_in_front_of_all_cells():
    trace = flow.vm.trace(lambda x: (x + 1).exp() * x, flow.ones(3))
    lanes = trace.lanes()
    screen = trace_screen(trace, 120)
    for lane, line in zip(lanes, screen.lines[1:], strict=True):
        art = "".join(text for text, _ in lane)
        assert "".join(text for text, _ in line).startswith(art)


def test_an_empty_trace_has_its_head():
    screen = trace_screen(flow.vm.trace(lambda: None), 80)
    assert len(screen.lines) == 1
