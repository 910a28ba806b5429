"""The rules of `unfold` and `fold`: the kernels with which convolutions make and add up windows,
for planes instead of samples of channels.
"""

from __future__ import annotations

from flowvm.cuda.launch import CudaLaunch
from flowvm.launch import Launch
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import consts, flat_step, operands
from flowvm.ops.planes.cpu.conv_plan import Shape
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.cuda.conv import windows_step
from flowvm.ops.planes.cuda.conv_kernels import Columns, gathered
from flowvm.ops.products.cuda.gemm import Place


def _shape(t: Windows, planes: int) -> Shape:
    return Shape(
        1, planes, 1, 1, (1, t.h, t.w), (1, t.oh, t.ow), (1, t.kh, t.kw), (1, t.sh, t.sw),
        (0, t.ph, t.pw), (1, t.dh, t.dw),
    )  # fmt: skip


def unfold(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """Patches as columns."""
    (out,), (t,), kind = launch.outputs, attrs, launch.views[0].dtype
    if not out.numel:
        return CudaLaunch(launch.outputs, ())
    planes, count = metas[0].numel // (t.h * t.w), t.oh * t.ow
    part = Columns(0, count, count, 0)
    step = windows_step(_shape(t, planes), Place(kind, 0), Place(kind, 1), 1, part)
    return CudaLaunch(launch.outputs, (step,))


def fold(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """Columns of patches added up."""
    (out,), (t,) = launch.outputs, attrs
    if not out.numel:
        return CudaLaunch(launch.outputs, ())
    planes = out.numel // (t.h * t.w)
    to, columns = operands(*launch.views)
    nothing = Place(out.dtype, 0).array(0)
    numbers = consts(_shape(t, planes).flat, out.numel, planes, 0)
    step = flat_step(gathered, out.numel, to, columns, nothing, *numbers)
    return CudaLaunch(launch.outputs, (step,))
