"""Quantization-aware training under OneFlow's names: observers find scale and zero point of a
tensor, and FakeQuantization rounds it to that grid.

All are compositions in float32; there are no integer kernels.  `quantization_formula` "google" has
any scale; "cambricon" has powers of two, by their exponents.  "symmetric" counts from
-(2^(bits - 1) - 1), "affine" from 0.  Gradients pass rounding as if it were not there.
"""

from __future__ import annotations

from typing import Any

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import int64
from flowvm.nn.module import Module
from flowvm.nn.modules.conv import Conv1d, Conv2d, Conv3d

# public: nn (late)


class _Grid(Module):
    """A module that knows the grid of integers: its formula, bits, and scheme."""

    def __init__(
        self,
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
    ) -> None:
        super().__init__()
        formula, bit, scheme = quantization_formula, quantization_bit, quantization_scheme
        what = type(self).__name__
        if formula not in ("google", "cambricon"):
            raise ArgumentError(
                f"{what}: quantization_formula is 'google' or 'cambricon', got {formula!r}"
            )
        if scheme not in ("symmetric", "affine"):
            raise ArgumentError(
                f"{what}: quantization_scheme is 'symmetric' or 'affine', got {scheme!r}"
            )
        if not 2 <= bit <= 8:
            raise ArgumentError(f"{what}: quantization_bit is from 2 to 8, got {bit}")
        self.quantization_formula, self.quantization_bit = formula, bit
        self.quantization_scheme = scheme

    @property
    def _signed(self) -> bool:
        return self.quantization_scheme == "symmetric" or self.quantization_formula == "cambricon"

    @property
    def _ends(self) -> tuple[float, float]:
        top = 2.0 ** (self.quantization_bit - self._signed) - 1
        return (-top if self._signed else 0.0), top

    def _scale_and_zero(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and zero point of numbers from `low` to `high`."""
        if self.quantization_formula == "cambricon":
            most = ops.maximum(low.abs(), high.abs())
            exponent = ops.floor(ops.log2(most)) - (self.quantization_bit - 2)
            return exponent, ops.zeros_like(exponent)
        top = self._ends[1]
        if self._signed:
            scale = ops.maximum(low.abs(), high.abs()) / top
            return scale, ops.zeros_like(scale)
        scale = (high - low) / top
        return scale, -ops.round(low / scale)

    def _rounded(
        self, x: Tensor, scale: Tensor, zero_point: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The integers of `x`, and the scale and zero point of each element."""
        if self.quantization_formula == "cambricon":
            scale = ops.exp2(scale)
        if scale.numel() > 1:  # one for each slice along dimension 0
            shape = (-1, *(1,) * (x.ndim - 1))
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        return ops.round(x / scale + zero_point).clamp(*self._ends), scale, zero_point


class MinMaxObserver(_Grid):
    """Scale and zero point of a tensor by its least and largest number: of all of it, each of shape
    (1,), or without `per_layer_quantization` of each slice along dimension 0.

    >>> scale, zero = nn.MinMaxObserver()(flow.tensor([[127.0, -1.0], [2.0, 3.0]]))
    >>> scale, zero
    (tensor([1.]), tensor([0.]))
    """

    def __init__(
        self,
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
        per_layer_quantization: bool = True,
    ) -> None:
        super().__init__(quantization_formula, quantization_bit, quantization_scheme)
        self.per_layer_quantization = per_layer_quantization

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        whole = self.per_layer_quantization or self.quantization_formula == "cambricon"
        rows = input.detach().reshape((1 if whole else input.shape[0], -1))
        return self._scale_and_zero(ops.amin(rows, 1), ops.amax(rows, 1))


class MovingAverageMinMaxObserver(_Grid):
    """Scale and zero point, each of shape (1,), by moving averages of the least and the largest
    number of what it was called with: `moving_min` and `moving_max`.

    In training they change while the step that it is called with, an int or a tensor of one, is at
    most `stop_update_after_iters`.

    >>> observer = nn.MovingAverageMinMaxObserver(momentum=0.5)
    >>> for value in (127.0, 63.5):
    ...     scale, _ = observer(flow.tensor([value]), flow.tensor([0]))
    >>> scale
    tensor([0.7500])
    """

    moving_max: Tensor
    moving_min: Tensor

    def __init__(
        self,
        stop_update_after_iters: int = 1,
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
        momentum: float = 0.95,
    ) -> None:
        super().__init__(quantization_formula, quantization_bit, quantization_scheme)
        self.stop_update_after_iters, self.momentum = stop_update_after_iters, momentum
        self.register_buffer("moving_max", ops.zeros(1))
        self.register_buffer("moving_min", ops.zeros(1))

    def reset_running_stats(self) -> None:
        """Forget the averages."""
        self.moving_max.zero_()
        self.moving_min.zero_()

    def forward(self, input: Tensor, current_train_step: Any) -> tuple[Tensor, Tensor]:
        if self.training:
            with no_grad():
                self._update(input.detach(), current_train_step)
        return self._scale_and_zero(self.moving_min, self.moving_max)

    def _update(self, x: Tensor, step: object) -> None:
        high, low = ops.amax(x), ops.amin(x)
        if self._signed:
            high = low = ops.maximum(high.abs(), low.abs())
        open_ = ops.as_tensor(step).reshape(-1)[:1] <= self.stop_update_after_iters
        for average, new in ((self.moving_max, high), (self.moving_min, low)):
            mean = average * self.momentum + new * (1.0 - self.momentum)
            average.copy_(ops.where(open_, ops.where(average.eq(0), new, mean), average))


class FakeQuantization(_Grid):
    """A tensor rounded to the grid of `scale` and `zero_point`, in its own dtype.

    >>> x = flow.tensor([0.4, 1.6, 500.0])
    >>> nn.FakeQuantization()(x, flow.tensor([1.0]), flow.tensor([0.0]))
    tensor([  0.,   2., 127.])
    """

    def forward(self, input: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        with no_grad():
            whole, each, zero = self._rounded(input.detach(), scale, zero_point)
            lost = (whole - zero) * each - input.detach()
        out: Tensor = input + lost
        return out


class Quantization(_Grid):
    """The integers that a tensor is on the grid of `scale` and `zero_point`, as floats: those of
    the affine scheme begin with 0.

    >>> x = flow.tensor([0.4, 3.2, 500.0])
    >>> nn.Quantization()(x, flow.tensor([2.0]), flow.tensor([0.0]))
    tensor([  0.,   2., 127.])
    """

    def forward(self, input: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        return self._rounded(input, scale, zero_point)[0]


class _Aware:
    """A convolution whose input and weight are rounded, the input by moving averages."""

    def __init__(
        self,
        *args: object,
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
        weight_quant_per_layer: bool = True,
        input_quant_momentum: float = 0.95,
        **options: object,
    ) -> None:
        super().__init__(*args, **options)
        grid = (quantization_formula, quantization_bit, quantization_scheme)
        self.input_min_max_observer = MovingAverageMinMaxObserver(1, *grid, input_quant_momentum)
        self.weight_min_max_observer = MinMaxObserver(*grid, weight_quant_per_layer)
        self.fake_quantizer = FakeQuantization(*grid)
        self.register_buffer("current_train_step", ops.zeros(1, dtype=int64))  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self
        scales = own.input_min_max_observer(x, own.current_train_step)
        if own.training:
            own.current_train_step.add_(1)
        weight = own.fake_quantizer(own.weight, *own.weight_min_max_observer(own.weight))
        x = own.fake_quantizer(x, *scales)
        out: Tensor = own._conv_forward(x, weight, own.bias)
        return out


class QatConv1d(_Aware, Conv1d):
    """Conv1d for quantization-aware training: input and weight are rounded by FakeQuantization.

    >>> nn.QatConv1d(2, 4, 3)(flow.randn(1, 2, 8)).shape
    flow.Size([1, 4, 6])
    """


class QatConv2d(_Aware, Conv2d):
    """Conv2d for quantization-aware training: input and weight are rounded by FakeQuantization.

    >>> nn.QatConv2d(2, 4, 3, quantization_bit=4)(flow.randn(1, 2, 8, 8)).shape
    flow.Size([1, 4, 6, 6])
    """


class QatConv3d(_Aware, Conv3d):
    """Conv3d for quantization-aware training: input and weight are rounded by FakeQuantization.

    >>> nn.QatConv3d(1, 2, 2)(flow.randn(1, 1, 3, 3, 3)).shape
    flow.Size([1, 2, 2, 2, 2])
    """
