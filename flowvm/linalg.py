"""Linear algebra by the conventions of `torch.linalg` and NumPy: `flow.linalg.svd`, ...

The functions stand in `ops/linalg`; which of them the top and the methods of tensors have, by older
conventions, is said in `ops/linalg/classic.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.loading.listing import listing
from flowvm.loading.missing_names import other_names

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.errors import LinAlgError
from flowvm.ops.linalg.decompositions import (
    cholesky, cholesky_ex, householder_product, ldl_factor, ldl_factor_ex, ldl_solve, lu, lu_factor,
    lu_factor_ex, lu_solve, qr, solve_triangular,
)
from flowvm.ops.linalg.norms import cond, matrix_norm, norm, vector_norm
from flowvm.ops.linalg.powers import matrix_exp, matrix_power, multi_dot
from flowvm.ops.linalg.solvers import (
    det, inv, inv_ex, lstsq, slogdet, solve, solve_ex, tensorinv, tensorsolve,
)
from flowvm.ops.linalg.spectra import eig, eigh, eigvals, eigvalsh, matrix_rank, pinv, svd, svdvals
from flowvm.ops.linalg.vectors import cross, diagonal, vander, vecdot
from flowvm.ops.products.matmul import matmul

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh",
    "eigvals", "eigvalsh", "householder_product", "inv", "inv_ex", "ldl_factor", "ldl_factor_ex",
    "ldl_solve", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_exp",
    "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet",
    "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander",
    "vecdot", "vector_norm",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())

if not TYPE_CHECKING:  # a type checker is to know which names there are
    __getattr__ = other_names("linalg", lambda: __all__)
