"""Adaptive softmax: rare classes share clusters, which few samples need to look into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import int64
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules.containers import ModuleList, Sequential
from flowvm.nn.modules.linear import Linear

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


class _ASMoutput(NamedTuple):
    """The result of AdaptiveLogSoftmaxWithLoss: log-probabilities of the targets, and the loss,
    which is minus their mean.
    """

    output: Tensor
    loss: Tensor


# public: nn
class AdaptiveLogSoftmaxWithLoss(Module):
    """log-probabilities of classes that are sorted by frequency, the most frequent first (Grave et
    al., Efficient softmax approximation for GPUs, 2017).

    cutoffs    where clusters begin; classes below the first are the head's own
    div_value  how much narrower each cluster's projection is than the one before
    forward(input, target)   (N, in_features) and (N), or (in_features) and (): a named tuple of
               `output`, the log-probability of each target, and `loss`, less their mean

    >>> layer = nn.AdaptiveLogSoftmaxWithLoss(8, 10, cutoffs=[2, 5])
    >>> output, loss = layer(flow.ones(4, 8), flow.tensor([0, 1, 4, 9]))
    >>> output.shape, layer.log_prob(flow.ones(4, 8)).shape
    (flow.Size([4]), flow.Size([4, 10]))
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        cuts = [int(cut) for cut in cutoffs]
        if not cuts or cuts != sorted(set(cuts)) or cuts[0] <= 0 or cuts[-1] > n_classes - 1:
            raise ArgumentError(
                f"AdaptiveLogSoftmaxWithLoss: cutoffs are numbers that grow, from 1 to "
                f"{n_classes - 1}, got {list(cutoffs)}"
            )
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs = [*cuts, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = cuts[0], len(cuts)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, device, dtype)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            hidden = int(in_features // (div_value ** (i + 1)))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(
                Sequential(
                    Linear(in_features, hidden, False, device, dtype),
                    Linear(hidden, size, False, device, dtype),
                )
            )

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        if target_.ndim > 1 or input_.ndim != target_.ndim + 1:
            raise ShapeError(
                f"AdaptiveLogSoftmaxWithLoss: input is (N, {self.in_features}) and target (N), or "
                f"neither has N, got {tuple(input_.shape)} and {tuple(target_.shape)}"
            )
        x = input_ if target_.ndim else input_.unsqueeze(0)
        target = target_ if target_.ndim else target_.unsqueeze(0)
        if x.shape[0] != target.shape[0]:
            raise ShapeError(
                f"AdaptiveLogSoftmaxWithLoss: {x.shape[0]} inputs and {target.shape[0]} targets"
            )
        cluster = ops.zeros_like(target)
        output: Tensor | None = None
        for i, (first, end) in enumerate(zip(self.cutoffs, self.cutoffs[1:], strict=False)):
            inside = ops.logical_and(ops.ge(target, first), ops.lt(target, end))
            rows = ops.nonzero(inside).squeeze(1)
            if rows.numel() == 0:
                continue
            cluster = cluster + inside.to(int64) * (self.shortlist_size + i)
            likely = F.log_softmax(self.tail[i](ops.index_select(x, 0, rows)), 1)
            column = (ops.index_select(target, 0, rows) - first).unsqueeze(1)
            own = ops.gather(likely, 1, column).squeeze(1)
            base = ops.zeros((x.shape[0],), dtype=own.dtype, device=own.device)
            part = ops.index_add(base, 0, rows, own)
            output = part if output is None else output + part
        frequent = ops.lt(target, self.shortlist_size)
        head = F.log_softmax(self.head(x), 1)
        index = ops.where(frequent, target, cluster)
        # a target that is no class has an index that is none either: gather finds it
        index = index.masked_fill(ops.ge(target, self.n_classes), self.head_size)
        picked = ops.gather(head, 1, index.unsqueeze(1)).squeeze(1)
        likelihood = picked if output is None else output + picked
        loss = -likelihood.mean()
        return _ASMoutput(likelihood if target_.ndim else likelihood.squeeze(0), loss)

    def _full(self, x: Tensor, head: Tensor) -> Tensor:
        likely = F.log_softmax(head, 1)
        short = self.shortlist_size
        parts = [likely[:, :short]]
        for i in range(self.n_clusters):
            parts.append(F.log_softmax(self.tail[i](x), 1) + likely[:, short + i : short + i + 1])
        return ops.cat(parts, 1)

    def log_prob(self, input: Tensor) -> Tensor:
        """(N, n_classes): the log-probability of each class, for input (N, in_features)."""
        return self._full(input, self.head(input))

    def predict(self, input: Tensor) -> Tensor:
        """(N): the most probable class, for input (N, in_features)."""
        best: Tensor = ops.argmax(self.log_prob(input), 1)
        return best
