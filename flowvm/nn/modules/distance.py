"""Distance and similarity as modules."""

from __future__ import annotations

from flowvm.eager.tensor import Tensor
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules.layer import layer


# public: nn
class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps over the last dimension.

    >>> nn.PairwiseDistance(eps=0.0)(flow.zeros(1, 2), flow.tensor([[3.0, 4.0]]))
    tensor([5.])
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


# public: nn
@layer(F.cosine_similarity, "x1, x2", shown="")
class CosineSimilarity(Module):
    """x1 . x2 / (|x1| |x2|) along `dim`.

    >>> nn.CosineSimilarity()(flow.tensor([[1.0, 0.0]]), flow.tensor([[3.0, 4.0]]))
    tensor([0.6000])
    """

    dim: int = 1
    eps: float = 1e-8
