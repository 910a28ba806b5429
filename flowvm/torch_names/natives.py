"""PyTorch's basic functions that programs also call by these names: `native_layer_norm`,
`grid_sampler`, `feature_dropout` and so on.

What they compute is that of the function which each docstring names; here are their arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm import linalg, ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.nn import functional as F
from flowvm.nn.utils.weight_norm import norm_except_dim as _norm_except_dim
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.places.embedding import renormalize
from flowvm.ops.places.gather import positions_of
from flowvm.ops.random.generator import Generator

# public: flow (late, unlisted)

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`F.alpha_dropout(input, p, train)`.

    >>> flow.alpha_dropout(flow.ones(2), 0.5, False)
    tensor([1., 1.])
    """
    return F.alpha_dropout(input, p, train)


def dropout(input: Tensor, p: float = 0.5, train: bool = True, **options: Any) -> Tensor:
    """`F.dropout(input, p, train)`, and its further arguments by keyword.

    >>> flow.dropout(flow.ones(2), 0.5, False)
    tensor([1., 1.])
    """
    return F.dropout(input, p, options.pop("training", train), **options)


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`F.embedding(indices, weight)`: the table is first here, and `padding_idx` below 0 is none.

    >>> flow.embedding(flow.tensor([[1.0], [2.0]]), flow.tensor([1, 1, 0])).flatten()
    tensor([2., 2., 1.])
    """
    skip = None if padding_idx < 0 else padding_idx
    rows: Tensor = F.embedding(
        indices, weight, skip, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse
    )
    return rows


_BAGS = ("sum", "mean", "max")


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`F.embedding_bag` of a table, a vector of indices, and where each bag begins; `mode` is 0
    "sum", 1 "mean" or 2 "max".

    Return the bags, the bag of each index, how many indices each bag has, and for "max" the row
    that each value is from (else the sizes again).  Indices `padding_idx` do not count.

    >>> table = flow.tensor([[1.0], [2.0]])
    >>> out, bags, sizes, _ = flow.embedding_bag(table, flow.tensor([0, 1, 1]), flow.tensor([0, 1]))
    >>> out.flatten(), bags, sizes
    (tensor([1., 4.]), tensor([0, 1, 1]), tensor([1, 2]))
    """
    if mode not in range(3):
        raise ArgumentError(f"embedding_bag: mode is 0 (sum), 1 (mean) or 2 (max), got {mode!r}")
    out = F.embedding_bag(
        indices, weight, offsets, None, 2.0, scale_grad_by_freq, _BAGS[mode], sparse,
        per_sample_weights, include_last_offset, padding_idx,
    )  # fmt: skip
    begins = offsets[:-1] if include_last_offset else offsets
    bags = ops.searchsorted(begins, ops.arange(indices.numel()).to(begins.dtype), right=True) - 1
    counted: Tensor = ops.ones_like(indices)
    if padding_idx is not None:
        counted = ops.ne(indices, padding_idx % weight.shape[0]).to(indices.dtype)
    sizes: Any = ops.zeros(begins.shape[0], dtype=indices.dtype).index_add(0, bags, counted)
    if mode < 2:
        return out, bags, sizes, sizes
    at = [(indices[ops.eq(bags, bag)], out[bag]) for bag in range(begins.shape[0])]
    rows = [
        ops.zeros(weight.shape[1], dtype=indices.dtype) if not own.numel()
        else own[ops.eq(weight.detach()[own], values.detach()).to(indices.dtype).argmax(0)]
        for own, values in at
    ]  # fmt: skip
    return out, bags, sizes, ops.stack(rows)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int] | int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """`F.layer_norm`; `cudnn_enable` is taken and changes nothing.

    >>> flow.layer_norm(flow.tensor([[1.0, 3.0]]), [2])
    tensor([[-1.0000,  1.0000]])
    """
    return F.layer_norm(input, normalized_shape, weight, bias, eps)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """`F.group_norm`; `cudnn_enabled` is taken and changes nothing.

    >>> flow.group_norm(flow.tensor([[1.0, 3.0, 10.0, 30.0]]), 2)
    tensor([[-1.0000,  1.0000, -1.0000,  1.0000]])
    """
    return F.group_norm(input, num_groups, weight, bias, eps)


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """`F.batch_norm`, with weight and bias before the statistics; `cudnn_enabled` changes nothing.

    >>> x = flow.tensor([[1.0, 10.0], [3.0, 30.0]])
    >>> flow.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, True)
    tensor([[-1.0000, -1.0000],
            [ 1.0000,  1.0000]])
    """
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """`F.instance_norm`, with weight and bias before the statistics; `cudnn_enabled` changes
    nothing.

    >>> x = flow.tensor([[[1.0, 3.0], [10.0, 30.0]]])
    >>> flow.instance_norm(x, None, None, None, None, True, 0.1, 1e-5, True)
    tensor([[[-1.0000,  1.0000],
             [-1.0000,  1.0000]]])
    """
    return F.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`F.feature_alpha_dropout(input, p, train)`.

    >>> flow.feature_alpha_dropout(flow.ones(1, 2), 0.5, False)
    tensor([[1., 1.]])
    """
    return F.feature_alpha_dropout(input, p, train)


def feature_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Channels of (N, C, ...) become 0 with probability p, as in `F.dropout2d`.

    >>> flow.feature_dropout(flow.ones(1, 2), 0.5, False)
    tensor([[1., 1.]])
    """
    return F.dropout2d(input, p, train)


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """`F.rrelu(input, lower, upper, training)`, whose slopes `generator` may draw.

    >>> flow.rrelu(flow.tensor([-2.0, 1.0]), 0.25, 0.75)
    tensor([-1.,  1.])
    """
    return F.rrelu(input, lower, upper, training, generator=generator)


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """`F.grid_sample` with numbers for its modes: 0 "bilinear", 1 "nearest", 2 "bicubic"; 0
    "zeros", 1 "border", 2 "reflection".

    >>> flow.grid_sampler(flow.ones(1, 1, 2, 2), flow.zeros(1, 1, 1, 2), 0, 0, True)
    tensor([[[[1.]]]])
    """
    if interpolation_mode not in range(3) or padding_mode not in range(3):
        raise ArgumentError(
            f"grid_sampler: modes are 0, 1 or 2, got {interpolation_mode} and {padding_mode}"
        )
    mode, padding = _MODES[interpolation_mode], _PADDINGS[padding_mode]
    return F.grid_sample(input, grid, mode, padding, align_corners)


def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """`F.pad(input, pad, "constant", value)`.

    >>> flow.constant_pad_nd(flow.ones(2), [1, 0], 7)
    tensor([7., 1., 1.])
    """
    out: Tensor = ops.pad(input, tuple(pad), "constant", value)
    return out


@with_out
def frobenius_norm(input: Tensor, dim: object, keepdim: bool = False) -> Tensor:
    """The root of the sum of squares over `dim`: `flow.linalg.vector_norm(input, 2, dim)`.

    >>> flow.frobenius_norm(flow.tensor([[3.0, 4.0]]), [1])
    tensor([5.])
    """
    out: Tensor = linalg.vector_norm(input, 2, dim, keepdim)
    return out


@with_out
def nuclear_norm(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Return the sum of singular values of a matrix, or of the matrices in the two dimensions
    `dim`: `flow.linalg.matrix_norm(input, "nuc")`.

    >>> flow.nuclear_norm(flow.diag(flow.tensor([3.0, 4.0])))
    tensor(7.)
    """
    if isinstance(dim, bool):  # nuclear_norm(input, keepdim)
        dim, keepdim = None, dim
    x = need_tensor("nuclear_norm", "input", input)
    if dim is None and x.ndim != 2:
        raise ShapeError(f"nuclear_norm: input is a matrix, got shape {tuple(x.shape)}; give dim")
    out: Tensor = linalg.matrix_norm(x, "nuc", (0, 1) if dim is None else tuple(dim), keepdim)
    return out


def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """The norms of order `pow` over all dimensions but `dim`, which have size 1; of all for -1.

    >>> flow.norm_except_dim(flow.tensor([[3.0, 4.0], [6.0, 8.0]]), 2, 0)
    tensor([[ 5.],
            [10.]])
    """
    x = need_tensor("norm_except_dim", "v", v)
    if pow == 2:
        return _norm_except_dim(x, dim)
    rest = None if dim == -1 else [d for d in range(x.ndim) if d != dim]
    out: Tensor = linalg.vector_norm(x, pow, rest, keepdim=dim != -1)
    return out


def _moments(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """The mean and 1 / sqrt(var + eps) over the last dimensions, which have size 1."""
    var, mean = ops.var_mean(x, dims, correction=0, keepdim=True)
    return mean, ops.rsqrt(var + eps)


@in_float32
def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`F.layer_norm`, and the means and 1 / sqrt(var + eps), whose normalized dimensions are 1.

    >>> out, mean, rstd = flow.native_layer_norm(flow.tensor([[1.0, 3.0]]), [2], None, None, 0.0)
    >>> out, mean, rstd
    (tensor([[-1.,  1.]]), tensor([[2.]]), tensor([[1.]]))
    """
    out = F.layer_norm(input, tuple(normalized_shape), weight, bias, eps)
    return out, *_moments(input, tuple(range(-len(tuple(normalized_shape)), 0)), eps)


@in_float32
def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `F.group_norm` of (N, C, ...), and the means and 1 / sqrt(var + eps): (N, group).

    ShapeError unless N, C and HxW are those of input.

    >>> x = flow.tensor([[1.0, 3.0]])
    >>> flow.native_group_norm(x, None, None, 1, 2, 1, 1, 0.0)
    (tensor([[-1.,  1.]]), tensor([[2.]]), tensor([[1.]]))
    """
    shape = tuple(need_tensor("native_group_norm", "input", input).shape)
    if shape[:2] != (N, C) or input.numel() != N * C * HxW:
        raise ShapeError(f"native_group_norm: input has shape {shape}, not ({N}, {C}) of {HxW}")
    out = F.group_norm(input, group, weight, bias, eps)
    mean, rstd = _moments(input.reshape(N, group, C // group * HxW), (-1,), eps)
    return out, mean.squeeze(-1), rstd.squeeze(-1)


def embedding_renorm_(input: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scale the rows `indices` of `input`, a matrix, down to the norm `max_norm` of order
    `norm_type`, if they are longer.  Return `input`.

    >>> table = flow.tensor([[3.0, 4.0], [30.0, 40.0]])
    >>> flow.embedding_renorm_(table, flow.tensor([1]), 5.0, 2.0)
    tensor([[3.0000, 4.0000],
            [3.0000, 4.0000]])
    """
    table = need_tensor("embedding_renorm_", "input", input)
    if table.ndim != 2:
        raise ShapeError(f"embedding_renorm_: input is a matrix, got shape {tuple(table.shape)}")
    at = positions_of("embedding_renorm_", "indices", indices)
    renormalize(table, at, max_norm, norm_type)
    return table
