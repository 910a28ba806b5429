"""MultiheadAttention: parameters with PyTorch's names, over the function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import AssertedError
from flowvm.nn import functional as F
from flowvm.nn import init
from flowvm.nn.module import Module
from flowvm.nn.modules._check import integer, probability
from flowvm.nn.modules.linear import Linear
from flowvm.nn.parameter import Parameter

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


# public: nn
class MultiheadAttention(Module):
    """Attention of several heads over projections of query, key and value.

    Inputs (L, N, embed_dim), (S, N, kdim), (S, N, vdim), with N in front if batch_first, or without
    it; output (L, N, embed_dim), and the weights, averaged over heads unless not
    `average_attn_weights`, or None if not `need_weights`.  Masks are those of
    `F.multi_head_attention_forward`.

    Parameters: in_proj_weight, or q_, k_ and v_proj_weight where kdim or vdim differ; in_proj_bias,
    out_proj; bias_k and bias_v, another key and value, with add_bias_kv.

    >>> x = flow.randn(5, 2, 8)
    >>> output, weights = nn.MultiheadAttention(8, 4)(x, x, x)
    >>> output.shape, weights.shape
    (flow.Size([5, 2, 8]), flow.Size([2, 5, 5]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = size = integer(self, "embed_dim", embed_dim, 1)
        self.num_heads = integer(self, "num_heads", num_heads, 1)
        self.head_dim = size // self.num_heads
        if self.head_dim * self.num_heads != size:
            raise AssertedError(
                f"MultiheadAttention: num_heads {num_heads} does not divide embed_dim {embed_dim}"
            )
        self.dropout = probability(self, "dropout", dropout)
        self.batch_first = batch_first
        self.kdim = size if kdim is None else integer(self, "kdim", kdim)
        self.vdim = size if vdim is None else integer(self, "vdim", vdim)
        self._qkv_same_embed_dim = self.kdim == self.vdim == size
        self.add_zero_attn = add_zero_attn
        shapes: dict[str, tuple[int, ...] | None] = {"in_proj_weight": (3 * size, size)}
        shapes |= dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight"))
        if not self._qkv_same_embed_dim:
            shapes = {
                "q_proj_weight": (size, size), "k_proj_weight": (size, self.kdim),
                "v_proj_weight": (size, self.vdim), "in_proj_weight": None,
            }  # fmt: skip
        shapes["in_proj_bias"] = (3 * size,) if bias else None
        shapes |= dict.fromkeys(("bias_k", "bias_v"), (1, 1, size) if add_bias_kv else None)
        for name, shape in shapes.items():
            data = None if shape is None else ops.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name, None if data is None else Parameter(data))
        self.out_proj = Linear(size, size, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, as PyTorch does: Xavier's, and zeros for biases."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if (weight := getattr(self, name)) is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):  # type: ignore[attr-defined]
            if bias is not None:
                init.zeros_(bias)
        for bias in (self.bias_k, self.bias_v):  # type: ignore[attr-defined]
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        turned = self.batch_first and query.ndim == 3
        if turned:  # what is one tensor stays one: it is projected at once
            same_k, same_v = key is query, value is key
            query = query.transpose(0, 1)
            key = query if same_k else key.transpose(0, 1)
            value = key if same_v else value.transpose(0, 1)
        own = self.__dict__
        out, weights = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, own["in_proj_weight"],
            own["in_proj_bias"], own["bias_k"], own["bias_v"], self.add_zero_attn, self.dropout,
            self.out_proj.weight, self.out_proj.bias, self.training, key_padding_mask,
            need_weights, attn_mask, not self._qkv_same_embed_dim, own["q_proj_weight"],
            own["k_proj_weight"], own["v_proj_weight"], average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )  # fmt: skip
        return (out.transpose(0, 1) if turned else out), weights
