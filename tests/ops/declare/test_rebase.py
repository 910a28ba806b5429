"""Views and changes in place: places of elements, gradients of strided views, forgotten views."""

import gc

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import AutogradError
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare import rebase

CPU = flow.device("cpu")


def meta(shape, stride=None):
    return TensorMeta.of(shape, flow.float64, CPU, stride)


def test_places_are_numpys():
    for size, stride, offset in (((2, 3), (3, 1), 0), ((3, 2), (1, 3), 4), ((2, 2), (0, 5), 1),
                                 ((3,), (-2,), 9), ((), (), 7), ((0, 2), (2, 1), 0)):  # fmt: skip
        expected = offset + sum(
            (np.indices(size)[d] * s for d, s in enumerate(stride)), np.zeros(size, np.int64)
        )
        np.testing.assert_array_equal(rebase._memory(size, stride, offset), expected.reshape(-1))


@pytest.mark.parametrize(
    ("shape", "stride", "overlaps"),
    [
        ((2, 3), (3, 1), False), ((2, 3), (1, 2), False), ((2, 3), (0, 1), True),
        ((2, 3), (1, 1), True), ((3, 2), (4, 1), False), ((1, 3), (0, 1), False),
    ],
)  # fmt: skip
def test_overlaps(shape, stride, overlaps):
    assert rebase._overlaps(meta(shape, stride)) is overlaps


def elements_by_hand(base, size, stride, offset):
    """For each place of the view the element of the base that lies there, by a table."""
    table = {}
    for k, place in enumerate(rebase._memory(base.shape, base.stride, 0).tolist()):
        table.setdefault(place, k)
    return [table.get(p, -1) for p in rebase._memory(size, stride, offset).tolist()]


def test_elements_of_bases_that_lie_in_any_way(rng):
    bases = [meta((2, 3)), meta((2, 3), (1, 2)), meta((3, 2), (4, 1)), meta((2,), (5,)), meta((0,))]
    for base in bases:
        for _ in range(20):
            size = tuple(rng.integers(0, 4, 2).tolist())
            stride = tuple(rng.integers(0, 5, 2).tolist())
            offset = int(rng.integers(0, 4))
            ours = rebase._elements(base, (size, stride, offset)).tolist()
            assert ours == elements_by_hand(base, size, stride, offset)


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((2, 2), (3, 1), 1),
        ((4, 3), (1, 1), 0),
        ((3,), (0,), 2),
        ((2, 3), (1, 2), 0),
        ((2,), (9,), 4),
    ],
)  # fmt: skip
def test_gradients_of_strided_views_are_sums(rng, size, stride, offset):
    """Each element of the base gets the gradients of all places of the view that show it."""
    x = flow.tensor(rng.standard_normal((2, 3)), requires_grad=True)
    g = rng.standard_normal(size)
    inside = rebase._memory(size, stride, offset) < 6
    if not inside.all():
        wide = flow.zeros(32, dtype=flow.float64)
        wide[:6] = x.detach().reshape(-1)
        x = wide[:6].reshape(2, 3).requires_grad_()
    (flow.as_strided(x, size, stride, offset) * flow.tensor(g)).sum().backward()
    expected = np.zeros(6)
    for place, value in zip(rebase._memory(size, stride, offset), g.reshape(-1), strict=True):
        if place < 6:
            expected[place] += value
    np.testing.assert_allclose(x.grad.numpy().reshape(-1), expected)


def test_changes_through_views_are_changes_of_the_base():
    x = flow.arange(6.0, requires_grad=True)
    y = x * 2
    view, other = y[1:4], y.reshape(2, 3)
    view.mul_(flow.tensor([10.0, 20.0, 30.0]))
    (y.sum() + other[0].sum()).backward()
    # once through y, and in the first row once more
    assert x.grad.tolist() == [4, 40, 80, 60, 2, 2]


def test_changes_that_cannot_be_recorded_are_errors():
    leaf = flow.ones(4, requires_grad=True)
    with pytest.raises(AutogradError, match="a view of a leaf tensor that requires grad"):
        leaf[:2].add_(1)
    base = leaf * 1
    with flow.no_grad():
        hidden = base[:2]
    with pytest.raises(AutogradError, match="this view was made under no_grad"):
        hidden.add_(1)
    wide = (flow.ones(1, requires_grad=True) * 1).expand(3)
    with pytest.raises((AutogradError, RuntimeError)):
        wide[:2].add_(flow.ones(2, requires_grad=True))


def test_views_that_are_gone_are_forgotten():
    base = flow.ones(64, requires_grad=True) * 1
    for k in range(64):
        view = base[k:]
        del view
    gc.collect()
    kept = base[1:]
    assert len(base._kin) <= 40
    assert any(ref() is kept for ref in base._kin)
