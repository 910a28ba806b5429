"""Scaled dot product attention: masks, errors, and the references of its kernel."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.ops.sequences.parts.attention_ops import composed, fused, takes
from flowvm.ops.sequences.parts.masks import additive

attention = flow.nn.functional.scaled_dot_product_attention


def test_a_query_that_sees_no_key_gets_zeros_and_no_gradient(rng):
    q, k, v = (flow.tensor(rng.standard_normal((1, 2, 3, 4))).requires_grad_(True)
               for _ in range(3))  # fmt: skip
    mask = flow.tensor([[True, False, True], [False] * 3, [True] * 3])
    for inputs in (mask, flow.where(mask, 0.0, -float("inf")).double()):
        out = attention(q, k, v, inputs)
        assert not out[:, :, 1].detach().numpy().any()
        grads = flow.autograd.grad(out.sum(), (q, k, v))
        assert all(np.isfinite(g.numpy()).all() for g in grads)
        assert not grads[0][:, :, 1].numpy().any()


def test_dropout_drops_weights():
    flow.manual_seed(0)
    q, v = flow.zeros(1, 1, 50, 4), flow.ones(1, 1, 200, 4)
    out = attention(q, flow.zeros(1, 1, 200, 4), v, dropout_p=0.5)
    assert 0.8 < out.mean().item() < 1.2
    assert out.std().item() > 0.01
    assert not attention(q, flow.zeros(1, 1, 200, 4), v, dropout_p=1.0).numpy().any()


def test_errors():
    x = flow.ones(2, 3, 4, 5)
    with pytest.raises(DTypeError, match="one floating point"):
        attention(x, x, x.double())
    with pytest.raises(DTypeError, match="one floating point"):
        attention(*[x.long()] * 3)
    with pytest.raises(ShapeError, match="2 dimensions"):
        attention(*[x[0, 0, 0]] * 3)
    with pytest.raises(ShapeError, match="as many features"):
        attention(x, x[..., :3], x)
    with pytest.raises(ShapeError, match="as many features"):
        attention(x, x[:, :, :2], x)
    with pytest.raises(ArgumentError, match="probability"):
        attention(x, x, x, dropout_p=1.5)
    with pytest.raises(DTypeError, match="bools"):
        attention(x, x, x, flow.ones(4, 4, dtype=flow.int32))
    with pytest.raises(ShapeError, match="broadcast"):
        attention(x, x, x, flow.ones(7, 4, 4))
    with pytest.raises(ShapeError, match="queries by keys"):
        attention(x, x, x, flow.ones(4))
    with pytest.raises(ArgumentTypeError, match="Tensor"):
        attention(x, x, x, [[True]])
    with pytest.raises(ShapeError, match="do not divide"):
        attention(x, x[:, :2], x[:, :2], enable_gqa=True)
    with pytest.raises(ShapeError, match="heads"):
        attention(*[x[0, 0]] * 3, enable_gqa=True)


LAYOUTS = {
    "long": lambda x: (x(2, 3, 110, 20), x(2, 3, 210, 20), x(2, 3, 210, 37)),
    "square": lambda x: (x(1, 2, 200, 16),) * 3,
    "heads behind places": lambda x: tuple(
        x(2, 60, 3 * 2 * 8).reshape(2, 60, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind()
    ),
    "features apart": lambda x: (x(2, 2, 8, 50).mT, x(2, 2, 8, 70).mT, x(2, 2, 9, 70).mT),
    "batch broadcast": lambda x: (x(4, 1, 2, 13, 8), x(3, 2, 17, 8), x(17, 8)),
}
MASKS = {
    "none": lambda x, shape: None,
    "bool": lambda x, shape: x(*shape[-2:]) > 0,
    "by keys": lambda x, shape: x(*shape[:-2], 1, shape[-1]) > 0,
    "floats": lambda x, shape: x(1, *shape[-2:]),
    "a number a row": lambda x, shape: x(shape[-2], 1),
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_kernel_computes_the_composition(rng, layout, is_causal):
    """Every mask, both ways, and the gradient of the gradient."""

    def drawn(*shape):
        return flow.tensor(rng.standard_normal(shape))

    q, k, v = (t.detach().requires_grad_(True) for t in LAYOUTS[layout](drawn))
    around = np.broadcast_shapes(*(tuple(t.shape[:-2]) for t in (q, k, v)))
    for name, make in MASKS.items():
        mask = make(drawn, (*around, q.shape[-2], k.shape[-2]))
        added = None if mask is None else additive(mask, q._meta, k._meta)
        assert takes(q, k, v, added)
        results = []
        for way in (fused, composed):
            out = way(q, k, v, added, is_causal, 0.3)
            loss = (out * out.detach().cos()).sum()
            results.append([out, *flow.autograd.grad(loss, (q, k, v))])
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(
                a.detach().numpy(), b.detach().numpy(), 1e-9, 1e-9, err_msg=name
            )


def test_single_precision_and_reduced_floats(rng):
    exact = [flow.tensor(rng.standard_normal((2, 2, 130, 16))) for _ in range(3)]
    expected = attention(*exact, is_causal=True).numpy()
    for dtype, limit in ((flow.float32, 1e-5), (flow.bfloat16, 0.05), (flow.float16, 0.01)):
        out = attention(*[t.to(dtype) for t in exact], is_causal=True)
        assert out.dtype is dtype
        np.testing.assert_allclose(out.to(flow.float64).numpy(), expected, limit, limit)


def test_the_same_bits_with_1_2_and_3_workers(rng):
    arrays = [rng.standard_normal((2, 5, 150, 24)).astype(np.float32) for _ in range(3)]
    results = []
    for workers in (1, 2, 3):
        with flow.config(workers=workers):
            tensors = [flow.tensor(a).requires_grad_(True) for a in arrays]
            out = attention(*tensors, is_causal=True)
            (out * out.detach()).sum().backward()
            results.append(
                [t.detach().numpy().tobytes() for t in (out, *(t.grad for t in tensors))]
            )
    assert results[0] == results[1] == results[2]


def test_scores_that_are_large_do_not_overflow():
    x = flow.full((1, 1, 100, 4), 1e4).requires_grad_(True)
    out = attention(x, x, x)
    np.testing.assert_allclose(out.detach().numpy(), 1e4, 1e-5)
    assert np.isfinite(flow.autograd.grad(out.sum(), x)[0].numpy()).all()


def test_nan_comes_out():
    x = flow.randn(1, 1, 100, 4)
    x[0, 0, 50] = float("nan")
    result = attention(x, x, x, is_causal=True).isnan().any(-1)[0, 0].tolist()
    assert all(result[50:])
    assert not any(result[:36])  # tiles of rows that see no place behind
    assert attention(x, x, x).isnan().all()


def test_causal_biases():
    bias = flow.nn.attention.bias
    q, k = flow.randn(2, 3, 4, 8), flow.randn(2, 3, 6, 8)
    first = attention(q, k, k, bias.causal_upper_left(4, 6))
    assert np.array_equal(first.numpy(), attention(q, k, k, is_causal=True).numpy())
    last = bias.causal_lower_right(4, 6)
    assert last.materialize().int().sum(-1).tolist() == [3, 4, 5, 6]
    out = attention(q, k, k, last)
    np.testing.assert_allclose(out[:, :, :1], attention(q[:, :, :1], *[k[:, :, :3]] * 2), 1e-5)
    with pytest.raises(ShapeError, match="other sizes"):
        attention(q, q, q, last)
    with pytest.raises(ArgumentError, match="two sizes"):
        bias.causal_upper_left(4)


def test_the_way_can_be_chosen():
    """The composition, by the shape of the graph that a gradient goes back through."""
    backends, kernel = flow.nn.attention.SDPBackend, flow.nn.attention.sdpa_kernel
    q = flow.randn(1, 1, 4, 8).requires_grad_(True)
    for chosen, node in (
        (backends.MATH, "MatmulBackward"),
        ([backends.MATH, backends.FLASH_ATTENTION], "AttentionBackward"),
        (backends.EFFICIENT_ATTENTION, "AttentionBackward"),
    ):
        with kernel(chosen):
            assert attention(q, q, q).grad_fn.name() == node
    with kernel([backends.MATH, backends.FLASH_ATTENTION], set_priority=True):
        assert attention(q, q, q).grad_fn.name() == "MatmulBackward"
    with pytest.raises(ArgumentTypeError, match="SDPBackends"):
        kernel("math")
