"""Losses as modules: they keep the arguments of the functions of the same name.

reduction is "mean", "sum" or "none" everywhere; size_average and reduce are older, and override it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    InvalidValueError,
    ShapeError,
)
from flowvm.meta.device import Device
from flowvm.meta.dtype import DType, int64
from flowvm.nn import functional as F
from flowvm.nn.composites.linear_cross_entropy import LinearCrossEntropyOptions
from flowvm.nn.module import Module
from flowvm.nn.modules._check import choice, probability
from flowvm.nn.modules.distance import PairwiseDistance
from flowvm.nn.modules.layer import layer
from flowvm.nn.modules.linear import Linear
from flowvm.ops.rows.parts.class_loss_ops import legacy_reduction

# public: nn


def _number(owner: object, name: str, value: float) -> float:
    if not isinstance(value, (int, float)):
        raise ArgumentTypeError(
            f"{type(owner).__name__}: {name} must be a float or int, got {value!r}"
        )
    return value


def _positive(owner: object, name: str, value: float) -> float:
    if value <= 0:
        raise ArgumentError(f"{type(owner).__name__}: {name} must be positive, got {value}")
    return value


def _one_or_two(owner: object, name: str, value: int) -> int:
    if value not in (1, 2):
        raise ArgumentError(f"{type(owner).__name__}: {name} is 1 or 2, got {value}")
    return value


class _Loss(Module):
    _reductions: tuple[str, ...] = ("none", "mean", "sum")
    _fields: tuple[str, ...] = ("reduction",)

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__()
        reduction_name = legacy_reduction(size_average, reduce, reduction)
        self.reduction = choice(self, "reduction", reduction_name, self._reductions)

    def extra_repr(self) -> str:
        return ""


class _WeightedLoss(_Loss):
    weight: Tensor | None
    _fields = ("weight",)

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


@layer(F.l1_loss, "input, target")
class L1Loss(_Loss):
    """|x - y|.

    >>> nn.L1Loss()(flow.tensor([1.0, 2.0]), flow.tensor([3.0, 6.0]))
    tensor(3.)
    """


@layer(F.mse_loss, "input, target")
class MSELoss(_Loss):
    """(x - y)^2.

    >>> nn.MSELoss()(flow.tensor([1.0, 2.0]), flow.tensor([3.0, 6.0]))
    tensor(10.)
    """


@layer(F.smooth_l1_loss, "input, target")
class SmoothL1Loss(_Loss):
    """0.5 (x - y)^2 / beta where |x - y| is below beta, |x - y| - 0.5 beta elsewhere.

    >>> nn.SmoothL1Loss(reduction="none")(flow.tensor([1.0, 3.0]), flow.zeros(2))
    tensor([0.5000, 2.5000])
    """

    size_average: bool | None = None
    reduce: bool | None = None
    reduction: str = "mean"
    beta: float = 1.0


@layer(F.huber_loss, "input, target", delta=_number)
class HuberLoss(_Loss):
    """0.5 (x - y)^2 where |x - y| is below delta, delta (|x - y| - 0.5 delta) elsewhere.

    >>> nn.HuberLoss(reduction="none")(flow.tensor([1.0, 3.0]), flow.zeros(2))
    tensor([0.5000, 2.5000])
    """

    reduction: str = "mean"
    delta: float = 1.0


@layer(F.cross_entropy, "input, target", label_smoothing=probability)
class CrossEntropyLoss(_WeightedLoss):
    """Cross entropy of (N, C, ...) scores against class indices or class probabilities.

    >>> nn.CrossEntropyLoss()(flow.zeros(3, 2), flow.tensor([0, 1, 1]))  # log 2
    tensor(0.6931)
    """

    weight: Tensor | None = None
    size_average: bool | None = None
    ignore_index: int = -100
    reduce: bool | None = None
    reduction: str = "mean"
    label_smoothing: float = 0.0


class LinearCrossEntropyLoss(_WeightedLoss):
    """Cross entropy of a linear layer's outputs, `linear`, which with `options` are not all there
    at once; see `functional.linear_cross_entropy`.

    out_features   further dimensions (d1, ...) of the outputs, (N, C, d1, ...)

    >>> layer = nn.LinearCrossEntropyLoss(3, 4)
    >>> layer(flow.ones(2, 3), flow.tensor([0, 1])).shape
    flow.Size([])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Device | str | None = None,
        dtype: DType | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ) -> None:
        if weight is not None and tuple(weight.shape) != (num_classes,):
            raise ShapeError(
                f"LinearCrossEntropyLoss: weight is ({num_classes},), got {tuple(weight.shape)}"
            )
        if not 0 <= label_smoothing <= 1:
            raise InvalidValueError(
                f"LinearCrossEntropyLoss: label_smoothing is from 0 to 1, got {label_smoothing}"
            )
        super().__init__(weight, reduction=reduction)
        self.num_classes = num_classes
        self.out_features = tuple(out_features)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        wide = math.prod(self.out_features, start=num_classes)
        self.linear = Linear(in_features, wide, bias=bias, device=device, dtype=dtype)
        self.options = options

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        shape = (self.num_classes, *self.out_features)
        bias = self.linear.bias
        return F.linear_cross_entropy(
            input,
            self.linear.weight.reshape((*shape, self.linear.in_features)),
            target,
            linear_bias=None if bias is None else bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, "
            f"out_features={self.out_features}, bias={self.linear.bias is not None}, "
            f"reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )


@layer(F.nll_loss, "input, target")
class NLLLoss(_WeightedLoss):
    """Negative log likelihood of (N, C, ...) log-probabilities against class indices.

    >>> nn.NLLLoss()(flow.tensor([[-1.0, -2.0], [-3.0, -4.0]]), flow.tensor([0, 1]))
    tensor(2.5000)
    """

    weight: Tensor | None = None
    size_average: bool | None = None
    ignore_index: int = -100
    reduce: bool | None = None
    reduction: str = "mean"


@layer(F.binary_cross_entropy, "input, target")
class BCELoss(_WeightedLoss):
    """Binary cross entropy of probabilities.

    >>> nn.BCELoss()(flow.tensor([0.5, 0.5]), flow.tensor([0.0, 1.0]))  # log 2
    tensor(0.6931)
    """


@layer(F.binary_cross_entropy_with_logits, "input, target", buffers=("pos_weight",))
class BCEWithLogitsLoss(_WeightedLoss):
    """Binary cross entropy of scores, safe for large ones.

    >>> nn.BCEWithLogitsLoss()(flow.zeros(2), flow.tensor([0.0, 1.0]))  # log 2
    tensor(0.6931)
    """

    weight: Tensor | None = None
    size_average: bool | None = None
    reduce: bool | None = None
    reduction: str = "mean"
    pos_weight: Tensor | None = None


@layer(F.kl_div, "input, target")
class KLDivLoss(_Loss):
    """target * (log(target) - input), input being log-probabilities; "batchmean" divides by N.

    >>> p = flow.tensor([[0.5, 0.5]])
    >>> nn.KLDivLoss(reduction="batchmean")(p.log(), p)
    tensor(0.)
    """

    size_average: bool | None = None
    reduce: bool | None = None
    reduction: str = "mean"
    log_target: bool = False

    _reductions = ("none", "mean", "sum", "batchmean")


@layer(F.soft_margin_loss, "input, target")
class SoftMarginLoss(_Loss):
    """log(1 + exp(-y * x)) for y of 1 or -1.

    >>> nn.SoftMarginLoss()(flow.zeros(2), flow.tensor([1.0, -1.0]))  # log 2
    tensor(0.6931)
    """


@layer(F.hinge_embedding_loss, "input, target")
class HingeEmbeddingLoss(_Loss):
    """x where y is 1, max(0, margin - x) where it is -1.

    >>> loss = nn.HingeEmbeddingLoss(reduction="none")
    >>> loss(flow.tensor([0.5, 0.25]), flow.tensor([1, -1]))
    tensor([0.5000, 0.7500])
    """

    margin: float = 1.0
    size_average: bool | None = None
    reduce: bool | None = None
    reduction: str = "mean"


@layer(F.margin_ranking_loss, "input1, input2, target")
class MarginRankingLoss(_Loss):
    """max(0, -y * (x1 - x2) + margin).

    >>> loss = nn.MarginRankingLoss(reduction="none")
    >>> loss(flow.tensor([1.0, 1.0]), flow.tensor([0.0, 3.0]), flow.tensor([1, 1]))
    tensor([0., 2.])
    """

    margin: float = 0.0
    size_average: bool | None = None
    reduce: bool | None = None
    reduction: str = "mean"


class CombinedMarginLoss(Module):
    """OneFlow's: the cosines (n, classes), with x of the label's class, (n,), replaced by
    cos(m1 * acos(x) + m2) - m3; what a cross entropy is then taken of (Deng et al., "ArcFace",
    2019).

    ShapeError and DTypeError where label does not fit, OutOfRangeError for a class that is not
    there.

    >>> x = flow.tensor([[0.5, 0.2], [0.1, 0.9]])
    >>> nn.CombinedMarginLoss(m3=0.25)(x, flow.tensor([0, 1]))
    tensor([[0.2500, 0.2000],
            [0.1000, 0.6500]])
    """

    def __init__(self, m1: float = 1.0, m2: float = 0.0, m3: float = 0.0) -> None:
        super().__init__()
        self.m1, self.m2, self.m3 = m1, m2, m3

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        if x.ndim != 2 or tuple(label.shape) != (x.shape[0],):
            raise ShapeError(
                f"CombinedMarginLoss: x is (n, classes) and label (n,), got {tuple(x.shape)} and "
                f"{tuple(label.shape)}"
            )
        if label.dtype.inexact or label.dtype.is_bool:
            raise DTypeError(f"CombinedMarginLoss: label has integers, got {label.dtype.name}")
        at = label.to(int64).unsqueeze(1)
        own = x.gather(1, at)
        farther = ops.cos(self.m1 * ops.acos(own) + self.m2) - self.m3
        out: Tensor = x.scatter(1, at, farther)
        return out

    def extra_repr(self) -> str:
        return f"m1={self.m1}, m2={self.m2}, m3={self.m3}"


@layer(F.cosine_embedding_loss, "input1, input2, target")
class CosineEmbeddingLoss(_Loss):
    """1 - cos(x1, x2) where y is 1, max(0, cos(x1, x2) - margin) where it is -1.

    >>> x, y = flow.tensor([[1.0, 0.0]]), flow.tensor([[3.0, 4.0]])
    >>> nn.CosineEmbeddingLoss()(x, y, flow.tensor([1]))  # 1 - 3 / 5
    tensor(0.4000)
    """

    margin: float = 0.0
    size_average: bool | None = None
    reduce: bool | None = None
    reduction: str = "mean"


@layer(F.triplet_margin_loss, "anchor, positive, negative", margin=_positive)
class TripletMarginLoss(_Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin).

    >>> a, near, far = flow.zeros(1, 2), flow.tensor([[0.0, 2.0]]), flow.tensor([[2.5, 0.0]])
    >>> nn.TripletMarginLoss()(a, near, far)  # 2 - 2.5 + 1
    tensor(0.5000)
    """

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    size_average: bool | None = None
    reduce: bool | None = None
    reduction: str = "mean"


@layer(F.poisson_nll_loss, "input, target")
class PoissonNLLLoss(_Loss):
    """exp(x) - y * x, or with log_input=False x - y * log(x + eps).

    >>> nn.PoissonNLLLoss()(flow.tensor([0.0]), flow.tensor([3.0]))  # exp(0) - 3 * 0
    tensor(1.)
    """

    log_input: bool = True
    full: bool = False
    size_average: bool | None = None
    eps: float = 1e-8
    reduce: bool | None = None
    reduction: str = "mean"


@layer(F.gaussian_nll_loss, "input, target, var")
class GaussianNLLLoss(_Loss):
    """0.5 * (log(var) + (x - y)^2 / var).

    >>> nn.GaussianNLLLoss()(flow.tensor([1.0]), flow.tensor([3.0]), flow.tensor([1.0]))  # 4 / 2
    tensor(2.)
    """

    _: KW_ONLY
    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"


class NLLLoss2d(NLLLoss):
    """NLLLoss under an older name.

    >>> nn.NLLLoss2d()(flow.full((1, 2, 1, 1), -3.0), flow.tensor([[[1]]]))
    tensor(3.)
    """


@layer(F.multilabel_margin_loss, "input, target")
class MultiLabelMarginLoss(_Loss):
    """Sum of max(0, 1 - x_y + x_i) over a sample's classes y and the others i, divided by C.

    >>> nn.MultiLabelMarginLoss()(flow.tensor([[1.0, 0.5]]), flow.tensor([[0, -1]]))  # 0.5 / 2
    tensor(0.2500)
    """


@layer(F.multilabel_soft_margin_loss, "input, target")
class MultiLabelSoftMarginLoss(_WeightedLoss):
    """The mean over classes of -(y log(sigmoid(x)) + (1 - y) log(sigmoid(-x))).

    >>> nn.MultiLabelSoftMarginLoss()(flow.zeros(1, 2), flow.tensor([[0.0, 1.0]]))  # log 2
    tensor(0.6931)
    """


@layer(F.multi_margin_loss, "input, target", p=_one_or_two)
class MultiMarginLoss(_WeightedLoss):
    """Sum over the classes but y of max(0, margin - x_y + x_j) ** p, divided by their number.

    >>> nn.MultiMarginLoss()(flow.tensor([[1.0, 0.5]]), flow.tensor([0]))  # 0.5 / 2
    tensor(0.2500)
    """

    p: int = 1
    margin: float = 1.0
    weight: Tensor | None = None
    size_average: bool | None = None
    reduce: bool | None = None
    reduction: str = "mean"


@layer(
    F.triplet_margin_with_distance_loss,
    "anchor, positive, negative",
    margin=_positive,
    distance_function=lambda self, name, value: PairwiseDistance() if value is None else value,
)
class TripletMarginWithDistanceLoss(_Loss):
    """TripletMarginLoss with a distance of one's own, pairwise_distance without one.

    >>> a, near, far = flow.zeros(1, 2), flow.tensor([[0.0, 2.0]]), flow.tensor([[2.5, 0.0]])
    >>> loss = nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(p=1))
    >>> loss(a, near, far)
    tensor(0.5000)
    """

    _: KW_ONLY
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None
    margin: float = 1.0
    swap: bool = False
    reduction: str = "mean"


@layer(F.ctc_loss, "log_probs, targets, input_lengths, target_lengths")
class CTCLoss(_Loss):
    """Negative log-likelihood of a sequence of labels, over all alignments with the steps; see
    `functional.ctc_loss`.

    >>> log_probs = flow.full((4, 1, 3), 1 / 3).log()  # (steps, samples, labels)
    >>> nn.CTCLoss(reduction="none")(log_probs, flow.tensor([[1, 2]]), (4,), (2,)).shape
    flow.Size([1])
    """

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False
