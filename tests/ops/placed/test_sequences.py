"""Attention whose sequence is cut, and losses whose classes are, against one rank."""

import numpy as np
import pytest
import ranks

import flowvm as flow
from flowvm.nn import functional as F

torch = pytest.importorskip("torch")
SPLIT = flow.sbp.split


def cut(array, where, dim):
    return ranks.whole(array, where).to_global(sbp=SPLIT(dim)).detach().requires_grad_()


@pytest.mark.parametrize(
    ("size", "rows", "keys", "causal"), [(3, 7, 7, True), (2, 6, 9, False), (4, 4, 4, True)]
)
def test_attention_goes_around(size, rows, keys, causal, rng):
    q, g = rng.standard_normal((2, 1, 1, rows, 4))
    k, v = rng.standard_normal((2, 1, 1, keys, 4))
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
    out.backward(torch.tensor(g))
    target = [out.detach().numpy(), *(x.grad.numpy() for x in leaves)]

    def on_rank(rank):
        where = flow.placement("cpu", list(range(size)))
        inputs = [cut(x, where, 2) for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*inputs, is_causal=causal)
        out.backward(ranks.whole(g, where))
        sent = {name for name, _ in ranks.calls()}
        return (
            sent,
            [out, *(x.grad for x in inputs)],
            [t.numpy() for t in (out, *(x.grad for x in inputs))],
        )

    for sent, tensors, values in ranks.run(size, on_rank):
        assert sent == {"send", "recv"}, "no rank has all keys"
        assert all(t.sbp == (SPLIT(2),) for t in tensors)
        for actual, expected in zip(values, target, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


def test_the_ring_has_a_second_gradient(rng):
    arrays = rng.standard_normal((3, 1, 1, 4, 2))

    def second(make):
        q, k, v = map(make, arrays)
        out = F.scaled_dot_product_attention(q, k, v)
        (slope,) = flow.autograd.grad(out.square().sum(), q, create_graph=True)
        return flow.autograd.grad(slope.square().sum(), k)[0].numpy()

    expected = second(lambda a: flow.tensor(a, requires_grad=True))

    def on_rank(rank):
        where = flow.placement("cpu", [0, 1])
        return second(lambda a: cut(a, where, 2))

    for result in ranks.run(2, on_rank):
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classes_that_are_cut_stay_so(smoothing, rng):
    x, target = rng.standard_normal((5, 11)), rng.integers(0, 11, 5)
    target[1] = -100
    leaf = torch.tensor(x, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(leaf, torch.tensor(target), label_smoothing=smoothing)
    loss.backward()

    def on_rank(rank):
        where = flow.placement("cpu", [0, 1, 2])
        logits = cut(x, where, 1)
        loss = F.cross_entropy(logits, ranks.whole(target, where), label_smoothing=smoothing)
        loss.backward()
        sent = [name for name, _ in ranks.calls()]
        return sent, loss.item(), logits.grad.sbp, logits.grad.numpy()

    for sent, value, held, grad in ranks.run(3, on_rank):
        assert "all_gather" not in sent
        assert held == (SPLIT(1),)
        np.testing.assert_allclose(value, loss.item(), rtol=1e-12)
        np.testing.assert_allclose(grad, leaf.grad.numpy(), rtol=1e-10, atol=1e-14)
