"""Convolution and pooling against their definitions, in the sizes that take another path."""

import ctypes
import itertools

import numpy as np
import pytest

import flowvm as flow
from flowvm.compiler import jit
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.launch import View
from flowvm.meta.dtype import dtype_named
from flowvm.ops.declare.cpu.body_kernel import Operand, body_kernel, body_layout
from flowvm.ops.declare.cpu.vector_code import lanes_of
from flowvm.ops.declare.cpu.walk import OPERANDS_AT
from flowvm.ops.planes.conv import _conv_reference, _transposed_reference
from flowvm.ops.planes.cpu.conv_plan import Shape, shifts_of, strips_of, taps_of, tiles_of
from flowvm.ops.planes.cpu.conv_tile import (
    ADDED,
    ALONE,
    PLACED,
    StripSize,
    convolve_strip,
    strip_rows,
)
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.parts import conv_ops, pool_ops
from flowvm.ops.planes.pooling import reference as _pooled


def tensor(array):
    return flow.from_numpy(np.array(array))


def leaf(array):
    return tensor(array).requires_grad_()


CASES = {
    "blocks of places": ((2, 8, 40, 50), (4, 8, 3, 3), {"padding": 1}),
    "blocks within a line": ((1, 40, 1, 700), (2, 40, 1, 9), {}),
    "many small samples": ((40, 2, 4, 4), (3, 2, 3, 3), {"padding": 1}),
    "one by one": ((3, 4, 5, 5), (6, 4, 1, 1), {}),
    "one by one, strided": ((3, 4, 5, 5), (6, 4, 1, 1), {"stride": 2}),
    "depthwise": ((2, 6, 5, 5), (12, 1, 3, 3), {"groups": 6, "padding": 1}),
    "many channels": ((2, 40, 5, 5), (3, 40, 2, 2), {}),
    "one channel, many outputs": ((3, 1, 6, 6), (40, 1, 3, 3), {}),
    "far apart": (
        (2, 3, 9, 9),
        (2, 3, 2, 3),
        {"dilation": (3, 2), "stride": (2, 3), "padding": (2, 3)},
    ),
    "padding only": ((1, 1, 1, 1), (1, 1, 3, 3), {"padding": 2}),
    "same, even kernel": ((1, 2, 5, 6), (2, 2, 4, 2), {"padding": "same"}),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "_"))
def test_forward_and_gradients(rng, case):
    size, kernel, options = CASES[case]
    x, w, b = (rng.standard_normal(s) for s in (size, kernel, kernel[:1]))
    leaves = [leaf(v) for v in (x, w, b)]
    out = flow.conv2d(*leaves, **options)
    np.testing.assert_allclose(
        out.numpy(), _conv_reference(x, w, b, **options), rtol=1e-8, atol=1e-8
    )
    # The gradient of a linear function: <conv(dx), g> = <dx, gradient>, and so for the weight.
    g = rng.standard_normal(tuple(out.shape))
    out.backward(tensor(g))
    for i, like in enumerate((x, w)):
        other = rng.standard_normal(like.shape)
        moved = _conv_reference(*(other if j == i else v for j, v in enumerate((x, w))), **options)
        np.testing.assert_allclose(
            (moved * g).sum(), (other * leaves[i].grad.numpy()).sum(), rtol=1e-7
        )
    np.testing.assert_allclose(leaves[2].grad.numpy(), g.sum((0, 2, 3)), rtol=1e-8, atol=1e-8)


def test_results_do_not_depend_on_threads(rng):
    x, w = (rng.standard_normal(s).astype("float32") for s in ((8, 6, 20, 20), (7, 6, 3, 3)))

    def step():
        leaves = leaf(x), leaf(w)
        out = flow.conv2d(*leaves, padding=1)
        out.sum().backward()
        return [t.numpy() for t in (out, leaves[0].grad, leaves[1].grad)]

    shared = step()
    with flow.vm.sequential():
        alone = step()
    for s, a in zip(shared, alone, strict=True):
        np.testing.assert_array_equal(s, a)


def test_without_a_batch(rng):
    x, w = rng.standard_normal((2, 5, 5)), rng.standard_normal((3, 2, 3, 3))
    out = flow.conv2d(tensor(x), tensor(w))
    assert tuple(out.shape) == (3, 3, 3)
    np.testing.assert_allclose(out.numpy(), _conv_reference(x, w), rtol=1e-10)


def test_transposed_undoes_the_shape(rng):
    x = rng.standard_normal((2, 4, 7, 6))
    w = rng.standard_normal((4, 3, 3, 3))
    options = {"stride": 3, "padding": 1, "output_padding": 2}
    out = flow.conv_transpose2d(tensor(x), tensor(w), **options)
    np.testing.assert_allclose(out.numpy(), _transposed_reference(x, w, **options), rtol=1e-9)
    back = flow.conv2d(out, flow.ones(1, 3, 3, 3, dtype=flow.float64), stride=3, padding=1)
    assert tuple(back.shape) == (2, 1, 7, 6)


def test_a_transposed_result_may_have_size_0():
    weight = flow.ones(4, 3, 1, 1, requires_grad=True)
    for shape in ((2, 4, 2, 3), (0, 4, 2, 2)):
        x = flow.ones(*shape, requires_grad=True)
        y = flow.nn.functional.conv_transpose2d(x, weight, padding=1)
        assert y.shape == (shape[0], 3, 0, shape[3] - 2)
        y.sum().backward()
        assert x.grad.shape == shape
    assert not weight.grad.any()
    with pytest.raises(ShapeError, match="would have size -1"):
        flow.nn.functional.conv_transpose2d(flow.ones(2, 4, 1, 1), weight, padding=1)


def test_no_samples():
    w = leaf(np.ones((2, 3, 2, 2)))
    flow.conv2d(flow.ones(0, 3, 4, 4, dtype=flow.float64), w).sum().backward()
    assert (w.grad.numpy() == 0).all()


def test_conv_refuses():
    x, w = flow.ones(1, 3, 4, 4), flow.ones(2, 3, 3, 3)
    with pytest.raises(ShapeError, match="for 3 input channels"):
        flow.conv2d(flow.ones(1, 2, 4, 4), w)
    with pytest.raises(ShapeError, match="groups=2"):
        flow.conv2d(x, w, groups=2)
    with pytest.raises(ShapeError, match="larger than the padded input"):
        flow.conv2d(flow.ones(1, 3, 2, 2), w)
    with pytest.raises(ShapeError, match="2 output channels"):
        flow.conv2d(x, w, flow.ones(3))
    with pytest.raises(ShapeError, match="dimensions"):
        flow.conv2d(flow.ones(3), w)
    with pytest.raises(DTypeError, match="float64"):
        flow.conv2d(x.to(flow.float64), w)
    with pytest.raises(ArgumentError, match="same"):
        flow.conv2d(x, w, padding="full")
    with pytest.raises(ArgumentError, match="at least 1"):
        flow.conv2d(x, w, dilation=0)


# --- random geometries -------------------------------------------------------------------------


def _random_case(rng):
    """Shapes and options of a convolution in one to three dimensions."""
    n = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 1, 2, 3]))
    kernel = rng.integers(1, 4, n)
    stride, dilation, padding = rng.integers(1, 4, n), rng.integers(1, 3, n), rng.integers(0, 3, n)
    most = (40, 12, 6)[n - 1]
    size = dilation * (kernel - 1) + 1 + rng.integers(0, most, n)
    channels, outputs = groups * rng.integers(1, 6), groups * rng.integers(1, 11)
    names = ("stride", "padding", "dilation")
    options = dict(
        zip(names, (tuple(map(int, v)) for v in (stride, padding, dilation)), strict=True)
    )
    shapes = (int(rng.integers(1, 4)), int(channels), *map(int, size)), (
        int(outputs), int(channels) // groups, *map(int, kernel),
    )  # fmt: skip
    return n, *shapes, {**options, "groups": groups}


def _agree_with_definition(rng, n, size, kernel, options, dtype):
    """Check forward against the definition, and the gradients as of a linear function."""
    x, w, b = (rng.standard_normal(s).astype(dtype) for s in (size, kernel, kernel[:1]))
    leaves = [leaf(v) for v in (x, w, b)]
    out = getattr(flow, f"conv{n}d")(*leaves, **options)
    tolerance = {"rtol": 1e-8, "atol": 1e-8} if dtype == "float64" else {"rtol": 1e-3, "atol": 1e-3}
    exact = _conv_reference(*(v.astype("float64") for v in (x, w, b)), **options)
    np.testing.assert_allclose(out.numpy(), exact, **tolerance)
    g = rng.standard_normal(tuple(out.shape)).astype(dtype)
    out.backward(tensor(g))
    for i, like in enumerate((x, w)):
        other = rng.standard_normal(like.shape)
        moved = _conv_reference(*(other if j == i else v for j, v in enumerate((x, w))), **options)
        slope = (other * leaves[i].grad.numpy()).sum()
        scale = np.abs(other).mean() * np.abs(leaves[i].grad.numpy()).sum()
        assert abs((moved * g).sum() - slope) <= (1e-12 if dtype == "float64" else 1e-5) * scale
    places = (0, *range(2, n + 2))
    np.testing.assert_allclose(leaves[2].grad.numpy(), g.astype("f8").sum(places), **tolerance)


@pytest.mark.parametrize("seed", range(24))
def test_random_geometries(seed):
    rng = np.random.default_rng(seed)
    _agree_with_definition(rng, *_random_case(rng), ("float32", "float64")[seed % 2])


@pytest.mark.parametrize("seed", range(12))
def test_random_geometries_row_by_row(seed, monkeypatch):
    """Small planes take the path of planes that do not fit into an arena."""
    monkeypatch.setattr(conv_ops, "MOST", 0)
    rng = np.random.default_rng(1000 + seed)
    n, size, kernel, options = _random_case(rng)
    size = (size[0], size[1], *(s + 1 for s in size[2:]))  # no entry of the other tests
    _agree_with_definition(rng, n, size, kernel, options, "float64")


@pytest.mark.parametrize("seed", range(12))
def test_random_transposed(seed):
    rng = np.random.default_rng(seed)
    n, size, kernel, options = _random_case(rng)
    del options["padding"]
    kernel = (size[1], kernel[0] // options["groups"], *kernel[2:])
    x, w = rng.standard_normal(size), rng.standard_normal(kernel)
    b = rng.standard_normal(kernel[1] * options["groups"])
    out = getattr(flow, f"conv_transpose{n}d")(tensor(x), tensor(w), tensor(b), **options)
    np.testing.assert_allclose(out.numpy(), _transposed_reference(x, w, b, **options), rtol=1e-9)


LARGE = {
    "placed under masks": ((2, 20, 30, 41), (19, 20, 3, 3), {"padding": 1}),
    "several passes over channels": ((1, 700, 12, 20), (9, 700, 3, 3), {"padding": 1}),
    "several blocks and parts": ((1, 3, 90, 100), (150, 3, 5, 5), {"stride": 2}),
    "depthwise": ((3, 40, 30, 30), (40, 1, 3, 3), {"padding": 1, "groups": 40}),
}


@pytest.mark.parametrize("case", LARGE, ids=lambda c: c.replace(" ", "_"))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large(rng, case, dtype):
    _agree_with_definition(rng, 2, *LARGE[case], dtype)


@pytest.mark.parametrize("case", LARGE, ids=lambda c: c.replace(" ", "_"))
def test_the_same_bits_with_any_number_of_workers(rng, case):
    size, kernel, options = LARGE[case]
    x, w, b = (rng.standard_normal(s).astype("float32") for s in (size, kernel, kernel[:1]))
    results = []
    for workers in (1, 2, 3):
        with flow.config(workers=workers):
            leaves = [leaf(v) for v in (x, w, b)]
            out = flow.conv2d(*leaves, **options)
            (out * out).sum().backward()
            pooled = flow.avg_pool2d(flow.max_pool2d(out, 3, 2, 1), 2)
            results.append([t.numpy() for t in (out, pooled, *(v.grad for v in leaves))])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_infinity_stays_where_it_is_seen():
    x = np.zeros((1, 1, 20, 20), "float32")
    x[0, 0, 0, 0] = np.inf
    w = leaf(np.ones((1, 1, 3, 3), "float32"))
    out = flow.conv2d(tensor(x), w, padding=1)
    assert np.isinf(out.numpy()[0, 0, :2, :2]).all()
    assert np.isfinite(out.numpy()).sum() == 400 - 4
    out.backward(flow.ones_like(out))
    assert np.isinf(w.grad.numpy()[0, 0, :2, :2]).all()
    assert (w.grad.numpy()[0, 0, 2] == 0).all()
    assert (w.grad.numpy()[0, 0, :, 2] == 0).all()


EXTREME = {
    "wide": ((1, 2, 8, 300_000), (3, 2, 7, 3), {}),
    "one window": ((1, 3, 256, 256), (4, 3, 256, 256), {"stride": 256}),
    "a line": ((1, 1, 1, 3_000_000), (1, 1, 1, 5), {}),
}


@pytest.mark.parametrize("case", EXTREME, ids=lambda c: c.replace(" ", "_"))
def test_extreme_shapes(rng, case):
    size, kernel, options = EXTREME[case]
    x, w = leaf(np.ones(size, "float32")), leaf(np.ones(kernel, "float32"))
    out = flow.conv2d(x, w, **options)
    assert (out.numpy() == np.prod(kernel[1:])).all()
    out.backward(flow.ones_like(out))
    assert (w.grad.numpy() == np.prod(out.shape[2:])).all()
    assert x.grad.numpy().max() <= np.prod(kernel) / kernel[1]
    np.testing.assert_allclose(x.grad.numpy().sum(dtype="f8"), out.numel() * np.prod(kernel[1:]))


def test_a_kernel_without_elements():
    with pytest.raises(ShapeError, match="no element"):
        flow.conv2d(flow.ones(1, 1, 4, 4), flow.ones(1, 1, 0, 3))


def test_a_tile_written_apart_is_written_for_each_program(tmp_path):
    reals, table, words = (Operand(d, 1, True) for d in ("float32", "int32", "uint8"))
    operands = [reals, reals, reals, reals, table, words, words]
    jit.set_cache_dir(tmp_path)
    try:
        for body in (_strip_of_one, _strip_of_two):
            assert body_kernel(body, operands, "iiii") != 0
    finally:
        jit.set_cache_dir(None)


# --- the tiles against their Python ------------------------------------------------------------


def _strip(c, a, b, plus, table, spots, masks, rows, depth, kind, vectors, lo, hi):
    convolve_strip(
        c[2:], a[3:], b[5:], table[1:], plus[1:], spots.view(np.int32), masks.view(np.uint16),
        StripSize(rows, depth, vectors, 16 * vectors, kind),
    )  # fmt: skip


def _strip_of_one(c, a, b, plus, table, spots, masks, rows, depth, kind, vectors, lo, hi):
    _strip(c, a, b, plus, table, spots, masks, rows, depth, kind, vectors, lo, hi)


def _strip_of_two(c, a, b, plus, table, spots, masks, rows, depth, kind, vectors, lo, hi):
    _strip(c, a, b, plus, table, spots, masks, rows, depth, kind, vectors, hi, lo)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [ALONE, ADDED, PLACED])
def test_strip(rng, dtype, kind):
    lanes, address = lanes_of(dtype), None
    for rows, vectors in itertools.product(strip_rows(), (1, 2, 4, 15)):
        depth = 7
        arrays = [
            rng.standard_normal(size).astype(dtype)
            for size in (600 * vectors, 100, 400 + 16 * vectors, 20)
        ]
        table = rng.integers(0, 300, depth + 1).astype("int32")
        spots = np.arange(2 * vectors, dtype="int32") // 2 * lanes
        masks = np.tile(np.array([5, 10], "uint16"), vectors)
        tables = [table, spots.view("uint8"), masks.view("uint8")]
        numbers = (rows, depth, kind, vectors)
        views = [View(dtype_named(str(v.dtype)), v.shape) for v in (*arrays, *tables)]
        address = body_kernel(_strip, [Operand.of(v) for v in views], "iiii")
        layout = body_layout(views, numbers)
        words = np.zeros(OPERANDS_AT + 7, np.int64)
        words[OPERANDS_AT:] = [v.ctypes.data for v in (*arrays, *tables)]
        exact = [v.copy() for v in arrays]
        call = ctypes.CFUNCTYPE(*[ctypes.c_int32, *[ctypes.c_int64] * 4])(address)
        assert call(words.ctypes.data, layout.ctypes.data, 0, 1) == 0
        _strip(*exact, *tables, *numbers, 0, 1)
        np.testing.assert_allclose(arrays[0], exact[0], rtol=1e-4, atol=1e-4)


# --- pooling -----------------------------------------------------------------------------------


GEOMETRIES = [
    ((2, 3), (1, 1), (0, 0), (1, 1)),
    ((3, 3), (2, 3), (1, 2), (1, 1)),
    ((4, 1), (3, 2), (2, 0), (2, 3)),
]


@pytest.mark.parametrize(("kernel", "stride", "padding", "gap"), GEOMETRIES)
def test_every_tap_takes_part_in_one_phase(kernel, stride, padding, gap):
    size = (20, 30)
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1
           for n, k, s, p, d in zip(size, kernel, stride, padding, gap, strict=True)]  # fmt: skip
    shape = Shape(
        2, 3, 4, 1, (1, *size), (1, *out), (1, *kernel), (1, *stride), (0, *padding), (1, *gap)
    )
    taps = kernel[0] * kernel[1]
    for back in (False, True):
        plan = strips_of(shape, "float32", back)
        phases = plan.results_h * plan.results_w
        text = taps_of(plan)
        assert sum(text[:phases]) == taps
        assert sorted(text[phases : phases + taps]) == list(range(taps))
        lines = plan.sources_h * plan.sources_w * plan.pitch
        assert all(0 <= shift < lines for shift in text[phases + taps :])
    shifts = shifts_of(tiles_of(shape, "float32"))
    assert len(set(shifts)) == len(shifts) == taps


def test_a_bias_compiles_no_other_kernel(monkeypatch):
    x, w = (leaf(np.ones(s, "float32")) for s in ((1, 2, 5, 5), (3, 2, 3, 3)))
    flow.conv2d(x, w).sum().backward()
    loaded = []
    monkeypatch.setattr(jit, "listeners", [lambda name, begun: loaded.append(name)])
    flow.conv2d(x, w, flow.ones(3), stride=2).sum().backward()
    flow.conv_transpose2d(x, flow.ones(2, 3, 3, 3), flow.ones(3)).numpy()
    assert not [name for name in loaded if "strips" in name or "weight" in name]


@pytest.mark.parametrize(("ceil_mode", "dilation"), list(itertools.product((False, True), (1, 2))))
def test_max_pool_places(rng, ceil_mode, dilation):
    x = rng.standard_normal((2, 3, 8, 7))
    out, places = flow.max_pool2d(
        tensor(x), 3, 2, 1, dilation, ceil_mode=ceil_mode, return_indices=True
    )
    assert places.dtype is flow.int64
    flat = x.reshape(2, 3, -1)
    chosen = np.take_along_axis(flat, places.numpy().reshape(2, 3, -1), -1)
    np.testing.assert_array_equal(chosen.reshape(tuple(out.shape)), out.numpy())


def test_max_pool_of_integers_and_nan():
    assert flow.max_pool1d(flow.tensor([[1, 5, 3, 2]]), 2).tolist() == [[5, 3]]
    assert np.isnan(flow.max_pool1d(flow.tensor([[1.0, float("nan"), 3.0]]), 3).item())
    assert flow.max_pool1d(flow.tensor([[-float("inf")] * 2]), 2).item() == -float("inf")


def test_max_pool_gradient_goes_to_one_place():
    x = leaf(np.zeros((1, 1, 4)))
    flow.max_pool1d(x, 3, 1).sum().backward()
    assert x.grad.tolist() == [[[1.0, 1.0, 0.0, 0.0]]]


def test_ceil_mode_never_starts_in_the_padding():
    assert tuple(flow.max_pool1d(flow.ones(1, 1, 5), 2, 2, ceil_mode=True).shape) == (1, 1, 3)
    assert tuple(flow.max_pool1d(flow.ones(1, 1, 4), 2, 3, 1, ceil_mode=True).shape) == (1, 1, 2)


@pytest.mark.parametrize("place", [-1, 4, 1 << 40, -(1 << 62)])
def test_places_outside_of_a_plane_are_refused(place):
    """A saved graph says where its places come from."""
    windows = Windows(1, 4, 1, 2, 1, 2, 1, 2, 0, 0, 1, 1)
    g, x = flow.ones(1, 2, 2), flow.ones(1, 2, 4)
    good, bad = flow.tensor([[[0, 3], [1, 2]]]), flow.tensor([[[0, 3], [1, place]]])
    for function, *args in (
        (pool_ops._pool_scatter, g, (4,), windows), (pool_ops._pool_gather, x, windows, 1)
    ):  # fmt: skip
        tensor, *rest = args
        assert function(tensor, good, *rest).numpy().sum() == 4
        with pytest.raises(IndexError, match="out of bounds"):
            function(tensor, bad, *rest).numpy()


def test_avg_pool_divisors():
    x = flow.ones(1, 1, 4)
    np.testing.assert_allclose(flow.avg_pool1d(x, 3, 2, 1).numpy(), [[[2 / 3, 1.0]]], rtol=1e-6)
    assert flow.avg_pool1d(x, 3, 2, 1, count_include_pad=False).tolist() == [[[1.0, 1.0]]]
    assert flow.avg_pool2d(flow.ones(1, 2, 2), 2, divisor_override=8).tolist() == [[[0.5]]]


def test_pool_refuses():
    with pytest.raises(ArgumentError, match="half of the kernel"):
        flow.max_pool1d(flow.ones(1, 1, 5), 2, padding=2)
    with pytest.raises(ShapeError, match="larger than"):
        flow.avg_pool2d(flow.ones(1, 3, 3), 4)
    with pytest.raises(ShapeError, match="dimensions"):
        flow.max_pool2d(flow.ones(3, 3), 2)
    with pytest.raises(DTypeError, match="floating point"):
        flow.avg_pool1d(flow.tensor([[1, 2]]).int(), 2)
    with pytest.raises(ArgumentError, match="output_size"):
        flow.adaptive_avg_pool2d(flow.ones(1, 3, 3), (1, 2, 3))


POOLS = {
    "several blocks": ((2, 3, 70, 90), (2, 2, 0)),
    "overlapping": ((2, 3, 50, 61), (3, 2, 1)),
    "far apart": ((1, 2, 31, 47), ((2, 3), (3, 5), (1, 0))),
    "large windows": ((2, 2, 20, 21), ((7, 9), (3, 2), (3, 4))),
    "global": ((2, 3, 56, 56), (56, 56, 0)),
}


@pytest.mark.parametrize("case", POOLS, ids=lambda c: c.replace(" ", "_"))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pools_against_their_definition(rng, case, dtype):
    size, options = POOLS[case]
    two = [v if isinstance(v, tuple) else (v, v) for v in options]
    x = rng.permutation(int(np.prod(size))).reshape(size).astype(dtype)
    leaves = leaf(x), leaf(x)
    out = flow.max_pool2d(leaves[0], *options), flow.avg_pool2d(leaves[1], *options, False, False)
    for fold, result in zip((np.nanmax, np.nanmean), out, strict=True):
        np.testing.assert_allclose(result.numpy(), _pooled(fold, x, *two), rtol=1e-4)
    g = rng.standard_normal(tuple(out[0].shape))
    for result in out:
        result.backward(tensor(g.astype(dtype)))
    other = rng.standard_normal(size)
    moved = (_pooled(np.nanmean, other, *two) * g).sum()
    np.testing.assert_allclose(
        (leaves[1].grad.numpy() * other).sum(), moved, rtol=1e-3, atol=1e-3 * np.abs(g).sum()
    )
    places = flow.max_pool2d(tensor(x), *options, return_indices=True)[1].numpy()
    exact = np.zeros((size[0] * size[1], size[2] * size[3]))
    rows = np.arange(len(exact))[:, None]
    np.add.at(exact, (rows, places.reshape(len(exact), -1)), g.reshape(len(exact), -1))
    np.testing.assert_allclose(
        leaves[0].grad.numpy().reshape(exact.shape), exact, rtol=1e-4, atol=1e-4
    )


def test_places_of_nothing_but_the_lowest():
    x = flow.full((1, 1, 20, 20), -float("inf"))
    out, places = flow.max_pool2d(x, 3, 2, 1, return_indices=True)
    assert (out.numpy() == -np.inf).all()
    first = np.maximum(np.arange(10) * 2 - 1, 0)
    np.testing.assert_array_equal(places.numpy()[0, 0], first[:, None] * 20 + first)
    ints = flow.full((1, 6), np.iinfo("int64").min, dtype=flow.int64)
    assert flow.max_pool1d(ints, 3, 3, return_indices=True)[1].tolist() == [[0, 3]]
