"""`flow.special`: special functions, under PyTorch's names.

Most are also functions of `flow`; here are SciPy's names for them too.  `airy_ai` is missing.
"""

from __future__ import annotations

from flowvm.loading.listing import listing
from flowvm.ops.pointwise.special import igamma, igammac, mvlgamma
from flowvm.ops.pointwise.trigonometry import lgamma, sigmoid

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.ops.pointwise.math import exp2, expm1, log1p, round
from flowvm.ops.pointwise.numeric import logit, sinc
from flowvm.ops.pointwise.polynomials import (
    chebyshev_polynomial_t, chebyshev_polynomial_u, chebyshev_polynomial_v, chebyshev_polynomial_w,
    hermite_polynomial_h, hermite_polynomial_he, laguerre_polynomial_l, legendre_polynomial_p,
    shifted_chebyshev_polynomial_t, shifted_chebyshev_polynomial_u, shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w,
)
from flowvm.ops.pointwise.special import (
    bessel_j0, bessel_j1, bessel_y0, bessel_y1, entr, erfcx, i0, i0e, i1, i1e, log_ndtr,
    modified_bessel_k0, modified_bessel_k1, ndtr, ndtri, scaled_modified_bessel_k0,
    scaled_modified_bessel_k1, spherical_bessel_j0, xlog1py, zeta,
)
from flowvm.ops.pointwise.ternary import xlogy
from flowvm.ops.pointwise.trigonometry import digamma, erf, erfc, erfinv, polygamma
from flowvm.ops.rows.softmax import log_softmax, softmax
from flowvm.ops.rows.statistics import logsumexp

__all__ = [
    "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t",
    "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "digamma", "entr",
    "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln",
    "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e", "i1", "i1e",
    "laguerre_polynomial_l", "legendre_polynomial_p", "log1p", "log_ndtr", "log_softmax", "logit",
    "logsumexp", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0",
    "modified_bessel_k1", "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round",
    "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "sinc", "softmax", "spherical_bessel_j0", "xlog1py", "xlogy",
    "zeta",
]
# fmt: on
# isort: on
# --- by hand


expit = sigmoid
gammainc, gammaincc, gammaln, multigammaln = igamma, igammac, lgamma, mvlgamma
modified_bessel_i0, modified_bessel_i1 = i0, i1
psi = digamma

__dir__ = listing(globals())
