"""Row ops that flowvm has no kernels for, each declared as one program: both devices make their
kernels of it, however rows lie.
"""

import numpy as np
import pytest
from played import on_cpu, play

from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.registry import op
from flowvm.ops.rows.cpu.row_bodies import rows_body
from flowvm.ops.rows.cpu.row_launch import Rows, row_launch
from flowvm.ops.rows.cuda.row_kernels import run
from flowvm.ops.rows.parts.norm_programs import norm_backward, norm_forward
from flowvm.ops.rows.parts.row_program import Fold, RowProgram, Sweep
from flowvm.ops.rows.parts.softmax_programs import LEVELS, LOG_SOFTMAX, SOFTMAX
from flowvm.ops.rows.softmax import rows_of

SHAPES = [
    ((3, 1), 1), ((40, 10), 1), ((5, 49), 1), ((2, 2100), 1), ((2, 70001), 1), ((4, 7, 5), 1),
    ((70, 33), 0), ((2, 300, 70), 1),
]  # fmt: skip

largest, sums = LEVELS.sweeps
levels = sums._replace(after=(*sums.after, ("value", "top + level")))
LOGSUMEXP = LEVELS._replace(sweeps=(largest, levels), notes=("value",))
RANGE = RowProgram(  # each element less the mean, in units of the mean distance from 0
    ("x",),
    (
        Sweep(
            (Fold("total", "sum", "x"), Fold("size", "sum", "x * x")),
            (),
            (("mean", "total / count"), ("unit", "size / count")),
        ),
    ),
    "(x - mean) / unit",
)


@op("x -> out", name="new_logsumexp", cuda=run)
def logsumexp(x: TensorMeta, dim: int):
    axis = dim % x.ndim
    out = x.with_shape((*x.shape[:axis], *x.shape[axis + 1 :]))
    return row_launch(Rows(LOGSUMEXP, *rows_of("logsumexp", x, dim)), (out,), (x,))


@op("x -> out", name="new_centered", cuda=run)
def centered(x: TensorMeta, dim: int):
    return row_launch(Rows(RANGE, *rows_of("centered", x, dim)), (x.dense(),), (x,))


def reference(call, x, dim):
    x = x.astype(np.float64)
    if call is logsumexp:
        top = x.max(dim, keepdims=True)
        with np.errstate(invalid="ignore"):
            return np.log(np.exp(x - top).sum(dim)) + top.squeeze(dim)
    mean, unit = x.mean(dim, keepdims=True), (x * x).mean(dim, keepdims=True)
    return (x - mean) / unit


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("op", [logsumexp, centered], ids=["logsumexp", "centered"])
def test_a_new_row_op_is_one_program(rng, op, shape, dim, dtype):
    x = (rng.standard_normal(shape) * 3 + 50).astype(dtype)
    close = 5e-5 if dtype == "float32" else 1e-12
    for answer in (on_cpu, play):
        if answer is play and x.size > 10000:
            continue  # the simulator is slow
        (actual,), _ = answer(op, [x], (dim,))
        np.testing.assert_allclose(actual, reference(op, x, dim), rtol=close, atol=close)


def test_a_row_of_nothing_but_minus_infinity(rng):
    x = rng.standard_normal((3, 5, 4)).astype(np.float32)
    x[1] = -np.inf
    for dim in (1, 2):
        for answer in (on_cpu, play):
            (actual,), _ = answer(logsumexp, [x], (dim,))
            assert np.isneginf(actual[1]).all()
            np.testing.assert_allclose(actual[[0, 2]], reference(logsumexp, x[[0, 2]], dim), 1e-5)


def test_what_is_kept_and_what_is_computed_again():
    assert SOFTMAX.stored_map == "e"  # an exponential is computed once
    assert LOG_SOFTMAX.stored_map == ""
    assert LOG_SOFTMAX.maps_for("s - level") == (("s", "x - top"),)
    assert LOG_SOFTMAX.row_numbers("s - level") == ("top", "level")


def test_a_program_has_one_body():
    """Kernels are cached by their bodies: programs that are equal have the same one."""
    assert rows_body(norm_forward(True, 2)) is rows_body(norm_forward(True, 2))
    assert rows_body(norm_backward(True, True)) is not rows_body(norm_backward(False, True))
