"""ctc_loss: how improbable a sequence of labels is, whatever steps they come at.

One instruction forward and one backward (`ctc_kernels`).  What the lengths and labels are is data:
what does not fit is found by the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import widened
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, AutogradError, DTypeError, ShapeError
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.pointwise.compare import where
from flowvm.ops.rows.cpu.ctc_kernels import Labels, ctc_back_body, ctc_body
from flowvm.ops.rows.parts import ctc_checks
from flowvm.ops.rows.parts.class_loss_ops import check_reduction
from flowvm.ops.shapes.create import tensor
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


def _flat(meta: TensorMeta) -> View:
    return View(meta.dtype, (meta.numel,))


@op(
    "x, targets, steps, counts -> loss, alpha",
    name="ctc_loss",
    saves="x, targets, steps, counts, loss, alpha",
    constants="alpha",
    grad=lambda c, g: (_ctc_back(g, *c.saved, c.attrs[0]), None, None, None),
    letters=unsplit,
    takes=ctc_checks.ctc_loss,
)
def _ctc(
    x: TensorMeta, targets: TensorMeta, steps: TensorMeta, counts: TensorMeta, labels: Labels,
    longest: Count,
) -> Launch:  # fmt: skip
    t, n, _ = x.shape
    loss, alpha = x.with_shape((n,)), x.with_shape((n, t, 2 * longest + 1))
    views = (*map(View.of, (loss, alpha, x)), _flat(targets), _flat(steps), _flat(counts))
    grain = max(1, GRAIN // max(1, t * (2 * longest + 1) * 8))
    return Launch((loss, alpha), ctc_body, views, (labels,), n, grain)


def _no_grad(c: Node, v: Tensor) -> None:
    raise AutogradError("ctc_loss has a first derivative only; this is the second")


@op(
    "g, x, targets, steps, counts, loss, alpha -> out", name="ctc_loss_backward", grad=_no_grad,
    letters=unsplit, takes=ctc_checks.ctc_loss_backward
)  # fmt: skip
def _ctc_back(
    g: TensorMeta, x: TensorMeta, targets: TensorMeta, steps: TensorMeta, counts: TensorMeta,
    loss: TensorMeta, alpha: TensorMeta, labels: Labels,
) -> Launch:  # fmt: skip
    out = x.dense()
    operands = (_flat(targets), _flat(steps), _flat(counts), View.of(loss), View.of(alpha))
    views = (View.of(out), View.of(g), View.of(x), *operands)
    grain = max(1, GRAIN // max(1, alpha.shape[1] * (alpha.shape[2] * 8 + x.shape[2] * 2)))
    scratch = max(8, 8 * alpha.shape[0] * alpha.shape[2])
    return Launch((out,), ctc_back_body, views, (labels,), x.shape[1], grain, scratch)


def lengths_of(name: str, what: str, value: object, n: int, like: Tensor) -> Tensor:
    """`value`, a tensor, a number or several, as an int64 tensor of n."""
    if not isinstance(value, Tensor):
        value = tensor(value, dtype=int64)
    if value._meta.dtype.is_floating_point or value._meta.dtype.is_bool:
        raise DTypeError(f"{name}: {what} are integers, got {value._meta.dtype.name}")
    if value._meta.numel != n:
        raise ShapeError(
            f"{name}: {what} has one number for each of {n} samples, got shape {tuple(value.shape)}"
        )
    whole: Tensor = value.reshape((n,)).to(device=like.device, dtype=int64)
    return whole


# public: flow, F
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int] | int,
    target_lengths: Tensor | Sequence[int] | int,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return the negative log likelihood of sequences of labels (Graves et al., 2006).

    A sequence leaves out steps without a label, and repeated labels.

    log_probs       (T, N, C), or (T, C) for one sample: the logarithms of probabilities, as of
                    log_softmax; gradients are those of PyTorch, which take them for such
    targets         integers from 0 to C - 1, none of them `blank`: (N, S), or all one behind the
                    other, (sum of target_lengths), for which the lengths are waited for
    input_lengths, target_lengths   (N): steps and labels of each sample
    reduction       "none": (N), "sum", or "mean": of the losses divided by target_lengths
    zero_infinity   samples that no way leads through count as 0, and have no gradient

    OutOfRangeError when the result is read, for a label or a length outside; AutogradError for a
    second derivative.

    >>> log_probs = flow.full((4, 1, 3), 1 / 3).log()  # (steps, samples, labels)
    >>> loss = F.ctc_loss(log_probs, flow.tensor([[1, 2]]), (4,), (2,), reduction="sum")
    >>> round(loss.exp().item(), 1)  # 15 of 81 ways: 81 / 15
    5.4
    """
    if hot["autocast"]:
        (log_probs,) = widened(log_probs)
    check_reduction("ctc_loss", reduction)
    meta = need_tensor("ctc_loss", "log_probs", log_probs)._meta
    goals = need_tensor("ctc_loss", "targets", targets)._meta
    if meta.ndim not in (2, 3) or goals.ndim not in (1, 2):
        raise ShapeError(
            f"ctc_loss: log_probs is (T, N, C) or (T, C) and targets (N, S) or (S), got "
            f"{tuple(meta.shape)} and {tuple(goals.shape)}"
        )
    if not meta.dtype.is_floating_point or goals.dtype.is_floating_point:
        raise DTypeError(
            f"ctc_loss: log_probs are floating point and targets integers, got {meta.dtype.name} "
            f"and {goals.dtype.name}"
        )
    x = log_probs if meta.ndim == 3 else log_probs.unsqueeze(1)
    n, classes = x._meta.shape[1:]
    blank = whole("ctc_loss", "blank", blank)
    if not 0 <= blank < classes:
        raise ArgumentError(f"ctc_loss: blank is a class of {classes}, got {blank}")
    if goals.ndim == 2 and goals.shape[0] != n:
        raise ShapeError(f"ctc_loss: targets of shape {tuple(goals.shape)} are not for {n} samples")
    steps = lengths_of("ctc_loss", "input_lengths", input_lengths, n, x)
    counts = lengths_of("ctc_loss", "target_lengths", target_lengths, n, x)
    joined = goals.ndim == 1
    longest = goals.shape[-1] if not joined or n <= 1 else int(np.max(counts.numpy()))
    labels = Labels(blank, int(joined), int(zero_infinity))
    loss = _ctc(x, targets.to(int64), steps, counts, labels, longest)[0]
    if zero_infinity:
        loss = where(loss == math.inf, 0.0, loss)
    if reduction == "mean":
        out: Tensor = (loss / counts.clamp(min=1).to(loss._meta.dtype)).mean()
        return out
    if reduction == "sum":
        total: Tensor = loss.sum()
        return total
    each: Tensor = loss if meta.ndim == 3 else loss.squeeze(0)
    return each


# --- samples ------------------------------------------------------------------------------------


def _ways(x: Any, labels: list[int], blank: int) -> float:
    """The probability of labels, by going through every path."""
    t, classes = x.shape
    total = 0.0
    for path in np.ndindex(*(classes,) * t):
        collapsed = [c for i, c in enumerate(path) if i == 0 or c != path[i - 1]]
        if [c for c in collapsed if c != blank] == labels:
            total += math.exp(sum(x[i, c] for i, c in enumerate(path)))
    return total


def _reference(
    x: Array, targets: Any, steps: Any, counts: Any, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> object:  # fmt: skip
    starts = np.cumsum([0, *counts])
    losses = []
    for n, (t, s) in enumerate(zip(steps, counts, strict=True)):
        row = targets[n][:s] if targets.ndim == 2 else targets[starts[n] : starts[n] + s]
        p = _ways(x[:t, n], [int(c) for c in row], blank)
        losses.append(-math.log(p) if p else 0.0 if zero_infinity else math.inf)
    each = np.array(losses)
    if reduction == "none":
        return each
    return each.sum() if reduction == "sum" else (each / np.maximum(counts, 1)).mean()


def _probabilities(rng: np.random.Generator, *shape: int) -> Array:
    x: Array = rng.standard_normal(shape)
    likely: Array = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return likely


samples(
    ctc_loss,
    lambda rng: [
        Sample(
            (_probabilities(rng, 4, 2, 3), np.array([[1, 2], [2, 2]]), (4, 3), (2, 2)),
            {"reduction": "none"},
        ),
        Sample((_probabilities(rng, 4, 2, 3), np.array([1, 0, 0]), (4, 3), (2, 1), 2, "sum")),
        Sample((_probabilities(rng, 3, 1, 3), np.array([[1, 1]]), (2,), (2,), 0, "mean", True)),
    ],
    _reference,
    grad=False,  # it is not the derivative: it is that of log_softmax and the loss together
    errors=(
        (
            lambda flow: flow.ctc_loss(flow.zeros(2, 1, 3), flow.tensor([[3]]), (2,), (1,)).numpy(),
            IndexError,
        ),
        (
            lambda flow: flow.ctc_loss(flow.zeros(2, 1, 3), flow.tensor([[1]]), (3,), (1,)).numpy(),
            IndexError,
        ),
        (
            lambda flow: flow.ctc_loss(flow.zeros(2, 1, 3), flow.tensor([[1]]), (2,), (1,), 3),
            ValueError,
        ),
    ),
)
