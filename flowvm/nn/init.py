"""Initialisers: fill a tensor in place, without autograd, and return it.

Names, distributions and defaults are PyTorch's. Each draws from the given generator, or from the
one that flow.manual_seed seeds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.loading.listing import listing, own_names
from flowvm.loading.missing_names import other_names
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import float64

if TYPE_CHECKING:
    from flowvm.ops.random.generator import Generator

_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which weights in front of `nonlinearity` are scaled to keep the variance.

    >>> nn.init.calculate_gain("tanh"), round(nn.init.calculate_gain("relu") ** 2, 6)
    (1.6666666666666667, 2.0)
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ArgumentError(f"negative_slope {slope!r} is not a number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ArgumentError(
            f"Unsupported nonlinearity {nonlinearity!r}; known are leaky_relu, {', '.join(_GAINS)}"
        )
    return _GAINS[nonlinearity]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: object = None) -> Tensor:
    """Draw from U(a, b).

    >>> w = nn.init.uniform_(flow.empty(100), 2.0, 3.0)
    >>> bool(((w >= 2) & (w <= 3)).all())
    True
    """
    with no_grad():
        tensor.uniform_(a, b, generator=generator)
    return tensor


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: object = None
) -> Tensor:
    """Draw from N(mean, std^2).

    >>> nn.init.normal_(flow.empty(3), mean=5.0, std=0.0)
    tensor([5., 5., 5.])
    """
    with no_grad():
        tensor.normal_(mean, std, generator=generator)
    return tensor


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Draw from N(mean, std^2) restricted to [a, b], by inverting its distribution function.

    >>> w = nn.init.trunc_normal_(flow.empty(100))
    >>> bool((w.abs() <= 2).all())
    True
    """
    from scipy.special import ndtr, ndtri  # costs more to import than the rest of this package

    low, high = ndtr((a - mean) / std), ndtr((b - mean) / std)
    uniform = uniform_(
        ops.empty(tuple(tensor.shape), dtype=float64), float(low), float(high), generator
    )
    return _fill(tensor, np.clip(ndtri(uniform.numpy()) * std + mean, a, b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with val.

    >>> nn.init.constant_(flow.empty(2), 7.0)
    tensor([7., 7.])
    """
    with no_grad():
        tensor.fill_(val)
    return tensor


def ones_(tensor: Tensor) -> Tensor:
    """Fill with 1.

    >>> nn.init.ones_(flow.empty(2))
    tensor([1., 1.])
    """
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with 0.

    >>> nn.init.zeros_(flow.empty(2))
    tensor([0., 0.])
    """
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity.

    >>> nn.init.eye_(flow.empty(2, 3))
    tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """
    if tensor.ndim != 2:
        raise ShapeError(f"eye_ needs a 2-D tensor, got shape {tuple(tensor.shape)}")
    return _fill(tensor, np.eye(*tensor.shape))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill a convolution weight so that it passes its input through, group by group.

    >>> weight = nn.init.dirac_(flow.empty(1, 1, 3))
    >>> F.conv1d(flow.tensor([[[1.0, 2.0, 4.0]]]), weight, padding=1)
    tensor([[[1., 2., 4.]]])
    """
    shape = tuple(tensor.shape)
    if not 3 <= len(shape) <= 5:
        raise ShapeError(f"dirac_ needs a 3-D, 4-D or 5-D tensor, got shape {shape}")
    if shape[0] % groups:
        raise ArgumentError(f"dirac_: dimension 0 ({shape[0]}) must be divisible by {groups}")
    values = np.zeros(shape)
    per_group = shape[0] // groups
    centre = tuple(size // 2 for size in shape[2:])
    for group in range(groups):
        for channel in range(min(per_group, shape[1])):
            values[(group * per_group + channel, channel, *centre)] = 1
    return _fill(tensor, values)


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """U(-a, a) with a = gain * sqrt(6 / (fan_in + fan_out)).

    >>> w = nn.init.xavier_uniform_(flow.empty(3, 3))
    >>> bool((w.abs() <= 1).all())  # sqrt(6 / (3 + 3))
    True
    """
    bound = gain * math.sqrt(6.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """N(0, std^2) with std = gain * sqrt(2 / (fan_in + fan_out)).

    >>> nn.init.xavier_normal_(flow.empty(3, 5)).shape
    flow.Size([3, 5])
    """
    return normal_(
        tensor, 0.0, gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))), generator
    )


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """U(-b, b) with b = gain * sqrt(3 / fan).

    >>> w = nn.init.kaiming_uniform_(flow.empty(3, 6), nonlinearity="relu")
    >>> bool((w.abs() <= 1).all())  # sqrt(2) * sqrt(3 / 6)
    True
    """
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """N(0, std^2) with std = gain / sqrt(fan).

    >>> nn.init.kaiming_normal_(flow.empty(3, 5), nonlinearity="relu").shape
    flow.Size([3, 5])
    """
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with gain times a (semi) orthogonal matrix, dimensions after the first taken as one.

    >>> w = nn.init.orthogonal_(flow.empty(2, 3))
    >>> flow.allclose(w @ w.T, flow.eye(2), atol=1e-5)
    True
    """
    if tensor.ndim < 2:
        raise ShapeError(f"orthogonal_ needs 2 or more dimensions, got shape {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    drawn = normal_(ops.empty((rows, columns), dtype=float64), generator=generator).numpy()
    q, r = np.linalg.qr(drawn.T if rows < columns else drawn)
    q = q * np.sign(np.diag(r))  # makes the distribution uniform (Mezzadri, 2007)
    return _fill(tensor, gain * (q.T if rows < columns else q).reshape(tuple(tensor.shape)))


def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None
) -> Tensor:
    """N(0, std^2) with a fraction `sparsity` of each column set to zero.

    >>> (nn.init.sparse_(flow.empty(4, 2), sparsity=0.5) == 0).sum(0)
    tensor([2, 2])
    """
    if tensor.ndim != 2:
        raise ShapeError(f"sparse_ needs a 2-D tensor, got shape {tuple(tensor.shape)}")
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    values = normal_(ops.empty((rows, columns), dtype=float64), 0.0, std, generator).numpy()
    values = values.copy()
    for column in range(columns):
        values[ops.randperm(rows, generator=generator).numpy()[:zeros], column] = 0
    return _fill(tensor, values)


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ArgumentError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions, "
            f"got shape {tuple(tensor.shape)}"
        )
    window = math.prod(tensor.shape[2:])
    return tensor.shape[1] * window, tensor.shape[0] * window


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f'mode must be "fan_in" or "fan_out", got {mode!r}')
    fan = fan_in if mode == "fan_in" else fan_out
    return calculate_gain(nonlinearity, a) / math.sqrt(fan) if fan else 0.0


def _fill(tensor: Tensor, values: Array) -> Tensor:
    with no_grad():
        tensor.copy_(ops.tensor(values).to(tensor.dtype))
    return tensor


# --- older names --------------------------------------------------------------------------------


def _older(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    new = function.__name__
    old = new.removesuffix("_")

    def renamed(*args: object, **kwargs: object) -> Tensor:
        warnings.warn(f"nn.init.{old} is now nn.init.{new}", FutureWarning, stacklevel=2)
        return function(*args, **kwargs)

    renamed.__name__ = renamed.__qualname__ = old
    renamed.__doc__ = f"`{new}` under its older name."
    return renamed


constant = _older(constant_)
dirac = _older(dirac_)
eye = _older(eye_)
kaiming_normal = _older(kaiming_normal_)
kaiming_uniform = _older(kaiming_uniform_)
normal = _older(normal_)
orthogonal = _older(orthogonal_)
sparse = _older(sparse_)
uniform = _older(uniform_)
xavier_normal = _older(xavier_normal_)
xavier_uniform = _older(xavier_uniform_)
__dir__ = listing(globals())

if not TYPE_CHECKING:  # a type checker is to know which names there are
    __getattr__ = other_names("nn.init", lambda: __all__)

__all__ = own_names(globals())
