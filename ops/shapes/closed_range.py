"""`range`: evenly spaced numbers with the last one among them.

In a file of its own because its name is that of Python's loops, which kernels are made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.meta.device import as_device
from flowvm.meta.dtype import float64
from flowvm.meta.formats import accept
from flowvm.ops.declare.outputs import dtype_for
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.shapes.fill import dtype_or, finished
from flowvm.ops.shapes.ranges import Scalar, number_of, ramped

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


# public: flow
def range(
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
    """The numbers from `start` to `end`, which is included, `step` apart, in the default dtype
    unless another is given.  PyTorch wants `arange` used instead; so do we.

    >>> flow.range(1, 2, 0.5)
    tensor([1.0000, 1.5000, 2.0000])
    """
    accept("range", options)
    place, dtype = as_device(device), dtype_or(dtype_for("range", out, dtype))
    if end is None:
        start, end = 0, start
    first, last, by = (number_of("range", n) for n in (start, end, step))
    if by == 0 or (last - first) * by < 0:
        raise ArgumentError(f"range: from {first} to {last} with step {by} never arrives")
    n = int((last - first) / by) + 1
    compute = dtype if dtype.is_floating_point else float64
    ramp = ramped(n, n, first, last, by, compute, place)
    return finished(ramp.to(dtype), requires_grad, out, "range")


samples(
    range,
    lambda rng: [Sample((0, 4)), Sample((1.0, 2.0, 0.25)), Sample((3, -1, -2))],
    lambda start, end, step=1: np.arange(start, end + step / 2, step),
    grad=False,
    errors=(
        (lambda flow: flow.range(0, 3, 0), ValueError),
        (lambda flow: flow.range(3, 0), ValueError),
    ),
)
