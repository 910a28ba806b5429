"""Embedding: a table of vectors looked up by integer, one by one or bag by bag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import AssertedError, ShapeError
from flowvm.nn import functional as F
from flowvm.nn import init
from flowvm.nn.module import Module
from flowvm.nn.modules._check import choice, integer
from flowvm.nn.parameter import Parameter

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


# public: nn
class Embedding(Module):
    """Row i of a (num_embeddings, embedding_dim) table for each integer i of the input.

    The row at padding_idx starts as zeros and gets no gradient.

    >>> table = nn.Embedding.from_pretrained(flow.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> table(flow.tensor([1, 0]))
    tensor([[3., 4.],
            [1., 2.]])
    >>> nn.Embedding(10, 3)(flow.tensor([[1, 2], [3, 4]])).shape
    flow.Size([2, 2, 3])
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings = integer(self, "num_embeddings", num_embeddings)
        self.embedding_dim = integer(self, "embedding_dim", embedding_dim)
        self.padding_idx = self._row(padding_idx)
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        shape = (self.num_embeddings, self.embedding_dim)
        if _weight is None:
            data = ops.empty(shape, device=device, dtype=dtype)
            self.weight = Parameter(data, requires_grad=not _freeze)
            self.reset_parameters()
            return
        if tuple(_weight.shape) != shape:
            raise ShapeError(
                f"{type(self).__name__}: the table has shape {shape}, got {tuple(_weight.shape)}"
            )
        self.weight = Parameter(_weight.detach(), requires_grad=not _freeze)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, **options: Any
    ) -> Self:
        """One whose table is the given tensor, frozen if `freeze`; `options` as for the layer."""
        if embeddings.ndim != 2:
            raise ShapeError(
                f"{cls.__name__}.from_pretrained needs a 2-D table, got shape "
                f"{tuple(embeddings.shape)}"
            )
        rows, columns = embeddings.shape
        return cls(
            rows, columns, padding_idx=padding_idx, _weight=embeddings, _freeze=freeze, **options
        )

    def _row(self, index: int | None) -> int | None:
        if index is None:
            return None
        if not -self.num_embeddings <= index < self.num_embeddings:
            raise AssertedError(
                f"Embedding: padding_idx={index} is not a row of {self.num_embeddings}"
            )
        return index % self.num_embeddings

    def reset_parameters(self) -> None:
        """Draw the table from N(0, 1)."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].zero_()

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    def extra_repr(self) -> str:
        parts = [f"{self.num_embeddings}, {self.embedding_dim}"]
        for name, usual in _USUAL.items():
            if getattr(self, name) != usual:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


# what the repr leaves out: PyTorch's shows scale_grad_by_freq and sparse only where they are set
_USUAL = {
    "padding_idx": None,
    "max_norm": None,
    "norm_type": 2.0,
    "scale_grad_by_freq": False,
    "sparse": False,
}


# public: nn
class EmbeddingBag(Embedding):
    """The mean, sum or maximum of the rows of a table that the integers of a bag name.

    >>> table = nn.EmbeddingBag.from_pretrained(flow.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> table(flow.tensor([[0, 1], [1, 1]]))  # the mean of each bag
    tensor([[2., 3.],
            [3., 4.]])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Device | str | None = None,
        dtype: DType | None = None,
        *,
        _freeze: bool = False,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            _weight,
            _freeze,
            device,
            dtype,
        )
        self.mode = choice(self, "mode", mode, ("sum", "mean", "max"))
        self.include_last_offset = include_last_offset

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
