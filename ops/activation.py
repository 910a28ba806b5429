"""Activation functions: elementwise ops and a few functions of them, under PyTorch's names.

Gradients that have kinks are ops of their own (`_relu_backward`, ...), so that backward is one instruction, and they have
gradients in turn.  Parameters such as a slope are dynamic scalars: another value is not another kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from flowvm.errors import ArgumentError, ShapeError
from flowvm.ops.elementwise import Elementwise, elementwise
from flowvm.ops.registry import Sample, samples
from flowvm.tensor import Tensor, method

_relu_backward = elementwise(
    "relu_backward",
    "0 if y <= 0 else x",
    args="x, y",
    saves="y",
    grad=lambda c, g: (_relu_backward.call(g, c.saved[0]), None),
)
_relu = elementwise(
    "relu",
    "maximum(x, 0)",
    saves="x",  # the output would do too, but saving an output costs a shared storage
    grad=lambda c, g: (_relu_backward.call(g, c.saved[0]),),
)


@method()
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    out: Tensor = _relu.into(input, input) if inplace else _relu.call(input)
    return out
