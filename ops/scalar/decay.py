"""exp of numbers that are not positive, for softmax and its kin, where they are distances from a
maximum.

It costs half of `scalar.exp`: nothing overflows, and results below the smallest normal number are
0, which no sum with exp(0) = 1 in it can tell from what they are.  Errors up to there: 1.1 units in
the last place (float32), 1 (float64).
"""

from __future__ import annotations

import math

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.bits import MAGIC, scale_once

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32 = np.float32

_LEAST_32, _ZERO_32, _ONE_32 = F32(-87.336544), F32(0), F32(1)
_LOG2E_32, _MAGIC_32 = F32(1.44269504), F32(MAGIC[32])
_LN2_HI_32, _LN2_LO_32 = F32(0.693359375), F32(-2.12194440e-4)
# (exp(r) - 1 - r) / r**2 for |r| <= ln(2) / 2, minimax of exp's relative error (3e-9)
_C0, _C1, _C2 = F32(0.49999994), F32(0.1666652), F32(0.041668393)
_C3, _C4 = F32(0.008368781), F32(0.0013814467)


def _decay32(x: Number) -> Number:
    t = x * _LOG2E_32 + _MAGIC_32
    n = t - _MAGIC_32
    r = (x - n * _LN2_HI_32) - n * _LN2_LO_32
    p = (((_C4 * r + _C3) * r + _C2) * r + _C1) * r + _C0
    y = scale_once(p * (r * r) + r + _ONE_32, t)
    return _ZERO_32 if x < _LEAST_32 else y


_LEAST, _MAGIC = -708.3964185322641, MAGIC[64]
_LOG2E, _LN2_HI, _LN2_LO = (
    1.4426950408889634,
    6.93147180369123816490e-01,
    1.90821492927058770002e-10,
)
_T2, _T3, _T4, _T5, _T6, _T7 = (1.0 / math.factorial(k) for k in range(2, 8))
_T8, _T9, _T10, _T11, _T12, _T13 = (1.0 / math.factorial(k) for k in range(8, 14))


def _decay64(x: Number) -> Number:
    t = x * _LOG2E + _MAGIC
    n = t - _MAGIC
    r = (x - n * _LN2_HI) - n * _LN2_LO
    p = ((((_T13 * r + _T12) * r + _T11) * r + _T10) * r + _T9) * r + _T8
    p = (((((p * r + _T7) * r + _T6) * r + _T5) * r + _T4) * r + _T3) * r + _T2
    y = scale_once(p * (r * r) + r + 1.0, t)
    return 0.0 if x < _LEAST else y


decay = Overloaded("decay", {"float32": _decay32, "float64": _decay64})
