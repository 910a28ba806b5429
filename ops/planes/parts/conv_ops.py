"""The three ops of all convolutions; they are each other's gradients.

_conv         output from input and weight
_conv_input   input's gradient from output's and weight: the transposed convolution
_conv_weight  weight's gradient from output's and input

The bias's gradient is a sum.  Which way each goes is chosen in `conv_ways`; of strips, what does
not fit into an arena goes row by row (`conv_plain`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.eager.tensor import Tensor
from flowvm.launch import Launch, View, elsewhere
from flowvm.loading.lazy import lazy
from flowvm.meta.device import cpu
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cpu.stand_in import WORD
from flowvm.ops.declare.registry import op
from flowvm.ops.planes.cpu.conv_depthwise import (
    depthwise_body,
    depthwise_input_body,
    depthwise_weight_body,
    with_addresses,
)
from flowvm.ops.planes.cpu.conv_plain import plain_back_body, plain_body, plain_weight_body
from flowvm.ops.planes.cpu.conv_plan import (
    DEPTHWISE,
    PRODUCT,
    STRIPS,
    TURNING,
    WINDOWS,
    WINOGRAD,
    Shape,
    Triple,
    shifts_of,
    strips_of,
    taps_of,
    three_of,
    tiles_of,
)
from flowvm.ops.planes.cpu.conv_short import sums_body
from flowvm.ops.planes.cpu.conv_strips import strips_body
from flowvm.ops.planes.cpu.conv_weight import weight_body
from flowvm.ops.planes.cpu.conv_windows import pixels_body, taps_body, windows_body
from flowvm.ops.planes.cpu.depthwise_plan import Depthwise, segments_of
from flowvm.ops.planes.cpu.windows_plan import (
    FORWARD,
    INPUT,
    TURNED,
    WEIGHT,
    WindowsLaunch,
    with_functions,
)
from flowvm.ops.planes.parts import plane_checks
from flowvm.ops.planes.parts.plane_letters import conv_weight, convolved
from flowvm.ops.products.cpu.gemm import stacked
from flowvm.ops.products.cpu.gemm_kernels import turned_body
from flowvm.ops.products.cpu.gemm_plan import Product

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.ops.planes.cpu import (
        conv_ways,
        conv_winograd,
        pixel_weights,
        pixel_weights_plan,
        winograd_plan,
        winograd_weights,
    )
else:  # for the first convolution only
    conv_ways = lazy("flowvm.ops.planes.cpu.conv_ways")
    conv_winograd = lazy("flowvm.ops.planes.cpu.conv_winograd")
    pixel_weights = lazy("flowvm.ops.planes.cpu.pixel_weights")
    winograd_weights = lazy("flowvm.ops.planes.cpu.winograd_weights")


Views = tuple[View, ...]
MOST = 1 << 21  # bytes of an arena
FEW = 1 << 19  # products, which take the short body 2.4 ms
# They take it 0.15 s, a tenth of what the kernel takes to compile; once it is there they are quick.
SHORT = 1 << 25
GAIN = 2.0  # times quicker than strips that another way must be where these have a short body


class How(NamedTuple):
    """stride, padding in front and dilation in each dimension of space, and groups: the attribute
    of the ops.
    """

    stride: Triple
    padding: Triple
    dilation: Triple
    groups: int


def _shape(input: Sequence[int], weight: Sequence[int], out: Sequence[int], how: How) -> Shape:
    return Shape(
        input[0], weight[1], weight[0] // how.groups, how.groups, three_of(input[2:], 1),
        three_of(out, 1), three_of(weight[2:], 1), how.stride, how.padding, how.dilation,
    )  # fmt: skip


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _strips(
    out: TensorMeta, shape: Shape, back: bool, x: TensorMeta, weight: TensorMeta,
    bias: TensorMeta | None = None,
) -> Launch:  # fmt: skip
    """A convolution or, if `back`, its input's gradient."""
    if out.device is not cpu:
        return elsewhere((out,), shape)
    plus = View.optional(None if bias is None else View(bias.dtype, (bias.numel,)), out.dtype)
    views, size = (*_flat(out, x, weight), plus), out.dtype.itemsize
    plan = strips_of(shape, out.dtype.name, back)
    arena = plan.spots + plan.arena * size
    if arena > MOST:
        plain = plain_back_body if back else plain_body
        return Launch((out,), plain, views, (shape.flat,), math.prod(out.shape[:2]))
    few = plan.products <= FEW
    short = plan.products <= SHORT
    if plan.products > (FEW // 16 if shape.channels == shape.outputs == 1 else FEW // 4):
        gain = GAIN if few else 1.0
        other = _other_way(out, shape, INPUT if back else FORWARD, views, gain)
        if other is not None:
            return other
    return Launch(
        (out,),
        strips_body,
        views,
        (plan, taps_of(plan)),
        plan.panels,
        plan.panel_grain,
        plan.table + plan.weights * size + (WORD if short else 0),
        phases=((plan.units, plan.grain),),
        arena=arena,
        stand_in=sums_body if short else None,
    )


def _other_way(
    out: TensorMeta, s: Shape, direction: int, views: Views, gain: float = 1.0
) -> Launch | None:
    """A direction by the quickest way; None if that is strips, than which the others must be `gain`
    times quicker.
    """
    way, plan = conv_ways.best_way(s, out.dtype.name, direction, gain)
    if way == STRIPS:
        return None
    return _LAUNCHES[way, direction == WEIGHT](out, s, direction, views, plan)


def _windows(
    out: TensorMeta, s: Shape, direction: int, views: Views, windows: WindowsLaunch
) -> Launch:
    """A direction by windows."""
    bodies: dict[int, Any] = {
        FORWARD: windows_body, TURNED: windows_body, INPUT: pixels_body, WEIGHT: taps_body,
    }  # fmt: skip
    (first, grain), *more = windows.phases
    plan = with_functions(windows.plan, out.dtype.name, direction)
    return Launch(
        (out,), bodies[direction], views, (plan,), first, grain, windows.scratch,
        phases=tuple(more), arena=windows.arena,
    )  # fmt: skip


def _turned(
    out: TensorMeta, s: Shape, direction: int, views: Views, windows: WindowsLaunch
) -> Launch:
    """The gradient by the input by windows of the output's and turned weights."""
    return _windows(out, s, TURNED, views, windows)


def _winograd(
    out: TensorMeta, s: Shape, direction: int, views: Views, plan: winograd_plan.Winograd
) -> Launch:
    """A convolution or its input's gradient by Winograd's way."""
    tiles = conv_winograd.with_transforms(plan, out.dtype.name)
    return Launch(
        (out,), conv_winograd.winograd_body, views, (tiles,), *tiles.first, tiles.scratch,
        phases=(tiles.second,), arena=tiles.arena,
    )  # fmt: skip


def _winograd_weights(
    out: TensorMeta, s: Shape, direction: int, views: Views, plan: winograd_plan.WinogradWeights
) -> Launch:
    """The weight's gradient by Winograd's way."""
    kernels = winograd_weights.with_kernels(plan, out.dtype.name)
    body = winograd_weights.winograd_weights_body
    return Launch((out,), body, views, (kernels,), kernels.units, arena=kernels.arena)


def _pixel_weights(
    out: TensorMeta, s: Shape, direction: int, views: Views, plan: pixel_weights_plan.PixelWeights
) -> Launch:
    """The weight's gradient of a convolution of single pixels, as a product of rows."""
    product = pixel_weights.with_tiles(plan, out.dtype.name)
    return Launch(
        (out,), pixel_weights.pixel_weights_body, views, (product,), *product.first,
        product.scratch, phases=(product.second,), arena=product.arena,
    )  # fmt: skip


def _side_by_side(
    out: TensorMeta, s: Shape, direction: int, views: Views, depthwise: Depthwise
) -> Launch:
    """A direction of a depthwise convolution with its channels side by side."""
    plan = with_addresses(depthwise, out.dtype.name)
    bodies: dict[int, Any] = {
        FORWARD: depthwise_body, INPUT: depthwise_input_body, WEIGHT: depthwise_weight_body,
    }  # fmt: skip
    each = plan.samples if direction == WEIGHT else 1  # samples of a unit
    return Launch(
        (out,), bodies[direction], views, (plan, segments_of(s, plan.lanes, direction == INPUT)),
        plan.blocks * plan.samples // each, max(1, plan.grain // each), arena=plan.arena,
    )  # fmt: skip


def _pixels(out: TensorMeta, s: Shape, direction: int, views: Views, plan: None) -> Launch:
    """A convolution of single pixels, or its input's gradient: weight times the pixels' matrix."""
    places, rows, depth = math.prod(s.output), s.outputs, s.channels
    steps = depth, 1
    if direction == INPUT:
        rows, depth, steps = depth, rows, (1, depth)
    p = Product(rows, places, depth, *steps, places, 1)
    stack = [
        (s.samples, 0, s.groups * depth * places, 0),
        (s.groups, rows * depth, depth * places, rows),
    ]
    own, x, weight, bias = views
    launch = stacked(out, [own, weight, x, bias], p, stack, bool(bias.given))
    return replace(launch, body=turned_body, views=(own, x, weight, launch.views[3]))


# by the way, and whether it is the gradient by the weight
_LAUNCHES: dict[tuple[int, bool], Callable[..., Launch]] = {
    (WINDOWS, False): _windows,
    (WINDOWS, True): _windows,
    (TURNING, False): _turned,
    (PRODUCT, False): _pixels,
    (PRODUCT, True): _pixel_weights,
    (DEPTHWISE, False): _side_by_side,
    (DEPTHWISE, True): _side_by_side,
    (WINOGRAD, False): _winograd,
    (WINOGRAD, True): _winograd_weights,
}


def _conv_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = c.saved
    how, _ = c.attrs
    return (
        _conv_input(g, weight, how, tuple(c.metas[0].shape)) if c.needs[0] else None,
        _conv_weight(g, x, how, tuple(c.metas[1].shape)) if c.needs[1] else None,
    )


def _conv_bias_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    return (*_conv_grad(c, g), _over_places(g) if c.needs[2] else None)


def _over_places(g: Tensor) -> Tensor:
    """The gradient of a bias."""
    total: Tensor = g.sum([d for d in range(g.ndim) if d != 1])
    return total


@op(
    "input, weight -> out", name="conv", saves="input, weight", grad=_conv_grad, half="cuda",
    cuda="conv:conv", letters=convolved(back=False), amp="half", takes=plane_checks.conv,
)  # fmt: skip
def _conv(input: TensorMeta, weight: TensorMeta, how: How, size: tuple[int, ...]) -> Launch:
    s = _shape(input.shape, weight.shape, size, how)
    out = input.with_shape((input.shape[0], weight.shape[0], *size))
    return _strips(out, s, False, input, weight)


@op(
    "input, weight, bias -> out", name="conv", saves="input, weight", grad=_conv_bias_grad,
    half="cuda", cuda="conv:conv",
    letters=convolved(back=False), amp="half",
    takes=plane_checks.conv,
)  # fmt: skip
def _conv_bias(
    input: TensorMeta, weight: TensorMeta, bias: TensorMeta, how: How, size: tuple[int, ...]
) -> Launch:
    s = _shape(input.shape, weight.shape, size, how)
    out = input.with_shape((input.shape[0], weight.shape[0], *size))
    return _strips(out, s, False, input, weight, bias)


def _conv_input_grad(c: Node, v: Tensor) -> tuple[Tensor | None, ...]:
    g, weight = c.saved
    how, _ = c.attrs
    size = tuple(c.metas[0].shape[2:])
    return (
        _conv(v, weight, how, size) if c.needs[0] else None,
        _conv_weight(g, v, how, tuple(c.metas[1].shape)) if c.needs[1] else None,
    )


def _conv_input_bias_grad(c: Node, v: Tensor) -> tuple[Tensor | None, ...]:
    return (*_conv_input_grad(c, v), _over_places(v) if c.needs[2] else None)


@op(
    "g, weight -> out", name="conv_input", saves="g, weight", grad=_conv_input_grad,
    half="cuda", cuda="conv:conv_input",
    letters=convolved(back=True), amp="half", shaped="shape",
    takes=plane_checks.conv_input,
)  # fmt: skip
def _conv_input(g: TensorMeta, weight: TensorMeta, how: How, shape: tuple[int, ...]) -> Launch:
    """The gradient of a convolution's input, which has `shape`."""
    s = _shape(shape, weight.shape, g.shape[2:], how)
    return _strips(g.with_shape(shape), s, True, g, weight)


@op(
    "g, weight, bias -> out", name="conv_input", saves="g, weight", grad=_conv_input_bias_grad,
    half="cuda", cuda="conv:conv_input",
    letters=convolved(back=True), amp="half", shaped="shape",
    takes=plane_checks.conv_input,
)  # fmt: skip
def _conv_input_bias(
    g: TensorMeta, weight: TensorMeta, bias: TensorMeta, how: How, shape: tuple[int, ...]
) -> Launch:
    """_conv_input with a number added to each channel."""
    s = _shape(shape, weight.shape, g.shape[2:], how)
    return _strips(g.with_shape(shape), s, True, g, weight, bias)


def _conv_weight_grad(c: Node, v: Tensor) -> tuple[Tensor | None, ...]:
    g, x = c.saved
    how, _ = c.attrs
    return (
        _conv(x, v, how, tuple(c.metas[0].shape[2:])) if c.needs[0] else None,
        _conv_input(g, v, how, tuple(c.metas[1].shape)) if c.needs[1] else None,
    )


@op(
    "g, input -> out", name="conv_weight", saves="g, input", grad=_conv_weight_grad,
    half="cuda", cuda="conv:conv_weight",
    letters=conv_weight, shaped="shape",
    takes=plane_checks.conv_weight,
)  # fmt: skip
def _conv_weight(g: TensorMeta, input: TensorMeta, how: How, shape: tuple[int, ...]) -> Launch:
    """The gradient of a convolution's weight, which has `shape`."""
    out = g.with_shape(shape)
    size = g.dtype.itemsize
    s = _shape(input.shape, shape, g.shape[2:], how)
    if out.device is not cpu:
        return elsewhere((out,), s)
    other = _other_way(out, s, WEIGHT, _flat(out, g, input))
    if other is not None:
        return other
    plan = tiles_of(s, g.dtype.name)
    arena = plan.table + plan.arena * size
    if arena > MOST:
        return Launch((out,), plain_weight_body, _flat(out, g, input), (s.flat,), shape[0])
    return Launch(
        (out,),
        weight_body,
        _flat(out, g, input),
        (plan, shifts_of(plan)),
        plan.units,
        plan.grain,
        max(8, plan.partial * size),
        phases=((plan.units // plan.parts, 1),),
        arena=arena,
    )
