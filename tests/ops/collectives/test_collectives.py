"""Collectives as functions: their checks, a group of one rank, and parts whose shape changes."""

from types import SimpleNamespace

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.meta import TensorMeta
from flowvm.ops.collectives import collectives
from flowvm.ranks.world import Group


class Two:
    """A group of two ranks, of which this is the first, for checks that come before an exchange."""

    size, rank, ranks = 2, 0, (0, 1)

    @staticmethod
    def rank_of(number, what):
        return number


@pytest.fixture
def two(monkeypatch):
    """All groups are of two ranks; what would be exchanged is listed."""
    sent = []
    group = SimpleNamespace(of=lambda ranks=None: Two)
    monkeypatch.setattr(collectives, "Group", group)
    monkeypatch.setattr(collectives, "run", lambda op, x, *attrs, at=None: sent.append((x, attrs)))
    return sent


def meta(dtype):
    return TensorMeta.of((2,), dtype)


def test_reductions_have_a_meaning_for_the_dtype():
    for op in collectives.OPS:
        assert collectives.checked_op("f", op, meta(flow.float32)) == op
    with pytest.raises(ArgumentError, match="f: op is one of sum, prod, min, max, mean, got 'avg'"):
        collectives.checked_op("f", "avg", meta(flow.float32))
    with pytest.raises(DTypeError, match="a mean of int64 is not of int64; take the sum"):
        collectives.checked_op("f", "mean", meta(flow.int64))
    assert collectives.checked_op("f", "mean", meta(flow.complex64)) == "mean"
    with pytest.raises(DTypeError, match="complex numbers have no order"):
        collectives.checked_op("f", "max", meta(flow.complex64))


def test_sizes_are_a_number_for_each_rank():
    assert collectives._sizes("f", [2, 0], 2, 2) == (2, 0)
    for wrong in ([2], [1, -1], [1.0, 1]):
        with pytest.raises(ArgumentError, match="f: sizes are 2 numbers of rows"):
            collectives._sizes("f", wrong, 2, None)
    with pytest.raises(ShapeError, match=r"sizes \(2, 1\) are 3 rows, and x has 4"):
        collectives._sizes("f", (2, 1), 2, 4)
    assert collectives._even("f", 6, 3) == (2, 2, 2)
    with pytest.raises(ShapeError, match="5 rows do not divide among 2 ranks"):
        collectives._even("f", 5, 2)


def test_a_rank_alone_has_copies_of_its_own():
    x = flow.arange(6.0).reshape(2, 3)
    copies = [
        collectives.all_reduce(x, "mean"), collectives.all_gather(x, dim=1),
        collectives.reduce_scatter(x, sizes=[2]), collectives.all_to_all(x, split_dim=1),
        collectives.broadcast(x, 0),
    ]  # fmt: skip
    x.zero_()
    for copy in copies:
        assert copy.tolist() == [[0, 1, 2], [3, 4, 5]]
    y = flow.ones(2)
    for same in (collectives.all_reduce_(y), collectives.reduce_(y, 0),
                 collectives.broadcast_(y, 0)):  # fmt: skip
        assert same is y
    collectives.barrier()
    assert y.tolist() == [1, 1]


def test_wrong_calls_name_the_collective():
    x = flow.ones(2)
    number = flow.tensor(1.0)
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        with pytest.raises(ShapeError, match=f"{name}: a 0-d tensor has no dimension"):
            getattr(collectives, name)(number)
    with pytest.raises(ArgumentTypeError, match=r"all_reduce: x must be a Tensor, got list"):
        collectives.all_reduce([1])
    with pytest.raises(ShapeError, match="sizes say 3 rows for this rank, and x has 2"):
        collectives.all_gather(x, sizes=[3])
    with pytest.raises(ArgumentError, match="rank 1 is not in the group"):
        collectives.broadcast(x, 1)
    with pytest.raises(ArgumentError, match="rank src has an x"):
        collectives.broadcast(None, 0, meta=x._meta)
    with pytest.raises(ArgumentTypeError, match="recv: meta is a TensorMeta, got Tensor"):
        collectives.recv(x, 0)
    for call in (lambda: collectives.send(x, 0), lambda: collectives.recv_(x, 0)):
        with pytest.raises(ArgumentError, match="rank 0 is this rank itself"):
            call()
    with pytest.raises(ArgumentError, match="different ranks from 0 to 0"):
        collectives.all_reduce(x, group=[0, 1])


def test_dimensions_are_split_in_front(two, monkeypatch):
    x = flow.arange(12.0).reshape(3, 4)
    monkeypatch.setattr(collectives, "_back", lambda out, dim: (out, dim))
    assert collectives.all_gather(x, dim=-1) == (None, -1)
    ((front, (rows, ranks)),) = two
    np.testing.assert_array_equal(front.numpy(), x.numpy().T)
    assert (rows, ranks) == ((4, 4), (0, 1))
    collectives.reduce_scatter(x, "max", dim=1)
    front, (rows, kind, _) = two[-1]
    assert (tuple(front.shape), rows, kind) == ((4, 3), (2, 2), "max")
    with pytest.raises(ShapeError, match="3 rows do not divide"):
        collectives.reduce_scatter(x)


@pytest.mark.parametrize(("split", "concat"), [(0, 1), (1, 0), (-1, 0)])
def test_parts_are_sent_as_rows_and_reshaped(monkeypatch, split, concat):
    """Two ranks with tensors of their own: what one sends the other, it gets."""
    tensors = [np.arange(24.0).reshape(2, 6, 2) + 100 * k for k in range(2)]
    sizes = {0: (1, 1), 1: (2, 4), 2: (1, 1)}[split % 3]
    ends = np.cumsum(sizes)[:-1]
    parts = [np.split(t, ends, split) for t in tensors]

    def exchanged(x, given, taken, ranks):
        np.testing.assert_array_equal(x.numpy(), np.concatenate([p.ravel() for p in parts[0]]))
        assert given == tuple(p.size for p in parts[0])
        assert taken == tuple(mine[0].size for mine in parts)
        return flow.tensor(np.concatenate([mine[0].ravel() for mine in parts]))

    monkeypatch.setattr(collectives, "_exchanged", exchanged)
    lengths = (tensors[0].shape[concat],) * 2
    out = collectives._resplit(flow.tensor(tensors[0]), split % 3, concat, sizes, lengths, Two)
    np.testing.assert_array_equal(out.numpy(), np.concatenate([p[0] for p in parts], concat))


def test_results_go_back_in_their_place(monkeypatch):
    """A tensor that does not lie in C order is copied there and back, outside of the graph."""

    def doubled(op, x, *attrs, at=None):
        assert x.is_contiguous()
        x.mul_(2)

    monkeypatch.setattr(collectives, "run", doubled)
    whole = flow.arange(6.0).reshape(2, 3)
    version = whole._version
    collectives.changed(None, whole.t())
    assert whole.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert whole._version > version
    leaf = flow.ones(2, requires_grad=True)
    collectives.changed(None, leaf)
    assert leaf.tolist() == [2, 2]
    assert leaf.is_leaf


def test_groups_are_taken_as_they_are():
    assert Group.of(Group.of([0])) is Group.of([0])
