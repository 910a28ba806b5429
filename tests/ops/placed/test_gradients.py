"""Gradients of global parameters, losses of parts, and traces of calls on global tensors."""

import numpy as np
import pytest
import ranks

import flowvm as flow
from flowvm import sbp
from flowvm.meta.global_meta import GlobalMeta
from flowvm.ops.placed import gradients

torch = pytest.importorskip("torch")
F = flow.nn.functional
SIZE = 2


def layers(rng, where):
    """Weights and biases of three layers of float64, whole on all ranks."""
    shapes = ((5, 4), (5,), (5, 5), (5,), (3, 5), (3,))
    arrays = [rng.standard_normal(s) for s in shapes]
    return arrays, [ranks.whole(a, where, requires_grad=True) for a in arrays]


def backward(parameters, x, target):
    for w, b in zip(parameters[::2], parameters[1::2], strict=True):
        x = flow.tanh(F.linear(x, w, b))
    F.cross_entropy(x, target).backward()


def expected(arrays, x, target):
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    out = torch.tensor(x)
    for w, b in zip(leaves[::2], leaves[1::2], strict=True):
        out = torch.tanh(torch.nn.functional.linear(out, w, b))
    torch.nn.functional.cross_entropy(out, torch.tensor(target)).backward()
    return [leaf.grad.numpy() for leaf in leaves]


@pytest.mark.parametrize(("most", "exchanges"), [(1 << 20, 1), (100, 4)])
def test_sums_over_ranks_share_exchanges(monkeypatch, seed, most, exchanges):
    """Six gradients and a class loss: one exchange counts targets, the rest sum gradients."""
    monkeypatch.setattr(gradients, "MOST", most)

    def on_rank(rank):
        where, rng = flow.placement("cpu", [0, 1]), np.random.default_rng(seed)
        arrays, parameters = layers(rng, where)
        x, target = rng.standard_normal((6, 4)), rng.integers(0, 3, 6)
        inputs = [ranks.whole(v, where).to_global(sbp=sbp.split(0)) for v in (x, target)]
        before = len(ranks.calls())
        for _ in range(2):  # the second time it is added to
            backward(parameters, *inputs)
        names = [name for name, _ in ranks.calls()[before:]]
        assert names == ["all_reduce"] * len(names)
        assert len(names) == 2 * (1 + exchanges)
        assert all(p.grad.sbp == (sbp.broadcast,) for p in parameters)
        for p, right in zip(parameters, expected(arrays, x, target), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), 2 * right, rtol=1e-9, atol=1e-12)

    ranks.run(SIZE, on_rank)


def test_who_listens_to_a_leaf_sees_its_gradient():
    def on_rank(rank):
        where, calls = flow.placement("cpu", [0, 1]), []
        w = ranks.whole(np.ones((2, 2)), where, requires_grad=True)
        b = ranks.whole(np.ones(2), where, requires_grad=True)
        w.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.to_local().numpy()))
        x = ranks.whole(np.arange(8.0).reshape(4, 2), where).to_global(sbp=sbp.split(0))
        F.linear(x, w, b).sum().backward()
        np.testing.assert_array_equal(calls[0], [[12, 16], [12, 16]])
        np.testing.assert_array_equal(b.grad.numpy(), [4, 4])

    ranks.run(SIZE, on_rank)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("shape", "held"),
    [
        ((7, 5), (sbp.split(0), sbp.broadcast)),
        ((6, 5), (sbp.partial_sum, sbp.split(0))),
        ((4, 5, 3), (sbp.split(2), sbp.split(1))),
        ((4, 5), (sbp.split(1), sbp.broadcast)),
    ],
)
def test_a_class_loss_of_parts(seed, shape, held, reduction):
    """Values, gradients and gradients of gradients, some targets ignored."""
    rng = np.random.default_rng(seed)
    x, target = rng.standard_normal(shape), rng.integers(0, 5, (shape[0], *shape[2:]))
    target.flat[1] = -100

    def derived(x, target, grad, cross_entropy):
        loss = cross_entropy(x, target, reduction=reduction)
        (first,) = grad((loss * loss).sum(), x, create_graph=True)
        (second,) = grad((first * first).sum(), x)
        return [loss.detach().numpy(), first.detach().numpy(), second.numpy()]

    theirs = torch.tensor(x, requires_grad=True), torch.tensor(target)
    expected = derived(*theirs, torch.autograd.grad, torch.nn.functional.cross_entropy)

    def on_rank(rank):
        where = flow.placement("cpu", [0, 1])
        mine = ranks.held(x, where, (held[0],)).detach().requires_grad_()
        classes = ranks.held(target, where, (held[1],))
        slopes = derived(mine, classes, flow.autograd.grad, F.cross_entropy)
        F.cross_entropy(mine, classes, reduction=reduction).sum().backward()
        return [*slopes, mine.grad.numpy()]

    leaf = torch.tensor(x, requires_grad=True)
    torch.nn.functional.cross_entropy(
        leaf, torch.tensor(target), reduction=reduction
    ).sum().backward()
    for arrays in ranks.run(SIZE, on_rank):
        for actual, right in zip(arrays, [*expected, leaf.grad.numpy()], strict=True):
            np.testing.assert_allclose(actual, right, rtol=1e-9, atol=1e-11)


def test_calls_on_global_tensors_have_traces():
    """Check that a trace's result is global, held as the call says, and has its Node."""

    def on_rank(rank):
        where = flow.placement("cpu", [0, 1])
        x = ranks.whole(np.arange(12.0).reshape(4, 3), where).to_global(sbp=sbp.split(0))
        w = ranks.whole(np.ones((2, 3)), where, requires_grad=True)
        for _ in range(5):
            out = F.relu(F.linear(x, w))
            assert out._meta.__class__ is GlobalMeta
            assert out.sbp == (sbp.split(0),)
            total = out.sum(0)
            assert total.sbp == (sbp.partial_sum,)
            total.sum().backward()
            np.testing.assert_array_equal(w.grad.numpy(), [[18, 22, 26]] * 2)
            w.grad = None

    ranks.run(SIZE, on_rank)
