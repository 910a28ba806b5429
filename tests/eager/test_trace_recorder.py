"""The steps of a call as they are recorded, in order."""

import flowvm as flow
from flowvm.eager.call_entry import CallEntry
from flowvm.eager.trace_recorder import Call, Pieces, Record, TraceRecorder, View


def test_steps_are_in_order_with_the_tensors_that_were_made():
    x, y, z = flow.ones(2), flow.ones(2), flow.ones(1)
    entry = CallEntry(7, (y._meta,), False, "d")
    recorder = TraceRecorder()
    recorder.record("add", entry, (y,), (x, x), (), (1.0,))
    recorder.view(y, z, 4)
    recorder.named(z, "select", (0,))
    recorder.recorded("add", (x,), y, (), ())
    recorder.record("add_", entry, (x,), (y,), (), (), into=True)
    recorder.pieces("split", x, (z,), (1,))
    assert [type(step) for step in recorder.steps] == [Call, View, Record, Call, Pieces]
    assert (recorder.steps[0].into, recorder.steps[3].into) == (False, True)
    assert all(a is b for a, b in zip(recorder.tensors, [y, z], strict=True))
    assert recorder.steps[1] == View(y, z, 4, "select", (0,)) or recorder.steps[1].out is z
    assert (recorder.steps[1].operator, recorder.steps[1].attrs) == ("select", (0,))
    assert recorder.steps[0].entry.word == 7
    assert not recorder.refused


def test_names_are_of_the_last_view():
    x, z = flow.ones(2), flow.ones(1)
    recorder = TraceRecorder()
    recorder.named(z, "select", ())  # nothing was made
    assert recorder.refused
    recorder = TraceRecorder()
    recorder.view(x, z, 0)
    recorder.named(x, "select", ())
    assert recorder.refused
    assert recorder.steps[0].operator is None


def test_anything_else_refuses_the_steps():
    recorder = TraceRecorder()
    recorder.refuse()
    assert recorder.refused
    assert not recorder.steps
