"""Elementwise ops, casts, copies and fused programs as CUDA kernels: against the CPU's scalar
functions in float64, over dtypes, strides and sizes around a thread's share.
"""

import numpy as np
import pytest
from simulated import run, status

import flowvm as flow
from flowvm.graph.passes.fusion_program import fused_operator
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import _fill
from flowvm.ops.declare.core import _cast, _copy
from flowvm.ops.declare.cuda.elementwise import scalars
from flowvm.ops.pointwise.arithmetic import _add as add
from flowvm.ops.pointwise.arithmetic import floor_divide, mul
from flowvm.ops.pointwise.math import exp

SIZES = (1, 3, 4, 31, 32, 33, 100, 1000)


def meta_of(array, stride=None):
    itemsize = array.itemsize
    strides = tuple(s // itemsize for s in array.strides)
    name = "bool" if array.dtype == np.bool_ else array.dtype.name
    return TensorMeta.of(array.shape, dtype_named(name), stride=strides)


def call(op, arrays, attrs=(), numbers=(), out=None, order=""):
    """The outputs and the status of an operator on arrays."""
    metas = tuple(meta_of(a) for a in arrays)
    launch = op.kernel.infer((*(() if out is None else (meta_of(out),)), *metas), attrs)
    outs = [out] if out is not None else [empty(m) for m in launch.outputs]
    details = run(scalars(launch), [*outs, *arrays], numbers, order)
    return (*outs, status(details))


def empty(meta):
    """An array like the meta, poisoned."""
    flat = np.full(max(1, meta.span), 0xA5, np.uint8).view(np.uint8)
    strides = tuple(s * meta.dtype.itemsize for s in meta.stride)
    return np.ndarray(tuple(meta.shape), meta.dtype.numpy, flat, 0, strides)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int16", "uint8"])
@pytest.mark.parametrize("n", SIZES)
def test_dense_operands_of_one_dtype(dtype, n, rng):
    x = (rng.standard_normal(n) * 20).astype(dtype)
    y = (rng.standard_normal(n) * 20).astype(dtype)
    out, state = call(add.operator, [x, y])
    assert state == 0
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("order", ["", "reversed"])
def test_broadcast_strided_and_transposed_operands(order, rng):
    x, y = rng.standard_normal((5, 7, 3)), rng.standard_normal((7, 1))
    z = rng.standard_normal((3, 7, 10)).transpose(2, 1, 0)[::2]
    out, _ = call(add.operator, [x, y], order=order)
    np.testing.assert_array_equal(out, x + y)
    out, _ = call(mul.operator, [x, z], order=order)
    np.testing.assert_array_equal(out, x * z)
    out, _ = call(mul.operator, [z[:, :, ::-1], np.array(3.0)], order=order)
    np.testing.assert_array_equal(out, z[:, :, ::-1] * 3)


def test_many_dimensions_that_do_not_merge(rng):
    x = rng.standard_normal((2, 3, 2, 3, 2, 3, 2, 2))[:, :, :, :, :, :, :, :1]
    y = rng.standard_normal((1, 3, 1, 3, 1, 3, 1, 1))
    out, _ = call(add.operator, [x, y])
    np.testing.assert_array_equal(out, x + y)


def test_numbers_are_arguments_of_the_kernel(rng):
    x = rng.standard_normal(77).astype(np.float32)
    variant = add._variant("ts")
    out, _ = call(variant, [x], (float,), (0.1,))
    np.testing.assert_array_equal(out, x + np.float32(0.1))
    n = np.arange(9)
    out, _ = call(variant, [n], (int,), (5,))
    np.testing.assert_array_equal(out, n + 5)


def test_mixed_dtypes_are_converted_as_they_are_read(rng):
    n, x = np.arange(40, dtype=np.int16), rng.standard_normal(40).astype(np.float16)
    out, _ = call(add.operator, [n, x])
    expected = (n.astype(np.float32) + x.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(out, expected)
    mask = rng.integers(0, 2, 40).astype(np.bool_)
    mask.view(np.uint8)[mask] = 4  # any bit counts
    out, _ = call(add.operator, [mask, np.ones(40, np.float32)])
    np.testing.assert_array_equal(out, (mask.view(np.uint8) != 0) + np.float32(1))


def test_in_place_with_unaligned_memory(rng):
    whole = rng.standard_normal(65).astype(np.float32)
    x, expected = whole[1:], whole[1:] * 2
    _, state = call(add.operator, [x, x], out=x)
    assert state == 0
    np.testing.assert_array_equal(x, expected)


def test_raising_is_a_status():
    x, y = np.arange(50), np.arange(50) - 20
    _, state = call(floor_divide.operator, [x, y])
    assert state == 2  # DIVISION_BY_ZERO
    y[20] = 7
    out, state = call(floor_divide.operator, [x, y])
    assert state == 0
    np.testing.assert_array_equal(out, x // y)


def test_nothing_is_launched_for_nothing():
    launch = add.operator.kernel.infer((TensorMeta.of((0, 3), flow.float32),) * 2, ())
    assert scalars(launch).steps == ()


@pytest.mark.parametrize("source", ["float32", "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("to", ["float64", "float32", "float16", "int32", "int8", "bool"])
def test_casts(source, to, rng):
    x = (rng.standard_normal((6, 7)) * 3).astype(source)
    out, state = call(_cast, [x], (dtype_named(to),))
    assert state == 0
    np.testing.assert_array_equal(out, x.astype(to))
    turned, _ = call(_cast, [x.T], (dtype_named(to),))
    np.testing.assert_array_equal(turned, x.T.astype(to))


def test_a_nan_is_true_and_no_integer():
    x = np.array([1.5, np.nan], np.float32)
    values, status = call(_cast, [x], (flow.int32,))
    assert status == 0
    assert values[0] == 1
    assert call(_cast, [x], (flow.bool,))[0].tolist() == [True, True]


def test_copies_move_bytes_and_fills_write_numbers(rng):
    x = rng.standard_normal((3, 1, 5)).astype(np.float16)
    x[0, 0, 0] = np.nan
    to = np.zeros((2, 3, 4, 5), np.float16)
    launch = _copy.infer((meta_of(to), meta_of(x)), ())
    run(scalars(launch), [to, x])
    np.testing.assert_array_equal(to, np.broadcast_to(x, to.shape))
    for dtype, value in (("float16", 0.1), ("int8", -3), ("bool", 1), ("float64", 0.1)):
        meta = TensorMeta.of((3, 50), dtype_named(dtype))
        launch = _fill.infer((), (meta,))
        out = empty(meta)
        run(scalars(launch), [out], (value,))
        np.testing.assert_array_equal(out, np.full((3, 50), value, dtype))


def test_a_fused_program_of_several_lines_and_outputs(rng):
    program = "t0 = x0 * n0\nt1 = exp(t0) + x1\n(t0, t1)"
    fused = fused_operator("fused", program, ("float32", "float32"), 2, 1, "float32")
    x, y = (rng.standard_normal((4, 9)).astype(np.float32) for _ in range(2))
    meta = TensorMeta.of((4, 9), flow.float32)
    launch = fused.infer((meta_of(x), meta_of(y)), ((meta, meta),))
    outs = [empty(meta), empty(meta)]
    run(scalars(launch), [*outs, x, y], (0.5,))
    np.testing.assert_array_equal(outs[0], x * np.float32(0.5))
    np.testing.assert_allclose(outs[1], np.exp(x * 0.5) + y, rtol=1e-6, atol=1e-6)


def test_kernels_compile_and_move_16_bytes_at_once(ptx_of):
    for dtype, moved in (("float32", "ld.global.v4.f32"), ("float64", "ld.global.v2.f64"),
                         ("float16", "st.global.v4.u32")):  # fmt: skip
        meta = TensorMeta.of((1000,), dtype_named(dtype))
        for text in ptx_of.launch(scalars(exp.operator.kernel.infer((meta,), ()))):
            assert moved in text
            assert dtype == "float64" or ".f64" not in text
    turned = TensorMeta.of((30, 20), flow.float32, stride=(1, 30))
    row = TensorMeta.of((20,), flow.int64)
    for plan in (
        scalars(add.operator.kernel.infer((turned, row), ())),
        scalars(floor_divide.operator.kernel.infer((row, row), ())),
        scalars(_cast.infer((turned,), (flow.bool,))),
        scalars(_cast.infer((turned,), (flow.int8,))),
        scalars(_fill.infer((), (turned,))),
    ):
        ptx_of.launch(plan)


def test_a_fill_of_what_is_not_dense():
    meta = TensorMeta.of((20, 30), flow.float64, stride=(1, 40))
    launch = _fill.infer((), (meta,))
    out = empty(meta)
    run(scalars(launch), [out], (0.25,))
    np.testing.assert_array_equal(out, np.full((20, 30), 0.25))
