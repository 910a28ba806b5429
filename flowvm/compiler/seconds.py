"""How long the usual kernels took to make, in seconds, on the machine where this was written.

    FLOWVM_CACHE_DIR=$(mktemp -d) python -m flowvm warmup --jobs 1

leaves such a table in that folder (`flowvm.compiler.progress`); here are those of a tenth of a
second and more.  Only how one kernel is to another counts: each machine finds its own scale.
"""

from __future__ import annotations

from typing import Final

# fmt: off
SECONDS: Final[dict[str, float]] = {
    "amax: rows_body.<locals>.body, float32 float32": 0.34,
    "amin: rows_body.<locals>.body, float32 float32": 0.32,
    "avg_pool: average_body, float32 float32": 0.45,
    "avg_pool_backward: average_back_body, float32 float32": 0.64,
    "batch_norm: moving_columns, float32 float32 float32 float32 float32 float32 float32": 1.51,
    "cat: assemble": 0.13,
    "conv: strips_body, float32 float32 float32 float32": 1.43,
    "conv_weight: weight_body, float32 float32 float32": 1.13,
    "cos: cos(x), float32 -> float32": 0.38,
    "cross_entropy: entropy, float32 float32 float32 int64": 1.39,
    "cross_entropy_backward: entropy_backward, float32 float32 float32 int64 float32": 0.8,
    "cumsum: columns_body.<locals>.body, float32 float32": 0.13,
    "cumsum: rows_body.<locals>.body, float32 float32": 0.4,
    "erf: erf(x), float32 -> float32": 0.1,
    "fill: walk": 0.22,
    "gather: gather, int32 int32 int64": 0.25,
    "index_reduce_: put, float32 int64 float32": 0.38,
    "index_select: take, int32 int32 int64": 0.32,
    "linear: finisher.<locals>.end, float32": 0.12,
    "log_softmax: body, float32 float32": 0.39,
    "log_softmax_backward: body, float32 float32 float32": 0.13,
    "matmul: _walk": 0.57,
    "matmul: tile, float32": 0.27,
    "max: rows_body.<locals>.body, float32 int64 float32": 0.58,
    "max_pool: max_body, float32 int64 float32": 0.54,
    "moments: rows_body.<locals>.body, float32 float32 float32": 0.25,
    "nll_loss: likelihood, float32 float32 float32 int64 float32": 0.18,
    "nll_loss_backward: likelihood_backward, float32 float32 int64 float32 float32": 0.14,
    "normalize: body, float32 float32 float32 float32": 0.16,
    "normalize: body, float32 float32 float32 float32 float32": 0.13,
    "normalize: forward_columns, float32 float32 float32 float32 float32 float32 float32": 0.89,
    "normalize: forward_planes, float32 float32 float32 float32 float32 float32 float32": 0.51,
    "normalize_backward: body, float32 float32 float32 float32 float32 float32 float32": 0.4,
    "normalize_backward: full_backward_columns, "
    "float32 float32 float32 float32 float32 float32 float32": 1.4,
    "normalize_backward: full_backward_planes, "
    "float32 float32 float32 float32 float32 float32 float32": 0.66,
    "pow: pow(x, y), float32 float32 -> float32": 0.23,
    "scatter_reduce_: scatter, float32 int64 float32": 0.37,
    "sin: sin(x), float32 -> float32": 0.58,
    "softmax: body, float32 float32": 0.4,
    "softmax_backward: body, float32 float32 float32": 0.15,
    "sort: _rows_body, int32 int64 int32": 0.84,
    "sum: columns_body.<locals>.body, float32 float32": 0.84,
    "sum: rows_body.<locals>.body, float32 float32": 0.3,
    "sum: rows_body.<locals>.body, float64 float64": 0.55,
    "tril: _triangle_body, int32 int32": 0.11,
    "uniform_: _uniform_body, float32": 0.39,
}
