"""The regularized incomplete gamma function, and the slope of gamma-distributed numbers by shape.

P(a, x) by its series below a + 1 and by its continued fraction above (Numerical Recipes, 6.2).  A
number x that was drawn at shape a follows a at constant P: dx/da = -(dP/da) / (dP/dx) (implicit
reparametrization: Figurnov, Mohamed and Mnih, 2018).  By the series term by term that is
-x sum_n t_n (log x - digamma(a + n + 1)) with t_0 = 1 / a, t_n = t_(n-1) x / (a + n).

Both compute in float64, whatever the dtype.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.scalar import functions as scalar

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.eager.tensor import Tensor


_lgamma, _digamma = scalar.lgamma, scalar.digamma
GRAIN = 64  # elements worth waking a thread for
MOST = 100000  # terms: more than float64 needs for any shape below 1e8
SMALL = 1e-17
TINY = 1e-300


def _lower_body(out: Array, a: Array, x: Array, lo: int, hi: int) -> None:
    for i in range(lo, hi):
        shape, at = float(a[i]), float(x[i])
        if not at > 0.0:
            out[i] = 0.0 * at if at <= 0.0 else at
            continue
        if at > 1e300:
            out[i] = 1.0
            continue
        front = math.exp(shape * math.log(at) - at - _lgamma(shape))
        if at < shape + 1.0:
            term = 1.0 / shape
            total = term
            for n in range(1, MOST):
                term *= at / (shape + n)
                total += term
                if term < total * SMALL:
                    break
            out[i] = front * total
        else:
            b = at + 1.0 - shape
            c = 1.0 / TINY
            d = 1.0 / b
            h = d
            for n in range(1, MOST):
                an = -n * (n - shape)
                b += 2.0
                d = an * d + b
                d = TINY if abs(d) < TINY else d
                c = b + an / c
                c = TINY if abs(c) < TINY else c
                d = 1.0 / d
                h *= d * c
                if abs(d * c - 1.0) < 1e-16:
                    break
            out[i] = 1.0 - front * h


def _moves_body(out: Array, a: Array, x: Array, lo: int, hi: int) -> None:
    for i in range(lo, hi):
        shape, at = float(a[i]), float(x[i])
        if not at > 0.0:
            out[i] = 0.0
            continue
        log = math.log(at)
        term = 1.0 / shape
        psi = _digamma(shape + 1.0)
        total = term * (log - psi)
        size = term
        for n in range(1, MOST):
            term *= at / (shape + n)
            psi += 1.0 / (shape + n)
            total += term * (log - psi)
            size += term
            if term < size * SMALL:
                break
        out[i] = -at * total


def _launch(body: Any, a: TensorMeta) -> Launch:
    return Launch(outputs=(a.dense(),), body=body, units=a.shape[0], grain=GRAIN)


def _lower_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    a, x = c.saved
    density = ((a - 1) * x.log() - x - a.lgamma()).exp()
    return None, g * density


@op("a, x -> out", saves="a, x", grad=_lower_grad, letters=unsplit)
def gamma_lower(a: TensorMeta, x: TensorMeta) -> Launch:
    """P(a, x), of two vectors of one size and float dtype; its gradient goes to x alone."""
    return _launch(_lower_body, a)


@op("a, x -> out", letters=unsplit)
def gamma_moves(a: TensorMeta, x: TensorMeta) -> Launch:
    """dx/da of numbers x that were drawn at shapes a: two vectors of one size and float dtype."""
    return _launch(_moves_body, a)
