"""Strides of results are PyTorch's, for operands that lie in memory in every way."""

from __future__ import annotations

import math

import pytest

import flowvm as flow
import flowvm.nn.functional as ours

torch = pytest.importorskip("torch")
theirs = torch.nn.functional


def numbers(lib, *shape):
    return lib.arange(1, 1 + math.prod(shape)).reshape(shape).to(lib.float32)


LAYOUTS = {
    "dense": lambda n: n(2, 3, 4),
    "transposed": lambda n: n(3, 2).t(),
    "permuted": lambda n: n(2, 3, 4).permute(2, 0, 1),
    "inner swapped": lambda n: n(2, 3, 4).permute(0, 2, 1),
    "reversed": lambda n: n(2, 3, 4).permute(2, 1, 0),
    "expanded": lambda n: n(1, 3).expand(4, 3),
    "expanded inside": lambda n: n(3, 1).expand(3, 4),
    "with gaps": lambda n: n(4, 6)[:, ::2],
    "rows": lambda n: n(4, 6)[1:3],
    "transposed with gaps": lambda n: n(6, 4)[::2].t(),
    "permuted with gaps": lambda n: n(2, 3, 8).permute(2, 0, 1)[::2],
    "expanded and permuted": lambda n: n(2, 1, 3).expand(2, 4, 3).permute(2, 0, 1),
    "channels last": lambda n: n(2, 4, 5, 3).permute(0, 3, 1, 2),
    "channels last 3d": lambda n: n(2, 3, 4, 5, 2).permute(0, 4, 1, 2, 3),
    "one row of channels last": lambda n: n(2, 1, 4, 3).permute(0, 3, 1, 2),
    "diagonal": lambda n: n(3, 4).diagonal(),
    "number": lambda n: n(1)[0],
}


def channels(lib, x):
    return {4: lib.channels_last, 5: lib.channels_last_3d}.get(x.ndim, lib.contiguous_format)


def rowwise(x, call):
    return call() if x.ndim else x.exp()


def gradient(x, function):
    leaf = x.clone().requires_grad_()
    function(leaf).backward()
    return leaf.grad


def ones(lib, x):
    return lib.ones(tuple(x.shape))


CALLS = {
    "clone": lambda L, F, x: x.clone(),
    "clone, C order": lambda L, F, x: x.clone(memory_format=L.contiguous_format),
    "clone, channels last": lambda L, F, x: x.clone(memory_format=channels(L, x)),
    "empty_like": lambda L, F, x: L.empty_like(x),
    "empty_like, channels last": lambda L, F, x: L.empty_like(x, memory_format=channels(L, x)),
    "zeros_like": lambda L, F, x: L.zeros_like(x, dtype=L.int64),
    "zeros_like, C order": lambda L, F, x: L.zeros_like(x, memory_format=L.contiguous_format),
    "ones_like": lambda L, F, x: L.ones_like(x),
    "full_like": lambda L, F, x: L.full_like(x, 2.0),
    "rand_like": lambda L, F, x: L.rand_like(x),
    "randn_like": lambda L, F, x: L.randn_like(x),
    "randint_like": lambda L, F, x: L.randint_like(x, 3),
    "another dtype": lambda L, F, x: x.to(L.float64),
    "integers": lambda L, F, x: x.int(),
    "a copy": lambda L, F, x: x.to(x.dtype, copy=True),
    "to, C order": lambda L, F, x: x.to(L.float64, memory_format=L.contiguous_format),
    "to, channels last": lambda L, F, x: x.to(memory_format=channels(L, x)),
    "contiguous": lambda L, F, x: x.contiguous(),
    "contiguous, channels last": lambda L, F, x: x.contiguous(memory_format=channels(L, x)),
    "with a number": lambda L, F, x: x * 2,
    "with a 0-d tensor": lambda L, F, x: x + L.tensor(2.0),
    "unary": lambda L, F, x: x.exp(),
    "compared": lambda L, F, x: x > 3,
    "with itself": lambda L, F, x: x + x,
    "with C order": lambda L, F, x: x + ones(L, x),
    "behind C order": lambda L, F, x: ones(L, x) + x,
    "with a row": lambda L, F, x: x + L.ones(x.shape[-1] if x.ndim else 1),
    "with a column": lambda L, F, x: x[..., :1] * x if x.ndim else x * x,
    "where": lambda L, F, x: L.where(x > 1, x, -x),
    "three": lambda L, F, x: L.addcmul(x, x, ones(L, x)),
    "activation": lambda L, F, x: F.gelu(x),
    "new_zeros": lambda L, F, x: x.new_zeros(x.shape),
    "softmax": lambda L, F, x: x.softmax(-1),
    "sum": lambda L, F, x: x.sum(-1, keepdim=True),
    "flip": lambda L, F, x: x.flip(tuple(range(x.ndim))),
    "rot90": lambda L, F, x: L.rot90(x, 1, (0, x.ndim - 1)) if x.ndim > 1 else x.exp(),
    "sort": lambda L, F, x: L.sort(x).values,
    "sort, first dimension": lambda L, F, x: L.sort(x, 0).values,
    "argsort": lambda L, F, x: x.argsort(0),
    "cumsum": lambda L, F, x: x.cumsum(0),
    "dropout": lambda L, F, x: F.dropout(x, 1.0),
    "random slopes": lambda L, F, x: F.rrelu(x, 0.5, 0.5, True),
    "logsigmoid": lambda L, F, x: F.logsigmoid(x),
    "masked_fill": lambda L, F, x: x.masked_fill(x > 2, 0.0),
    "masked_scatter": lambda L, F, x: x.masked_scatter(x > 2, L.ones(x.numel())),
    "scatter": lambda L, F, x: x.scatter(0, L.zeros_like(x, dtype=L.int64), 5.0),
    "scatter_add": lambda L, F, x: x.scatter_add(0, L.zeros_like(x, dtype=L.int64), x),
    "index_add": lambda L, F, x: rowwise(x, lambda: x.index_add(0, L.tensor([0]), x[:1])),
    "index_copy": lambda L, F, x: rowwise(x, lambda: x.index_copy(0, L.tensor([0]), x[:1])),
    "index_fill": lambda L, F, x: rowwise(x, lambda: x.index_fill(0, L.tensor([0]), 2.0)),
    "renorm": lambda L, F, x: x.renorm(2, 0, 1.0) if x.ndim > 1 else x.exp(),
    "frexp": lambda L, F, x: L.frexp(x)[0],
    "exponent": lambda L, F, x: L.frexp(x)[1],
    "complex": lambda L, F, x: L.complex(x, x).real,
    "out": lambda L, F, x: L.exp(x, out=L.empty(0)),
    "out, sorted": lambda L, F, x: L.sort(x, out=(L.empty(0), L.empty(0, dtype=L.int64)))[0],
    "gradient": lambda L, F, x: gradient(x, lambda y: (y * y).sum()),
    "gradient of a sum": lambda L, F, x: gradient(x, lambda y: y.sum()),
    "gradient of rows": lambda L, F, x: gradient(x, lambda y: ((y * 0.01).softmax(-1) * y).sum()),
}

# Not here, since PyTorch's results lie as its own kernels write them, and these in C order:
# - channels last: conv2d, batch_norm, group_norm, rms_norm, pooling, interpolate, cat, stack, pad,
#   roll.  Kernels of planes, and of tensors put together of pieces, have one order.
# - x[index], nonzero, argwhere, repeat_interleave: the order of PyTorch's loops over places.
# - select_scatter and its kin of a view with gaps, whose gaps PyTorch copies, too.


def strides(x):
    """Strides that matter: of dimensions of size 1 nobody steps."""
    return [s for s, d in zip(x.stride(), x.shape, strict=True) if d != 1]


@pytest.mark.parametrize("call", CALLS)
def test_results_lie_as_in_torch(call):
    for name, layout in LAYOUTS.items():
        x = layout(lambda *shape: numbers(flow, *shape))
        y = layout(lambda *shape: numbers(torch, *shape))
        mine, other = CALLS[call](flow, ours, x), CALLS[call](torch, theirs, y)
        assert strides(mine) == strides(other), name
        if "empty" not in call and "rand" not in call:
            torch.testing.assert_close(
                torch.tensor(mine.tolist()), other.float(), check_dtype=False, equal_nan=True
            )


@pytest.mark.parametrize("dtype", ["bool", "int32", "bfloat16", "complex64", "float8_e5m2"])
def test_copies_of_every_kind_of_dtype(dtype):
    x = (flow.arange(6).reshape(2, 3) % 3).to(getattr(flow, dtype)).t()
    for copied in (x.clone(), x.to(getattr(flow, dtype), copy=True)):
        assert copied.stride() == (1, 3)
        assert copied.tolist() == x.tolist()
        assert copied.data_ptr() != x.data_ptr()


def test_a_copy_is_no_view_and_has_a_gradient():
    w = flow.ones(3, 2, requires_grad=True)
    y = w.t().clone()
    assert y.stride() == (1, 2)
    assert y._base is None
    (y * flow.arange(6.0).reshape(2, 3)).sum().backward()
    assert w.grad.tolist() == [[0, 3], [1, 4], [2, 5]]
    z = flow.zeros_like(w.t(), requires_grad=True)
    assert z.is_leaf
    assert z._base is None
    assert flow.empty_like(w.t()).copy_(w.t()).tolist() == [[1, 1, 1]] * 2


def test_random_numbers_stand_where_they_stood():
    for call in (flow.rand_like, flow.randn_like, lambda x: flow.randint_like(x, 9)):
        flow.manual_seed(1)
        dense = call(flow.ones(4, 3))
        flow.manual_seed(1)
        assert flow.equal(call(flow.ones(3, 4).t()), dense)


def test_memory_formats_that_do_not_fit():
    for call in (
        lambda x, f: x.clone(memory_format=f),
        lambda x, f: x.contiguous(memory_format=f),
        lambda x, f: x.to(memory_format=f),
        lambda x, f: flow.empty_like(x, memory_format=f),
    ):
        with pytest.raises(RuntimeError, match="4 dimensions"):
            call(flow.ones(2, 3), flow.channels_last)
        with pytest.raises(RuntimeError, match="5 dimensions"):
            call(flow.ones(2, 3), flow.channels_last_3d)


def test_a_copy_in_a_graph_lies_as_eager_ones_do():
    def function(x):
        return x.t().clone(), flow.zeros_like(x.t()), x.t().double(), x.t() + 1

    x = flow.arange(6.0).reshape(2, 3)
    eager, replayed = function(x), flow.compile(function)(x)
    for a, b in zip(eager, replayed, strict=True):
        assert a.stride() == b.stride() == (1, 3)
        assert flow.equal(a, b)


QUERIES = {
    "C order": lambda L, *shape: L.ones(*shape),
    "rows outside heads": lambda L, b, h, n, e: L.ones(b, n, h, e).transpose(1, 2),
    "features outside": lambda L, b, h, n, e: L.ones(b, h, e, n).transpose(2, 3),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": True}])
def test_attention_lies_as_its_queries_do(query, options):
    results = []
    for lib, functions in ((flow, ours), (torch, theirs)):
        q, k = QUERIES[query](lib, 2, 3, 5, 8), QUERIES[query](lib, 2, 3, 5, 8)
        values = dict(options)
        if "attn_mask" in options:
            values["attn_mask"] = lib.zeros(5, 5)
        results.append(functions.scaled_dot_product_attention(q, k, k, **values))
    assert strides(results[0]) == strides(results[1])
    torch.testing.assert_close(torch.tensor(results[0].tolist()), results[1])
