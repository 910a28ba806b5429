"""The cross entropy of a linear layer's outputs, without all of them at once if `options` say so.

In chunks, the logits of some rows are computed, and again in backward; the largest tensor that is
kept is then (rows of a chunk, classes).  Gradients of any order are those of the whole.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass

from flowvm import ops
from flowvm.autograd.checkpoint import checkpoint
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import DType, bfloat16, float16, float32, float64, int64
from flowvm.ops.declare.halves import in_float32

_POLICIES = ("auto", "accurate", "balanced", "compact")
_ACCUMULATING = (None, float16, bfloat16, float32, float64)


# public: nn
@dataclass(frozen=True, slots=True)
class LinearCrossEntropyOptions:
    """Options of `linear_cross_entropy`: the size of its chunks of rows.

    batch_chunk_size     rows of a chunk; the other way to say it than chunking_method
    chunking_method      "aspect_ratio": so many that a chunk's logits are as large as the input;
                         "aspect_ratio:N": an N-th of that; "auto": "aspect_ratio:2"; None: by
                         batch_chunk_size, or one chunk
    allow_retain_graph   taken: backward can be repeated anyway
    acc_policy           taken: float16 and bfloat16 are summed up in float32 anyway
    acc_dtype            float16, bfloat16, float32, float64 or None; taken, as acc_policy

    >>> nn.LinearCrossEntropyOptions(batch_chunk_size=128).batch_chunk_size
    128
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: DType | None = None

    def __post_init__(self) -> None:
        if self.acc_policy not in _POLICIES:
            raise ArgumentError(f"acc_policy is one of {_POLICIES}, got {self.acc_policy!r}")
        method = self.chunking_method
        if method not in (None, "auto") and not re.fullmatch(
            r"aspect_ratio(:0*[1-9]\d*)?", str(method)
        ):
            raise ArgumentError(
                f"chunking_method is 'auto', 'aspect_ratio', 'aspect_ratio:N' or None, got "
                f"{method!r}"
            )
        size = self.batch_chunk_size
        if size is not None and not (isinstance(size, int) and size > 0):
            raise ArgumentError(f"batch_chunk_size is a positive int or None, got {size!r}")
        if self.acc_dtype not in _ACCUMULATING:
            raise ArgumentError(f"acc_dtype is a float dtype or None, got {self.acc_dtype!r}")

    def rows(self, batch: int, features: int, classes: int) -> int:
        """Return the number of rows of a chunk; ArgumentError if the two options for it
        disagree.
        """
        size, method = self.batch_chunk_size, self.chunking_method
        if method is None or (method == "auto" and size is not None):
            return max(1, batch if size is None else min(size, batch))
        parts = int("2" if method == "auto" else method.partition(":")[2] or "1")
        # as many rows of logits as have the input's size, and of that the next power of two
        equal = math.ceil(batch / max(1, math.ceil(classes / max(1, features))))
        count = max(1, min((1 << max(0, equal - 1).bit_length()) // parts, batch))
        if size is not None and size != count:
            raise ArgumentError(
                f"batch_chunk_size={size} and chunking_method={method!r}, which makes chunks of "
                f"{count}, disagree; pass one of them"
            )
        return count


# public: F
@in_float32
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: LinearCrossEntropyOptions | None = None,
) -> Tensor:
    """`cross_entropy(linear(input, linear_weight, linear_bias), target)`.

    input           (N, features) or (features)
    linear_weight   (C, features), or (C, d1, ..., features) for targets (N, d1, ...)
    linear_bias     (C) or (C, d1, ...)
    target, weight, reduction, label_smoothing   as `cross_entropy` has them
    ignore_index    -100 by default; not for a target of probabilities
    options         LinearCrossEntropyOptions: the rows are worked off in chunks, for indices
                    without smoothing or further dimensions; else there is a warning, and no chunks

    >>> x, weight = flow.ones(2, 3), flow.zeros(4, 3)
    >>> F.linear_cross_entropy(x, weight, flow.tensor([0, 1]))  # log 4
    tensor(1.3863)
    """
    logits_shape = _checked(input, linear_weight, linear_bias)
    probabilities = tuple(target.shape) == logits_shape
    if probabilities and ignore_index is not None:
        raise ShapeError(
            "linear_cross_entropy: ignore_index is for targets that are indices, and these are "
            "probabilities"
        )
    ignored = -100 if ignore_index is None else ignore_index
    further = tuple(linear_weight.shape[1:-1])
    if options is not None:
        smooth = label_smoothing != 0.0
        if not (smooth or further or target.dtype is not int64):
            return _in_chunks(
                input, linear_weight, target, linear_bias, weight, reduction, ignored, options
            )
        warnings.warn(
            "linear_cross_entropy: options are not used: chunks are for targets of int64 without "
            f"label_smoothing or further dimensions, got {target.dtype}, {label_smoothing} and "
            f"{further}",
            stacklevel=2,
        )
    if further:
        linear_weight = linear_weight.reshape(-1, linear_weight.shape[-1])
        linear_bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = ops.linear(input, linear_weight, linear_bias).reshape(logits_shape)
    return ops.cross_entropy(
        logits, target, weight, reduction=reduction, ignore_index=ignored,
        label_smoothing=label_smoothing,
    )  # fmt: skip


def _checked(input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    """The shape of the logits."""
    name = "linear_cross_entropy"
    if input.ndim not in (1, 2):
        raise ShapeError(f"{name}: input is (N, features) or (features), got {tuple(input.shape)}")
    if weight.ndim < 2:
        raise ShapeError(f"{name}: linear_weight is (C, ..., features), got {tuple(weight.shape)}")
    if input.shape[-1] != weight.shape[-1]:
        raise ShapeError(
            f"{name}: input has {input.shape[-1]} features and linear_weight {weight.shape[-1]}"
        )
    if bias is not None and tuple(bias.shape) != tuple(weight.shape[:-1]):
        raise ShapeError(
            f"{name}: linear_bias is {tuple(weight.shape[:-1])}, got {tuple(bias.shape)}"
        )
    if weight.ndim > 2 and input.ndim == 1:
        raise ShapeError(
            f"{name}: linear_weight {tuple(weight.shape)} needs a batch (N, {weight.shape[-1]}), "
            f"got input {tuple(input.shape)}"
        )
    return (*input.shape[:-1], *weight.shape[:-1])


def _in_chunks(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    options: LinearCrossEntropyOptions,
) -> Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f'reduction must be "none", "mean" or "sum", got {reduction!r}')
    rows = input if input.ndim == 2 else input.unsqueeze(0)
    targets = target if input.ndim == 2 else target.unsqueeze(0)
    if targets.shape != rows.shape[:1]:
        raise ShapeError(
            f"linear_cross_entropy: target of shape {tuple(target.shape)} does not fit input "
            f"{tuple(input.shape)}"
        )
    size = options.rows(rows.shape[0], rows.shape[1], linear_weight.shape[0])
    part = "none" if reduction == "none" else "sum"

    def loss(x: Tensor, y: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return ops.cross_entropy(
            ops.linear(x, w, b), y, weight, ignore_index=ignore_index, reduction=part
        )

    parts = [
        checkpoint(loss, x, y, linear_weight, linear_bias, preserve_rng_state=False)
        for x, y in zip(rows.split(size), targets.split(size), strict=True)
    ]
    if reduction == "none":
        losses = ops.cat(parts)
        return losses if input.ndim == 2 else losses.squeeze(0)
    total: Tensor = ops.stack(parts).sum()
    if reduction == "sum":
        return total
    counted = targets.ne(ignore_index)
    if weight is None:
        return total / counted.sum()
    picked = weight.gather(0, ops.where(counted, targets, 0))
    return total / ops.where(counted, picked, 0.0).sum()  # type: ignore[no-any-return]
