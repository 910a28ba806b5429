"""Layers that learn the size of their input from the first one they see.

Until then their parameters are uninitialized; then they become the layer whose name is theirs
without Lazy.  A state dict that is loaded first says the sizes as well.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.guards.forks import Rank, held_at_fork
from flowvm.meta.dtype import int64
from flowvm.nn.module import Module
from flowvm.nn.modules._check import Ints
from flowvm.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d, _NormBase
from flowvm.nn.modules.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    _ConvNd,
    _Forward,
    _Transposed,
)
from flowvm.nn.modules.instancenorm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from flowvm.nn.modules.layer import Dimensional
from flowvm.nn.modules.linear import Linear
from flowvm.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from flowvm.ops import zeros

# public: nn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


_initializing = held_at_fork(threading.RLock(), Rank.MODULE)


# not public
class LazyModuleMixin(Module):
    """Base of lazy layers: the first call gives its arguments to `initialize_parameters`; then the
    layer becomes a `cls_to_become`, if there is one.
    """

    cls_to_become: type[Module] | None = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._load_hook = self._register_load_state_dict_pre_hook(self._lazy_load_hook)
        self._initialize_hook = self.register_forward_pre_hook(_infer_parameters, with_kwargs=True)

    def _lazy_load_hook(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, tensor in [*self._parameters.items(), *self._buffers.items()]:
            value = state_dict.get(prefix + name)
            if is_lazy(tensor) and value is not None and not is_lazy(value):
                with no_grad():
                    tensor.materialize(value.shape)

    def _save_to_state_dict(
        self, destination: dict[str, object], prefix: str, keep_vars: bool
    ) -> None:
        for name, tensor in [*self._parameters.items(), *self._buffers.items()]:
            if tensor is not None and name not in self._transient:
                whole = keep_vars or is_lazy(tensor)
                destination[prefix + name] = tensor if whole else tensor.detach()

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Materialize the parameters and buffers for these arguments; a subclass has it."""
        raise NotImplementedError(f"{type(self).__name__} has no initialize_parameters")

    def has_uninitialized_params(self) -> bool:
        """Return True if a parameter or buffer of this module has no shape yet."""
        return any(map(is_lazy, [*self._parameters.values(), *self._buffers.values()]))


def _infer_parameters(
    module: LazyModuleMixin, args: tuple[object, ...], kwargs: Mapping[str, object] | None = None
) -> None:
    with _initializing:
        if "_initialize_hook" not in vars(module):
            return  # another thread's first call has done it
        module.initialize_parameters(*args, **(kwargs or {}))
        if module.has_uninitialized_params():
            raise RuntimeError(
                f"{type(module).__name__}.initialize_parameters has left parameters uninitialized"
            )
        module._initialize_hook.remove()
        module._load_hook.remove()
        become: Any = module.cls_to_become
        if become is not None:
            module.__class__ = become
        del module._initialize_hook, module._load_hook


class LazyLinear(LazyModuleMixin, Linear):
    """Linear whose in_features is the last size of its first input."""

    cls_to_become = Linear

    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(0, 0, False)
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        self.out_features = out_features
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw new weights, where there are any."""
        if not self.has_uninitialized_params() and self.in_features != 0:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        """Materialize for this input."""
        if not self.has_uninitialized_params():
            self.in_features = self.in_features or self.weight.shape[1]
            return
        self.in_features = input.shape[-1]
        _materialize(self.weight, (self.out_features, self.in_features))
        _materialize(self.bias, (self.out_features,))
        self.reset_parameters()


def _materialize(tensor: Any, shape: tuple[int, ...]) -> None:
    if is_lazy(tensor):
        with no_grad():
            tensor.materialize(shape)


class _LazyNd(LazyModuleMixin, Dimensional):
    """A lazy layer of one, two or three dimensions becomes the last of its class's bases."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.__module__ == __name__ and cls.__name__.startswith("Lazy"):
            cls.cls_to_become = cls.__bases__[-1]


class _LazyConv(_LazyNd, _ConvNd):
    """Base of lazy convolutions."""

    _text = """{name}, whose in_channels are those of its first input.

    >>> layer = nn.{name}(8, 2)
    >>> _ = layer(flow.ones(1, 3, {fours}))
    >>> layer.in_channels
    3
    """

    def _empty(
        self, out_channels: int, bias: bool, device: Device | str | None, dtype: DType | None
    ) -> None:
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        self.out_channels = out_channels
        if out_channels % self.groups:
            raise ArgumentError(
                f"{type(self).__name__}: out_channels={out_channels} must be divisible by "
                f"groups={self.groups}"
            )
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw new weights, where there are any."""
        if not self.has_uninitialized_params() and self.in_channels != 0:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor, *args: object, **kwargs: object) -> None:
        """Materialize for this input."""
        n = len(self.kernel_size)
        if not self.has_uninitialized_params():
            if self.in_channels == 0:
                shape = self.weight.shape
                self.in_channels = shape[0] if self.transposed else shape[1] * self.groups
            return
        if input.ndim not in (n + 1, n + 2):
            raise ShapeError(
                f"{type(self).__name__}: input has {n + 1} or {n + 2} dimensions, got shape "
                f"{tuple(input.shape)}"
            )
        self.in_channels = input.shape[-n - 1]
        if self.in_channels % self.groups:
            raise ArgumentError(
                f"{type(self).__name__}: in_channels={self.in_channels} must be divisible by "
                f"groups={self.groups}"
            )
        _materialize(self.weight, self._weight_shape())
        _materialize(self.bias, (self.out_channels,))
        self.reset_parameters()


class _LazyForward(_LazyConv, _Forward):
    """A lazy convolution, over any dimensions."""

    def __init__(
        self,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints | str = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode)
        self._empty(out_channels, bias, device, dtype)


class _LazyTransposed(_LazyConv, _Transposed):
    """A lazy transposed convolution, over any dimensions."""

    def __init__(
        self,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Ints = 1,
        padding_mode: str = "zeros",
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation,
            padding_mode,
        )  # fmt: skip
        self._empty(out_channels, bias, device, dtype)


class LazyConv1d(_LazyForward, Conv1d): ...


class LazyConv2d(_LazyForward, Conv2d): ...


class LazyConv3d(_LazyForward, Conv3d): ...


class LazyConvTranspose1d(_LazyTransposed, ConvTranspose1d): ...


class LazyConvTranspose2d(_LazyTransposed, ConvTranspose2d): ...


class LazyConvTranspose3d(_LazyTransposed, ConvTranspose3d): ...


class _LazyNorm(_LazyNd, _NormBase):
    """Base of the lazy batch and instance norms."""

    _text = """{name}, whose num_features are the channels of its first input.

    >>> layer = nn.{name}(affine=True)
    >>> _ = layer(flow.ones(4, 3, {twos}))
    >>> layer.num_features
    3
    """

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(0, eps, momentum, False, False)
        self.affine, self.track_running_stats = affine, track_running_stats
        if self.affine:
            self.weight = UninitializedParameter(device=device, dtype=dtype)
            if bias:
                self.bias = UninitializedParameter(device=device, dtype=dtype)
        if self.track_running_stats:
            self.running_mean = UninitializedBuffer(device=device, dtype=dtype)
            self.running_var = UninitializedBuffer(device=device, dtype=dtype)
            self.num_batches_tracked = zeros((), dtype=int64, device=device)

    def reset_parameters(self) -> None:
        """Ones and zeros, where there are any."""
        if not self.has_uninitialized_params() and self.num_features != 0:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        """Materialize for this input."""
        held = (self.weight, self.bias, self.running_mean, self.running_var)
        if not self.has_uninitialized_params():
            known = [t.shape[0] for t in held if t is not None]
            self.num_features = self.num_features or (known[0] if known else input.shape[1])
            return
        self.num_features = input.shape[1]
        for tensor in held:
            _materialize(tensor, (self.num_features,))
        self.reset_parameters()


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d): ...


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d): ...


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d): ...


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d): ...


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d): ...


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d): ...
