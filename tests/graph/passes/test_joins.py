"""Joins: a `cat` that reads what was copied for it, and writes zeros that were made for it."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ShapeError
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes import joins
from flowvm.graph.passes.joins import join_copies
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.assembly import NUMBER, Piece
from tests.graph.helpers import captured, names


@pytest.mark.parametrize(
    ("value", "zero"),
    [(0, True), (0.0, True), (False, True), (-0.0, False), (1e-300, False), ("0", False)],
)
def test_zeros_are_positive(value, zero):
    assert joins.is_zero(value) is zero


def joined(function, *inputs):
    """The graph with joins; its results are those of the function, bit by bit."""
    graph = captured(function, *inputs)
    after = join_copies(graph)
    after.check()
    results = interpret(after, inputs)
    expected = function(*inputs)
    for ours, theirs in zip(results, expected if isinstance(expected, tuple) else [expected],
                            strict=True):  # fmt: skip
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    return names(graph), names(after), graph is after


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_copies_are_read_where_they_came_from(dim):
    x, y = flow.rand(2, 3, 4), flow.rand(2, 3, 4)

    def function(x, y):
        return flow.cat([x.transpose(1, 2).contiguous(), y.transpose(1, 2)], dim)

    before, after, _ = joined(function, x, y)
    assert len(before) == 2
    assert after == ["assemble"]


def test_zeros_are_written_by_the_join():
    _, after, _ = joined(
        lambda x: flow.cat([flow.zeros(2, 1), x, flow.zeros(2, 2)], 1), flow.ones(2, 3)
    )
    assert after == ["assemble"]
    before, after, same = joined(lambda x: flow.cat([flow.ones(2, 1), x], 1), flow.ones(2, 3))
    assert same
    assert after == before


def test_stacks_are_joins_of_new_dimensions():
    _, after, _ = joined(
        lambda x: flow.stack([flow.zeros(4, 3), x.t().contiguous()], 1), flow.rand(3, 4)
    )
    assert after == ["assemble"]


def test_copies_that_others_need_stay():
    def function(x):
        copy = x.t().contiguous()
        return flow.cat([copy, copy * 1]), copy

    _, _, same = joined(function, flow.rand(3, 4))
    assert same

    def twice(x):
        copy = x.t().contiguous()
        return flow.cat([copy, copy])

    assert joined(twice, flow.rand(3, 4))[2]


def test_sources_that_change_meanwhile_are_copied():
    def function(x):
        copy = x.t().contiguous()
        changed = x.mul_(2)
        return flow.cat([copy, changed.t()])

    graph = captured(function, flow.rand(3, 4))
    assert names(join_copies(graph)).count("assemble") <= 1
    x = flow.rand(3, 4)
    expected = np.concatenate([x.numpy().T, 2 * x.numpy().T])
    (ours,) = interpret(join_copies(graph), [x])
    np.testing.assert_array_equal(ours.numpy(), expected)


def test_empty_and_complex_parts_are_left_alone():
    assert joined(lambda x: flow.cat([flow.zeros(0, 3), x]), flow.ones(2, 3))[2]
    z = flow.ones(2, 3, dtype=flow.complex64)
    assert joined(lambda z: flow.cat([flow.zeros(1, 3, dtype=flow.complex64), z]), z)[2]


def test_assemblies_check_their_pieces():
    operator = joins.assembly_operator(1)
    assert joins.assembly_operator(1) is operator
    out, x = TensorMeta.of((2, 2), flow.float32), TensorMeta.of((2,), flow.float32)
    row = Piece(1, (2,), (1,), 0, 0, (1,))
    zeros = Piece(NUMBER, (2,), (1,), 2, 0, (0,))
    operator.kernel.infer((x,), (out, (tuple(row), tuple(zeros))))
    with pytest.raises((ArgumentError, ShapeError)):
        operator.kernel.infer((x,), (out, (tuple(row._replace(offset=3)), tuple(zeros))))
