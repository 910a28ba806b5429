"""Losses of classes, the bodies as Python, against formulas; wrong classes stop them."""

import numpy as np
import pytest
from python_launches import python_outputs

import flowvm as flow
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.rows.cpu import class_loss_kernels
from flowvm.ops.rows.parts import class_loss_ops

SHAPES = [(5, 3), (3, 40), (2, 4, 3), (1, 2)]
IGNORED = 1


def metas(*arrays):
    kinds = {"f": flow.float64, "i": flow.int64}
    return tuple(TensorMeta.of(a.shape, kinds[a.dtype.kind]) for a in arrays)


def launch(name, attrs, *arrays):
    return operator_of(getattr(class_loss_ops, name)).kernel.infer(metas(*arrays), attrs)


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def losses(x, target, weight, smoothing):
    """The loss of each target, what each counts, and the slope of each by x."""
    p, n = softmax(x), x.shape[1]
    w = np.ones(n) if weight is None else weight
    wide = w.reshape(-1, *(1,) * (x.ndim - 2))
    hot = np.moveaxis(np.eye(n)[target], -1, 1)
    counts = w[target] * (target != IGNORED)
    logs = np.log(p)
    shares = (1 - smoothing) * hot * wide + smoothing / n * wide
    live = np.expand_dims(target != IGNORED, 1)
    each = -(shares * logs).sum(1) * live[:, 0]
    slope = (shares.sum(1, keepdims=True) * p - shares) * live
    return each, counts, slope


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("weighted", [False, True])
def test_entropies_and_their_slopes(rng, shape, reduction, smoothing, weighted):
    x = rng.standard_normal(shape) * 3
    target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    target.reshape(-1)[0] = 0
    weight = rng.uniform(0.5, 2, shape[1]) if weighted else None
    more = (weight,) if weighted else ()
    attrs = (reduction, IGNORED, smoothing)
    name = "_weighted_entropy" if weighted else "_entropy"
    each, counts, slope = losses(x, target, weight, smoothing)
    expected = {"none": each, "sum": each.sum(), "mean": each.sum() / counts.sum()}[reduction]
    loss, notes = python_outputs(
        launch(name, attrs, x, target, *more), x, target, *more, backwards=False
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-10)
    g = rng.standard_normal(each.shape) if reduction == "none" else np.array(2.0)
    back = launch(f"{name}_backward", attrs, g, x, target, notes, *more)
    (dx,) = python_outputs(back, g, x, target, notes, *more)
    scale = np.expand_dims(g, 1) if reduction == "none" else 2.0
    scale = scale / counts.sum() if reduction == "mean" else scale
    np.testing.assert_allclose(dx, slope * scale, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_likelihoods_and_their_slopes(rng, shape, reduction, weighted):
    x = rng.standard_normal(shape)
    target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    target.reshape(-1)[0] = 0
    w = rng.uniform(0.5, 2, shape[1]) if weighted else np.ones(shape[1])
    counts = w[target] * (target != IGNORED)
    each = -np.take_along_axis(x, np.expand_dims(target, 1), 1)[:, 0] * counts
    expected = {"none": each, "sum": each.sum(), "mean": each.sum() / counts.sum()}[reduction]
    name, more = ("_weighted_nll", (w,)) if weighted else ("_nll", ())
    made = launch(name, (reduction, IGNORED), x, target, *more)
    given = (x, target, *more, *[np.zeros(0)] * (len(made.views) - 4 - len(more)))
    loss, notes = python_outputs(made, *given)
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    assert notes.size >= 1


@pytest.mark.parametrize("wrong", [-1, 3, 99])
def test_classes_outside_stop_the_kernel(rng, wrong):
    x, target = rng.standard_normal((4, 3)), np.array([0, 2, wrong, 0])
    with pytest.raises(RuntimeError) as error:
        python_outputs(launch("_entropy", ("mean", IGNORED, 0.0), x, target), x, target, pieces=1)
    status, details = error.value.args[0]
    assert status == class_loss_kernels.BAD
    assert details[:2] == [wrong, 3]
