"""Functions of matrices: powers, the exponential, products of many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowvm.eager.autocast import outside
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ShapeError
from flowvm.ops.declare.composite import Recorded, need_tensor, record, whole
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.linalg.parts.checks import constant_of, identity, square
from flowvm.ops.linalg.systems import inverse, solve
from flowvm.ops.pointwise.math import abs as abs_of
from flowvm.ops.products.matmul import matmul
from flowvm.ops.rows.reduce import amax, sum
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ops.shapes.join import cat

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# public: flow, linalg

# Coefficients of the diagonal Padé approximants of exp and the largest 1-norms that they are good
# for in float64: Higham, "The scaling and squaring method for the matrix exponential revisited"
# (2005), table 2.3.
PADE_13 = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0,
    960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
MOST_NORM = 5.371920351148152


@method()
@with_out
@in_float32
def matrix_power(input: Tensor, n: int) -> Tensor:
    """The product of n copies of square matrices (*, m, m); n = 0 is the identity, negative n that
    of the inverse.

    >>> flow.matrix_power(flow.tensor([[1.0, 1.0], [0.0, 1.0]]), 5)
    tensor([[1., 5.],
            [0., 1.]])
    """
    need_tensor("matrix_power", "input", input)
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        raise ShapeError(f"matrix_power: input must be (*, m, m), got shape {tuple(input.shape)}")
    n = whole("matrix_power", "n", n)
    return _power(input, n)


def _power(input: Tensor, n: int) -> Tensor:
    if n < 0:
        return _power(inverse(input), -n)
    if n == 0:
        eye = identity(input, input.shape[-1])
        return constant_of(input, eye.expand(input.shape).clone())
    result: Tensor | None = None
    factor = input
    while n:
        if n & 1:
            result = factor if result is None else matmul(result, factor)
        n >>= 1
        if n:
            factor = matmul(factor, factor)
    assert result is not None
    return result.clone() if result is input else result


# public: flow
@with_out
@in_float32
def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of matrices, multiplied in the order that takes the fewest operations.

    >>> flow.chain_matmul(flow.ones(2, 3), flow.ones(3, 4), flow.ones(4, 1))
    tensor([[12.],
            [12.]])
    """
    if not matrices:
        raise ArgumentError("chain_matmul: at least one matrix is needed")
    for m in matrices:
        need_tensor("chain_matmul", "matrices", m)
        if m._meta.ndim != 2:
            raise ShapeError(f"chain_matmul: expected matrices, got shape {tuple(m.shape)}")
    sizes = [m.shape[0] for m in matrices] + [matrices[-1].shape[1]]
    best: dict[tuple[int, int], tuple[int, int]] = {(i, i): (0, i) for i in range(len(matrices))}
    for length in range(1, len(matrices)):
        for i in range(len(matrices) - length):
            j = i + length
            best[i, j] = min(
                (best[i, k][0] + best[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )

    def multiply(i: int, j: int) -> Tensor:
        if i == j:
            return matrices[i]
        k = best[i, j][1]
        return matmul(multiply(i, k), multiply(k + 1, j))  # type: ignore[no-any-return]

    return multiply(0, len(matrices) - 1)


@with_out
@in_float32
def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of two or more matrices, multiplied in the order that takes the fewest
    operations; the first may be a vector, a row, and the last one a column.

    >>> flow.linalg.multi_dot([flow.ones(2, 3), flow.ones(3, 4), flow.ones(4, 1)])
    tensor([[12.],
            [12.]])
    """
    each = list(tensors)
    if len(each) < 2:
        raise ArgumentError(f"linalg.multi_dot: at least two tensors are needed, got {len(each)}")
    row, column = each[0].ndim == 1, each[-1].ndim == 1
    each[0] = each[0].unsqueeze(0) if row else each[0]
    each[-1] = each[-1].unsqueeze(-1) if column else each[-1]
    product = chain_matmul(*each)
    product = product.squeeze(-1) if column else product
    return product.squeeze(0) if row else product


# --- the exponential ------------------------------------------------------------------------------


def _exp_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    """The upper right block of exp([[Aᴴ, g], [0, Aᴴ]]) (Mathias, 1996)."""
    (a,) = c.saved
    n, at = a.shape[-1], a.mH
    top, bottom = cat([at, g], -1), cat([zeros_like(at), at], -1)
    return (matrix_exp(cat([top, bottom], -2))[..., :n, n:],)


_exp_node = Recorded("matrix_exp", _exp_grad, ("a",), "a")


@method()
@in_float32
def matrix_exp(input: Tensor) -> Tensor:
    """The exponential of square matrices (*, n, n), by scaling, a Padé approximant of degree 13 and
    squaring (Higham, 2005).  The call waits for the norm of the matrices, which says how often.

    >>> flow.matrix_exp(flow.tensor([[0.0, 1.0], [0.0, 0.0]]))
    tensor([[1., 1.],
            [0., 1.]])
    """
    a = square("matrix_exp", input, "input")
    x = a.detach()
    if x.numel() == 0:
        return a.clone()
    norm = float(amax(sum(abs_of.call(x), -2)).item())
    times = 0
    if MOST_NORM < norm < math.inf:
        times = math.ceil(math.log2(norm / MOST_NORM))
    out = outside(_pade, x * 2.0**-times, times)
    return record(_exp_node, (a,), out, (), (a,))


def _pade(x: Tensor, squarings: int) -> Tensor:
    """exp(2**squarings * x) for x of a norm up to MOST_NORM."""
    b = [value / PADE_13[0] for value in PADE_13]
    eye = identity(x, x.shape[-1])
    x2 = matmul(x, x)
    x4 = matmul(x2, x2)
    x6 = matmul(x4, x2)
    odd = matmul(x6, x6 * b[13] + x4 * b[11] + x2 * b[9])
    odd = matmul(x, odd + x6 * b[7] + x4 * b[5] + x2 * b[3] + eye * b[1])
    even = matmul(x6, x6 * b[12] + x4 * b[10] + x2 * b[8])
    even = even + x6 * b[6] + x4 * b[4] + x2 * b[2] + eye
    out = solve(even - odd, even + odd)
    for _ in range(squarings):
        out = matmul(out, out)
    return out


# --- samples --------------------------------------------------------------------------------------


samples(
    matrix_power,
    lambda rng: [Sample((rng.uniform(-0.6, 0.6, (3, 3)), n)) for n in (1, 2, 5)],
    np.linalg.matrix_power,
    errors=((lambda flow: flow.matrix_power(flow.ones(2, 3), 2), RuntimeError),),
)
samples(
    chain_matmul,
    lambda rng: [Sample(tuple(rng.standard_normal(s) for s in ((3, 2), (2, 4), (4, 2))))],
    lambda *m: np.linalg.multi_dot(m),
)
samples(
    multi_dot,
    lambda rng: [Sample(([rng.standard_normal(s) for s in ((2,), (2, 4), (4, 2), (2,))],))],
    np.linalg.multi_dot,
)


def _exp_reference(x: Array) -> object:
    values, vectors = np.linalg.eig(x)
    return ((vectors * np.exp(values)[..., None, :]) @ np.linalg.inv(vectors)).real


samples(
    matrix_exp,
    lambda rng: [Sample((rng.uniform(-1, 1, (3, 3)),)), Sample((rng.uniform(-4, 4, (2, 3, 3)),))],
    _exp_reference,
    floats=("float64",),
    rtol=1e-8,
)
