"""Calls that are made of others where operands are split: values and gradients, against NumPy."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import ranks

import flowvm as flow
from flowvm.meta.placements import broadcast, partial_sum, split
from flowvm.ops.placed import rewrites

B, P, S = broadcast, partial_sum, split
SIZE = 2
F = flow.nn.functional


def each_rank(function):
    """The results of all ranks, which are alike: the first."""

    def rank(k):
        return function(flow.placement("cpu", list(range(SIZE))))

    results = ranks.run(SIZE, rank)
    for one, other in itertools.pairwise(results):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    return results[0]


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("shape", "dim", "sbp"),
    [((3, 5), 1, S(1)), ((3, 5), 0, S(0)), ((1, 4), 0, S(0)), ((3, 5), -1, S(0))],
)
def test_softmax_of_rows_that_are_cut(rng, log, shape, dim, sbp):
    x, g = rng.standard_normal((2, *shape))

    def function(where):
        held = ranks.held(x, where, (sbp,)).detach().requires_grad_()
        out = (F.log_softmax if log else F.softmax)(held, dim)
        (out * ranks.held(g, where, (sbp,))).sum().backward()
        return out.detach().numpy(), held.grad.numpy()

    out, grad = each_rank(function)
    p = softmax(x, dim)
    np.testing.assert_allclose(out, np.log(p) if log else p, rtol=1e-9)
    slope = g - p * g.sum(dim, keepdims=True) if log else p * (g - (p * g).sum(dim, keepdims=True))
    np.testing.assert_allclose(grad, slope, rtol=1e-9, atol=1e-12)


def loss_by_hand(x, target, reduction, smoothing, ignore):
    logs = np.log(softmax(x, 1))
    counts = target != ignore
    safe = np.where(counts, target, 0)
    each = -(1 - smoothing) * np.take_along_axis(logs, safe[:, None], 1)[:, 0]
    each = (each - smoothing * logs.mean(1)) * counts
    return {"none": each, "sum": each.sum(), "mean": each.sum() / counts.sum()}[reduction]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("sbp", [S(0), S(1)])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_losses_of_classes(rng, reduction, sbp, smoothing):
    x = rng.standard_normal((5, 4))
    target = np.array([0, 3, 1, 1, 2])

    def function(where):
        held = ranks.held(x, where, (sbp,)).detach().requires_grad_()
        classes = ranks.held(target, where, (B,))
        loss = F.cross_entropy(held, classes, reduction=reduction, ignore_index=1,
                               label_smoothing=smoothing)  # fmt: skip
        loss.sum().backward()
        return loss.detach().numpy(), held.grad.numpy()

    loss, grad = each_rank(function)
    np.testing.assert_allclose(loss, loss_by_hand(x, target, reduction, smoothing, 1), rtol=1e-9)
    counts = (target != 1)[:, None] / (3 if reduction == "mean" else 1)
    shares = (1 - smoothing) * np.eye(4)[target] + smoothing / 4
    np.testing.assert_allclose(grad, (softmax(x, 1) - shares) * counts, rtol=1e-9, atol=1e-12)


def test_batches_are_normalized_by_all_samples(rng):
    x = rng.standard_normal((6, 3, 2))

    def function(where):
        held = ranks.held(x, where, (S(0),))
        mean, var = ranks.held(np.zeros(3), where, (B,)), ranks.held(np.ones(3), where, (B,))
        out = F.batch_norm(held, mean, var, training=True, momentum=0.5)
        return out.numpy(), mean.numpy(), var.numpy()

    out, mean, var = each_rank(function)
    middle, spread = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    np.testing.assert_allclose(out, (x - middle) / np.sqrt(spread + 1e-5), rtol=1e-9)
    np.testing.assert_allclose(mean, 0.5 * x.mean((0, 2)), rtol=1e-9)
    np.testing.assert_allclose(var, 0.5 + 0.5 * x.var((0, 2), ddof=1), rtol=1e-9)


def held(shape, sbp):
    """The least of a global tensor that `_by_parts` looks at."""
    where = SimpleNamespace(shape=(SIZE,))
    return SimpleNamespace(_meta=SimpleNamespace(sbp=(sbp,), shape=shape, placement=where))


def test_samples_that_ranks_may_take_apart():
    def parts(shape, x, classes):
        return rewrites._by_parts(held(shape, x), held(shape[:1], classes))

    assert parts((4, 3), S(0), B) == ((S(0),), (S(0),))
    assert parts((4, 3), B, S(0)) == ((S(0),), (S(0),))
    assert parts((4, 3), S(1), B) is None
    assert parts((1, 3), S(0), B) is None  # a rank would have none
    assert parts((4, 3), B, B) is None
    assert rewrites._summed((S(0), B)) == (P, B)
