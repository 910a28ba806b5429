"""The base of normalizing layers: a weight of ones and a bias of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.nn.module import Module
from flowvm.nn.parameter import Parameter

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


class Affine(Module):
    """A module with an optional weight of ones and an optional bias of zeros."""

    weight: Parameter | None
    bias: Parameter | None

    def _make(
        self,
        shape: Sequence[int],
        weight: bool,
        bias: bool,
        device: Device | str | None,
        dtype: DType | None,
    ) -> None:
        for name, exists in (("weight", weight), ("bias", bias)):
            empty = ops.empty(tuple(shape), device=device, dtype=dtype) if exists else None
            self.register_parameter(name, None if empty is None else Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight to ones, bias to zeros."""
        with no_grad():
            if self.weight is not None:
                self.weight.fill_(1)
            if self.bias is not None:
                self.bias.zero_()
