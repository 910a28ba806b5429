"""Layer, RMS, batch, group and instance norm, forward and backward.

    forward    out = (x - mean) * rstd * weight + bias
    backward   dx = rstd * (h - M(h) - (x - mean) * rstd**2 * M(h * (x - mean))), h = g * weight

`stats` holds the groups' means, then their variances.  Sums are kept in float64.  The kernels are
in `norm_planes`; where groups are rows, they are made of programs (`row_kernels`).
"""

from __future__ import annotations

from numba import cuda

from flowvm.cuda.launch import Const, CudaLaunch
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.rows.cuda.norm_planes import planes_backward, planes_forward
from flowvm.ops.rows.cuda.operands import each_step, flat
from flowvm.ops.rows.cuda.row_kernels import run

Metas = tuple[TensorMeta, ...]


def _nothing(launch: Launch, metas: Metas) -> CudaLaunch | None:
    """The launch for an empty x: gradients of weights are 0."""
    if metas[0].numel:
        return None
    fills = (
        each_step(_zeroed, m.numel, flat(k, m), Const(m.numel))
        for k, m in enumerate(launch.outputs)
        if k and m.numel
    )
    return CudaLaunch(launch.outputs, tuple(fills))


def _zeroed(out: Array, count: int) -> None:
    i = cuda.grid(1)
    if i < count:
        out[i] = 0


def forward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """normalize: out and stats of x, maybe weight and bias."""
    kind, _, eps, _ = attrs
    if (nothing := _nothing(launch, metas)) is not None:
        return nothing
    if launch.plan is not None:
        return run(launch, metas, attrs)
    return planes_forward(launch, metas, kind, eps, False)


def backward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """normalize_backward: dx of (g, x, stats), or dx, dw and db of these and a weight."""
    kind, _, eps, _ = attrs
    if (nothing := _nothing(launch, metas)) is not None:
        return nothing
    if launch.plan is not None:
        return run(launch, metas, attrs)
    return planes_backward(launch, metas, kind, eps, False)


def tracking(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """batch_norm that moves the running statistics."""
    return _nothing(launch, metas) or planes_forward(launch, metas, "batch", attrs[0], False)


def fixed(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """batch_norm by given statistics."""
    return _nothing(launch, metas) or planes_forward(launch, metas, "batch", attrs[0], True)


def fixed_backward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Lower the gradient of the norm with fixed statistics."""
    return _nothing(launch, metas) or planes_backward(launch, metas, "batch", attrs[0], True)
