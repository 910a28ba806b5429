"""Evenly spaced numbers: arange, linspace, logspace."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.global_calls import elsewhere, takes_placement
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError
from flowvm.launch import GRAIN, Launch
from flowvm.meta.arrays import Array
from flowvm.meta.device import Device, as_device
from flowvm.meta.dtype import DType, complex128, complex_of, float64, get_default_dtype, int64
from flowvm.meta.formats import accept
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.core import cast
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.outputs import dtype_for
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.shapes.complex_parts import complex as of_parts
from flowvm.ops.shapes.fill import dtype_or, finished

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


Scalar = bool | int | float
Number = Scalar | complex


# --- kernels ----------------------------------------------------------------------------------


def _count_body(out: Array, start: int, step: int, lo: int, hi: int) -> None:
    y = out[lo:hi]
    for k in range(hi - lo):
        y[k] = start + (lo + k) * step


@op(" -> out", name="arange", scalars="start: int, step: int", letters=unsplit)
def _count(n: Count, dtype: DType, device: Device) -> Launch:
    return Launch((TensorMeta.of((n,), dtype, device),), _count_body, units=n, grain=GRAIN)


def _ramp_body(
    out: Array, middle: int, start: float, end: float, step: float, lo: int, hi: int
) -> None:
    last, y = len(out) - 1, out[lo:hi]
    for k in range(hi - lo):
        i = lo + k
        y[k] = start + i * step if i < middle else end - (last - i) * step


@op(" -> out", name="linspace", scalars="start: float, end: float, step: float", letters=unsplit)
def _ramp(n: Count, middle: int, dtype: DType, device: Device) -> Launch:
    out = TensorMeta.of((n,), dtype, device)
    return Launch((out,), _ramp_body, consts=(middle,), units=n, grain=GRAIN)


# --- by formula -------------------------------------------------------------------------------


# public: flow
@partial(steady, elsewhere=elsewhere)
@takes_placement
def arange(
    start: Scalar = 0,
    end: Scalar | None = None,
    step: Scalar = 1,
    *,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """The numbers from `start` (0 if only one bound is given) up to, not including, `end`, `step`
    apart.

    int64 when all are ints, else the default dtype.  With an integer dtype, start and step lose
    their fractions first.  ArgumentError if `step` is 0 or leads away from `end`.

    >>> flow.arange(4), flow.arange(1, 3, 0.5)
    (tensor([0, 1, 2, 3]), tensor([1.0000, 1.5000, 2.0000, 2.5000]))
    """
    accept("arange", options)
    place, dtype = as_device(device), dtype_for("arange", out, dtype)
    if end is None:
        start, end = 0, start
    numbers = [number_of("arange", n) for n in (start, end, step)]
    start, end, step = numbers
    whole = all(isinstance(n, int) for n in numbers)
    dtype = dtype_or(dtype, int64 if whole else None)
    if dtype.is_complex:
        raise DTypeError(
            f"arange has no complex numbers, got dtype {dtype.name}; convert with .to()"
        )
    if not all(math.isfinite(n) for n in numbers):
        raise ArgumentError(f"arange: bounds and step must be finite, got {start}, {end}, {step}")
    if dtype is int64 and not whole:  # PyTorch counts in int64 alone, not in narrower integers
        start, end, step = (int(n) for n in numbers)
        whole = True
    if step == 0 or (not dtype.is_floating_point and int(step) == 0):
        raise ArgumentError(f"arange: step must not be 0, got {numbers[2]} as {dtype.name}")
    if (end - start) * (1 if step > 0 else -1) < 0:
        raise ArgumentError(
            f"arange: from {start} to {end} with step {step} never arrives; "
            f"the step's sign is wrong"
        )
    n = -((start - end) // step) if whole else math.ceil((end - start) / step)
    if not dtype.is_floating_point:
        counted: Tensor = _count(int(n), dtype, place, int(start), int(step))
        return finished(counted, requires_grad, out, "arange")
    ramp = ramped(int(n), int(n), start, end, step, dtype, place)
    return finished(ramp, requires_grad, out, "arange")


def number_of(name: str, value: object, also_complex: bool = False) -> Any:
    value = value.item() if isinstance(value, (Tensor, np.generic)) else value
    if also_complex and isinstance(value, complex):
        return value
    if not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}: expected a number, got {type(value).__name__}")
    return int(value) if isinstance(value, bool) else value


def ramped(
    n: int, middle: int, start: Any, end: Any, step: Any, dtype: DType, device: Device
) -> Tensor:
    compute = dtype.compute
    out: Tensor = _ramp(n, middle, compute, device, float(start), float(end), float(step))
    return out if dtype is compute else cast(out, dtype)


# public: flow
@partial(steady, elsewhere=elsewhere)
@takes_placement
def linspace(
    start: Number,
    end: Number,
    steps: int,
    *,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """`steps` numbers from `start` to `end`, both included, evenly apart.

    With an integer dtype, the bounds lose their fractions first, and then the numbers between.
    Complex bounds give complex numbers.

    >>> flow.linspace(0, 1, 5)
    tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    accept("linspace", options)
    place = as_device(device)
    steps = _steps("linspace", steps)
    dtype, first, last = _bounds("linspace", start, end, dtype_for("linspace", out, dtype))
    if dtype.is_complex:
        one, two = complex(first), complex(last)
        parts = [
            linspace(a, b, steps, dtype=dtype.real, device=place)
            for a, b in ((one.real, two.real), (one.imag, two.imag))
        ]
        return finished(of_parts(*parts), requires_grad, out, "linspace")
    step = (last - first) / (steps - 1) if steps > 1 else 0.0
    middle = steps if steps == 1 else steps // 2
    compute = dtype if dtype.is_floating_point else float64
    ramp = ramped(steps, middle, first, last, step, compute, place)
    return finished(ramp.to(dtype), requires_grad, out, "linspace")


# public: flow
@takes_placement
def logspace(
    start: Number,
    end: Number,
    steps: int,
    base: float = 10.0,
    *,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """`base` to the power of `steps` evenly spaced exponents from `start` to `end`, both in.

    With an integer dtype, the bounds lose their fractions first, and then the powers.

    >>> flow.logspace(0, 3, 4)
    tensor([   1.,   10.,  100., 1000.])
    """
    accept("logspace", options)
    dtype, first, last = _bounds("logspace", start, end, dtype_for("logspace", out, dtype))
    wide = complex128 if dtype.is_complex else float64
    exponents = linspace(first, last, steps, dtype=wide, device=device)
    return finished((float(base) ** exponents).to(dtype), requires_grad, out, "logspace")


def _bounds(name: str, start: Any, end: Any, dtype: DTypeLike) -> tuple[DType, Any, Any]:
    """The dtype, which is complex by itself where a bound is, and the bounds as it has them."""
    first, last = number_of(name, start, True), number_of(name, end, True)
    bounds = [n for n in (first, last) if isinstance(n, complex)]
    dtype = dtype_or(dtype, complex_of(get_default_dtype()) if bounds else None)
    if bounds and not dtype.is_complex:
        raise DTypeError(f"{name}: {bounds[0]} is complex and cannot be {dtype.name}")
    return (dtype, first, last) if dtype.inexact else (dtype, int(first), int(last))


def _steps(name: str, steps: int) -> int:
    if not isinstance(steps, (int, np.integer)) or isinstance(steps, bool):
        raise ArgumentTypeError(f"{name}: steps must be an int, got {type(steps).__name__}")
    if steps < 0:
        raise ArgumentError(f"{name}: steps must not be negative, got {steps}")
    return int(steps)


samples(
    arange,
    lambda rng: [Sample((5,)), Sample((1, 9, 3)), Sample((3, 0, -1)), Sample((0.0, 1.0, 0.25))],
    np.arange,
    grad=False,
    errors=(
        (lambda flow: flow.arange(0, 3, 0), ValueError),
        (lambda flow: flow.arange(3, 0), ValueError),
        (lambda flow: flow.linspace(0, 1, -1), ValueError),
    ),
)
samples(
    linspace,
    lambda rng: [Sample((0, 1, 5)), Sample((2.0, -2.0, 4)), Sample((1, 2, 1)), Sample((1, 2, 0))],
    np.linspace,
    grad=False,
)
samples(
    logspace,
    lambda rng: [Sample((0, 2, 3)), Sample((0.0, 3.0, 4, 2.0))],
    lambda start, end, steps, base=10.0: np.logspace(start, end, steps, base=base),
    grad=False,
)
