"""The rules of `unfold` and `fold`: the kernels with which convolutions make and add up windows,
for planes instead of samples of channels.
"""

from __future__ import annotations

from typing import Any

from flowvm.cuda.launch import CudaLaunch
from flowvm.launch import Launch
from flowvm.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import consts, flat_step, operands
from flowvm.ops.planes.cpu.conv_plan import Shape
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.cuda.conv import geometry, windows_step
from flowvm.ops.planes.cuda.conv_kernels import gathered
from flowvm.ops.products.cuda.gemm import Place

__all__ = ["fold", "unfold"]


def _shape(t: Windows, planes: int) -> Shape:
    return Shape(
        1, planes, 1, 1, (1, t.h, t.w), (1, t.oh, t.ow), (1, t.kh, t.kw), (1, t.sh, t.sw),
        (0, t.ph, t.pw), (1, t.dh, t.dw),
    )  # fmt: skip


def unfold(launch: Launch, metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> CudaLaunch:
    """Patches as columns."""
    (out,), (t,), kind = launch.outputs, attrs, launch.views[0].dtype
    if not out.numel:
        return CudaLaunch(launch.outputs, ())
    planes, count = metas[0].numel // (t.h * t.w), t.oh * t.ow
    step = windows_step(
        _shape(t, planes), planes, Place(kind, 0), Place(kind, 1), 1, 0, count, count, 0
    )
    return CudaLaunch(launch.outputs, (step,))


def fold(launch: Launch, metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> CudaLaunch:
    """Columns of patches added up."""
    (out,), (t,) = launch.outputs, attrs
    if not out.numel:
        return CudaLaunch(launch.outputs, ())
    planes = out.numel // (t.h * t.w)
    to, columns = operands(*launch.views)
    numbers = consts(0, out.numel, planes, planes, 0)
    arrays = to, columns, columns
    step = flat_step(gathered, out.numel, *arrays, *numbers, *geometry(_shape(t, planes)))
    return CudaLaunch(launch.outputs, (step,))
