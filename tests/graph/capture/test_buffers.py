"""The buffers of a capture: which storages they stand for, and what goes into the next segment."""

import pytest

import flowvm as flow
from flowvm.graph.capture.buffers import Border, Buffers, storage_of
from flowvm.graph.logical.nodes import BufferKind
from flowvm.ops.declare.core import _copy


@pytest.fixture
def buffers():
    return Buffers()


def test_views_are_in_the_buffer_of_their_storage(buffers):
    x = flow.zeros(4, 3)
    whole = buffers.input(x, "x", 0)
    row = buffers.place(x[2])
    assert row.buffer is whole.buffer is buffers.of(x[1:])
    assert (whole.offset, row.offset) == (0, 24)
    assert whole.buffer.kind is BufferKind.INPUT
    assert whole.buffer.nbytes == 48
    assert buffers.sources == {whole.buffer: ("input", 0)}
    assert buffers.of(flow.zeros(4, 3)) is None


def test_variables_are_as_long_as_the_furthest_view(buffers):
    w = flow.zeros(8)
    first = buffers.place(w[:2])
    assert first.buffer.kind is BufferKind.VARIABLE
    assert first.buffer.nbytes == 8
    assert buffers.place(w[5:7]).buffer is first.buffer
    assert first.buffer.nbytes == 28
    assert first.buffer.held is w.storage()
    assert buffers.variable(w, "again") is first.buffer  # its name stays
    assert first.buffer.name == ""


def test_results_are_held_and_repeat(buffers):
    y, w = flow.zeros(3), flow.zeros(3)
    made, weight = buffers.fresh(y, y._meta), buffers.variable(w, "w")
    assert buffers.holds(y)
    assert not buffers.holds(w)
    assert not buffers.holds(flow.zeros(3))
    assert buffers.is_repeated(y)
    assert not buffers.is_repeated(w)
    buffers.move(w, 12)
    assert buffers.is_repeated(w)
    assert buffers.place(w).step == 12
    assert buffers.place(y).step == 0
    assert (made.buffer.nbytes, weight.nbytes) == (12, 12)


def test_constants_are_copied_at_their_first_change(buffers):
    c, other = flow.tensor([1.0, 2.0]), flow.zeros(2)
    buffers.constant(c)
    source, copy = buffers.copied(c)
    assert (source.buffer.kind, source.buffer.name) == (BufferKind.VARIABLE, "constant")
    assert copy.buffer.kind is BufferKind.TEMPORARY
    assert buffers.of(c) is copy.buffer
    assert buffers.owned == {storage_of(c)}
    assert buffers.copied(c) is None
    assert buffers.copied(other) is None
    numbers = [b.number for b in buffers.by_storage.values()]
    assert len(set(numbers)) == len(numbers) == 2


def test_a_change_counts_for_all_names_of_the_memory(buffers):
    real = flow.zeros(2)
    a, b, c = flow.zeros(2), flow.zeros(2), flow.zeros(2)  # stand for real, real and another
    for k, own in enumerate((a, b, c)):
        buffers.input(own, f"x{k}", k)
    buffers.stand_for([a, b, c], [real, real.view(2, 1), flow.zeros(2)])
    before = [t._version for t in (a, b, c)]
    buffers.use([c], [a])
    assert [t._version - v for t, v in zip((a, b, c), before, strict=True)] == [0, 1, 0]
    assert buffers.changed == {storage_of(a)}
    assert buffers.used == {storage_of(a), storage_of(c)}


def test_reachable_values_are_those_that_code_can_name(buffers):
    kept, viewed, lost = flow.zeros(2), flow.zeros(2), flow.zeros(2)
    operands = [buffers.fresh(t, t._meta) for t in (kept, viewed, lost)]
    view = viewed[:1]
    del viewed, lost
    assert buffers.reachable() == {operands[0].buffer, operands[1].buffer}
    assert view.shape == (1,)
    del view
    assert buffers.reachable() == {operands[0].buffer}


def test_values_cross_into_the_next_segment(buffers):
    x, w, y, z = (flow.zeros(4, 2) for _ in range(4))
    given = buffers.input(x, "x", 0)
    weight = buffers.variable(w, "w")
    some, gone = buffers.fresh(y, y._meta), buffers.fresh(z, z._meta)
    inputs = buffers.go_on({some.buffer.number}, {some.buffer.number: 3})
    assert [o.buffer.number for o in inputs] == [given.buffer.number, some.buffer.number]
    again, crossed = (o.buffer for o in inputs)
    assert again is not given.buffer
    assert (crossed.kind, crossed.crosses, crossed.nbytes) == (BufferKind.INPUT, True, 24)
    assert inputs[1].meta.shape == (3, 2)
    assert buffers.rows == {storage_of(y): 3}
    assert buffers.sources == {again: ("input", 0), crossed: ("value", some.buffer.number)}
    assert buffers.of(w) is not weight
    assert buffers.of(w).held is w.storage()
    assert buffers.of(z) is gone.buffer  # as it was: nothing crosses
    assert buffers.holds(y)
    assert not buffers.is_repeated(y)
    further = buffers.go_on({crossed.number}, {})
    assert [o.meta.shape for o in further] == [(4, 2), (3, 2)]


def test_operations_behind_a_border_are_seen(buffers):
    x, found, y = (flow.zeros(2) for _ in range(3))
    read, made = buffers.place(x), buffers.fresh(found, found._meta)
    border = Border()

    def in_front(inputs, written=()):
        return border.is_in_front_of(_copy, inputs, written, buffers)

    assert not in_front((found,))
    border.add([read], [made])
    assert in_front((found,))
    assert not in_front((x,))  # both only read it
    assert in_front((y,), (x,))
    assert in_front((y,), (found,))
    border.clear()
    assert not in_front((found,), (x,))
