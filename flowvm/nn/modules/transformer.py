"""Transformer: encoder and decoder layers, stacks of them, and both (Vaswani et al., "Attention Is
All You Need", 2017; norm_first as Xiong et al., "On Layer Normalization in the Transformer
Architecture", 2020).

Masks are those of `F.multi_head_attention_forward`.  The `is_causal` arguments say that a mask that
is given too is the causal one; None, where it is the default, leaves the mask to be applied as it
is.  What is computed is the same in training and in evaluation, but for dropout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.eager.autocast import autocast_dtype
from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.meta.dtype import DType, float32
from flowvm.nn import functional as F
from flowvm.nn import init
from flowvm.nn.composites.attention import added_mask
from flowvm.nn.module import Module
from flowvm.nn.modules.activation import GELU, ReLU
from flowvm.nn.modules.attention import MultiheadAttention
from flowvm.nn.modules.containers import ModuleList
from flowvm.nn.modules.dropout import Dropout
from flowvm.nn.modules.linear import Linear
from flowvm.nn.modules.normalization import LayerNorm

# public: nn

if TYPE_CHECKING:
    from flowvm.meta.device import Device

Activation = str | Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    if activation not in _ACTIVATIONS:
        raise ShapeError(f'activation must be "relu" or "gelu" or callable, got {activation!r}')
    return _ACTIVATIONS[activation]


_get_activation_fn = _activation  # PyTorch's name


class _Layer(Module):
    """Base of encoder and decoder layers: attentions and a feed-forward block, each with a numbered
    norm and dropout of its own.
    """

    _attentions: tuple[str, ...]
    self_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    dropout1: Dropout
    dropout2: Dropout

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        kind: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        for name in self._attentions:
            attention = MultiheadAttention(
                d_model, nhead, dropout=dropout, batch_first=batch_first, **kind
            )
            setattr(self, name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, **kind)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **kind)
        self.norm_first = norm_first
        blocks = range(1, len(self._attentions) + 2)
        for k in blocks:
            setattr(self, f"norm{k}", LayerNorm(d_model, eps=layer_norm_eps, **kind))
        for k in blocks:
            setattr(self, f"dropout{k}", Dropout(dropout))
        self.activation = _activation(activation)

    def _fed(self, x: Tensor, last: Module) -> Tensor:
        inner = self.dropout(self.activation(self.linear1(x)))
        out: Tensor = last(self.linear2(inner))
        return out

    def _attended(
        self,
        attention: MultiheadAttention,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None,
        padding: Tensor | None,
        is_causal: bool,
        dropout: Module,
    ) -> Tensor:
        mixed = attention(
            x, memory, memory, attn_mask=mask, key_padding_mask=padding, is_causal=is_causal,
            need_weights=False,
        )[0]  # fmt: skip
        out: Tensor = dropout(mixed)
        return out


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward block, each added to its input, with a LayerNorm behind, or
    in front if norm_first.

    `activation` is "relu", "gelu" or a function.

    >>> nn.TransformerEncoderLayer(8, 2, 16)(flow.randn(5, 3, 8)).shape
    flow.Size([5, 3, 8])
    """

    _attentions = ("self_attn",)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        padding = added_mask(src_key_padding_mask, "src_key_padding_mask", src.dtype)
        mask = added_mask(src_mask, "src_mask", src.dtype)

        def attended(x: Tensor) -> Tensor:
            return self._attended(self.self_attn, x, x, mask, padding, is_causal, self.dropout1)

        x = src
        if self.norm_first:
            x = x + attended(self.norm1(x))
            x = x + self._fed(self.norm2(x), self.dropout2)
        else:
            x = self.norm1(x + attended(x))
            x = self.norm2(x + self._fed(x, self.dropout2))
        return x


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to `memory` and a feed-forward block, each added to its input, with
    a LayerNorm behind, or in front if norm_first.

    >>> nn.TransformerDecoderLayer(8, 2, 16)(flow.randn(5, 3, 8), flow.randn(7, 3, 8)).shape
    flow.Size([5, 3, 8])
    """

    _attentions = "self_attn", "multihead_attn"
    multihead_attn: MultiheadAttention
    norm3: LayerNorm
    dropout3: Dropout

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        def own(x: Tensor) -> Tensor:
            return self._attended(
                self.self_attn, x, x, tgt_mask, tgt_key_padding_mask, tgt_is_causal, self.dropout1
            )

        def other(x: Tensor) -> Tensor:
            return self._attended(
                self.multihead_attn, x, memory, memory_mask, memory_key_padding_mask,
                memory_is_causal, self.dropout2,
            )  # fmt: skip

        x = tgt
        if self.norm_first:
            x = x + own(self.norm1(x))
            x = x + other(self.norm2(x))
            x = x + self._fed(self.norm3(x), self.dropout3)
        else:
            x = self.norm1(x + own(x))
            x = self.norm2(x + other(x))
            x = self.norm3(x + self._fed(x, self.dropout3))
        return x


def _copies(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class TransformerEncoder(Module):
    """`num_layers` copies of a TransformerEncoderLayer, and a norm behind them.

    Where PyTorch skips padding, its places come out as zeros (before the norm), and here too: with
    enable_nested_tensor, in evaluation, where nothing records gradients, for (samples, steps,
    features) and a src_key_padding_mask that masks the ends of samples, and no other mask; and if
    the layers have an even number of heads, biases, relu or gelu, and norms behind.  `mask_check`
    is taken: whether only ends are masked is always asked.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> nn.TransformerEncoder(layer, num_layers=2)(flow.ones(4, 5, 8)).shape
    flow.Size([4, 5, 8])
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check
        self._skips = enable_nested_tensor and _skips_padding(encoder_layer)

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        padding = added_mask(src_key_padding_mask, "src_key_padding_mask", src.dtype)
        mask = added_mask(mask, "mask", src.dtype)
        skips = mask is None and self._skips_now(src)
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=padding, is_causal=bool(is_causal))
        if skips and padding is not None:
            ends = ops.ne(padding, 0)
            only_ends = ops.eq(ends, ops.cummax(ends.int(), 1)[0]).all()
            src = src.masked_fill((ends & only_ends).unsqueeze(-1), 0.0)
        return src if self.norm is None else self.norm(src)

    def _skips_now(self, src: Tensor) -> bool:
        if (
            not self._skips
            or self.layers[0].training
            or src.ndim != 3
            or autocast_dtype() is not None
        ):
            return False
        recorded = src.requires_grad or any(p.requires_grad for p in self.layers[0].parameters())
        return not (grad_enabled() and recorded)


def _skips_padding(layer: Module) -> bool:
    """Return True if PyTorch would skip padding in such layers."""
    if not isinstance(layer, TransformerEncoderLayer):
        return False
    attention, activation = layer.self_attn, layer.activation
    return (
        not layer.norm_first
        and attention.batch_first
        and attention._qkv_same_embed_dim
        and attention.in_proj_bias is not None  # type: ignore[attr-defined]
        and attention.num_heads % 2 == 0
        and layer.norm1.eps == layer.norm2.eps
        and (activation in (F.relu, F.gelu) or isinstance(activation, (ReLU, GELU)))
    )


class TransformerDecoder(Module):
    """`num_layers` copies of a TransformerDecoderLayer, and a norm behind them.

    >>> layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    >>> decoder = nn.TransformerDecoder(layer, num_layers=2)
    >>> decoder(flow.ones(4, 5, 8), flow.ones(4, 7, 8)).shape
    flow.Size([4, 5, 8])
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        for layer in self.layers:
            tgt = layer(
                tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )  # fmt: skip
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder: src (S, N, E), tgt (T, N, E) to (T, N, E); N first if batch_first.

    >>> model = nn.Transformer(8, 2, 1, 1, 16)
    >>> model(flow.randn(5, 3, 8), flow.randn(4, 3, 8)).shape
    flow.Size([4, 3, 8])
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        kind: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        layer = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first,
        )  # fmt: skip
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*layer, **kind),
            num_encoder_layers,
            LayerNorm(d_model, eps=layer_norm_eps, **kind),
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*layer, **kind),
            num_decoder_layers,
            LayerNorm(d_model, eps=layer_norm_eps, **kind),
        )
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new matrices, as Xavier's uniform ones."""
        for param in self.parameters():
            if param.ndim > 1:
                init.xavier_uniform_(param)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        samples = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[samples] != tgt.shape[samples]:
            raise ShapeError(
                f"Transformer: src and tgt must have as many samples, got shapes "
                f"{tuple(src.shape)} and {tuple(tgt.shape)}"
            )
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ShapeError(
                f"Transformer: src and tgt must have d_model = {self.d_model} features, got shapes "
                f"{tuple(src.shape)} and {tuple(tgt.shape)}"
            )
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        out: Tensor = self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip
        return out

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: Device | str | None = None, dtype: DType | None = None
    ) -> Tensor:
        """The causal mask (sz, sz): -inf above the diagonal, 0 elsewhere.

        >>> nn.Transformer.generate_square_subsequent_mask(2)
        tensor([[0., -inf],
                [0., 0.]])
        """
        full = ops.full((sz, sz), float("-inf"), dtype=dtype or float32, device=device)
        mask: Tensor = ops.triu(full, 1)
        return mask
