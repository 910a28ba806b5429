"""Attention and Transformer layers: cases that PyTorch's samples do not have."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError, ShapeError

F = nn.functional


def test_attention_of_heads_is_attention_of_each(rng):
    """One head, identity projections: the function without them."""
    x = flow.tensor(rng.standard_normal((5, 2, 4)))
    attention = nn.MultiheadAttention(4, 1, bias=False, dtype=flow.float64)
    with flow.no_grad():
        attention.in_proj_weight.copy_(flow.eye(4).repeat(3, 1))
        attention.out_proj.weight.copy_(flow.eye(4))
    out, weights = attention(x, x, x)
    plain = F.scaled_dot_product_attention(*[x.transpose(0, 1)] * 3).transpose(0, 1)
    np.testing.assert_allclose(out.detach().numpy(), plain.numpy(), 1e-12, 1e-12)
    np.testing.assert_allclose(weights.sum(-1).detach().numpy(), 1.0)


def test_with_and_without_weights_agree(rng):
    attention = nn.MultiheadAttention(8, 2, kdim=3, vdim=5, add_bias_kv=True, add_zero_attn=True)
    q, k, v = (flow.tensor(rng.standard_normal(s).astype(np.float32)) for s in
               [(4, 2, 8), (6, 2, 3), (6, 2, 5)])  # fmt: skip
    padding = flow.tensor([[False] * 6, [True, True] + [False] * 4])
    mask = flow.triu(flow.ones(4, 6, dtype=flow.bool), 2)
    for causal in (None, mask):
        with_weights, _ = attention(q, k, v, padding, attn_mask=causal)
        without, none = attention(q, k, v, padding, False, causal)
        assert none is None
        np.testing.assert_allclose(
            with_weights.detach().numpy(), without.detach().numpy(), 1e-5, 1e-6
        )


def test_is_causal_is_the_causal_mask():
    x = flow.randn(3, 5, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    masked, hinted = layer(x, mask), layer(x, mask, is_causal=True)
    np.testing.assert_allclose(masked.detach().numpy(), hinted.detach().numpy(), 1e-5, 1e-6)
    assert not np.allclose(masked.detach().numpy(), layer(x).detach().numpy())
    with pytest.raises(ShapeError, match="must be given"):
        layer.self_attn(x, x, x, is_causal=True)


def test_a_graph_trains_a_transformer_as_eager_code_does():
    losses = []
    for graph in (False, True):
        flow.manual_seed(3)
        model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.2)
        src, tgt = flow.randn(5, 2, 8), flow.randn(4, 2, 8)
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

        def loss_of(src, tgt, model=model, mask=mask):
            return model(src, tgt, tgt_mask=mask, tgt_is_causal=True).square().mean()

        class Step(nn.Graph):
            def __init__(self, model, optimizer, loss_of):
                super().__init__()
                self.model, self.loss_of = model, loss_of
                self.add_optimizer(optimizer)

            def build(self, src, tgt):
                loss = self.loss_of(src, tgt)
                loss.backward()
                return loss

        def eager(src, tgt, optimizer=optimizer, loss_of=loss_of):
            optimizer.zero_grad()
            loss = loss_of(src, tgt)
            loss.backward()
            optimizer.step()
            return loss

        step = Step(model, optimizer, loss_of) if graph else eager
        losses.append([step(src, tgt).item() for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], 1e-5)
    assert losses[0][0] != losses[0][2]


@pytest.mark.parametrize(
    "options", [{}, {"activation": "gelu"}, {"norm_first": True}, {"batch_first": False}]
)
@pytest.mark.filterwarnings("ignore")
def test_an_encoder_skips_padding_where_torch_does(options, rng):
    """In evaluation without gradients, the outputs behind a sample's end are zero, or not."""
    torch = pytest.importorskip("torch")
    encoders = []
    for lib in (flow, torch):
        layer = lib.nn.TransformerEncoderLayer(8, 2, 16, **{"batch_first": True, **options})
        encoder = lib.nn.TransformerEncoder(layer, 2, lib.nn.LayerNorm(8))
        encoders.append(encoder.eval())
    ours, theirs = encoders
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    x = rng.standard_normal((3, 3, 8)).astype(np.float32)
    ends = [[False] * 3, [False, False, True], [False, True, True]]
    gaps = [[False] * 3, [True, False, True], [False, True, True]]
    for mask in (ends, gaps):
        for grad in (True, False):
            results = []
            for lib, encoder in ((flow, ours), (torch, theirs)):
                with lib.set_grad_enabled(grad):
                    out = encoder(lib.tensor(x), src_key_padding_mask=lib.tensor(mask))
                results.append(out.detach().numpy())
            np.testing.assert_allclose(*results, 1e-4, 1e-5)


def test_autocast_computes_attention_in_its_dtype():
    attention, x = nn.MultiheadAttention(8, 2), flow.randn(3, 2, 8)
    with flow.autocast("cpu", flow.bfloat16):
        assert attention(x, x, x, need_weights=False)[0].dtype is flow.bfloat16
        assert F.scaled_dot_product_attention(x, x, x).dtype is flow.bfloat16


def test_arguments_are_checked():
    with pytest.raises(ArgumentError, match="does not divide"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(ShapeError, match="activation"):
        nn.TransformerEncoderLayer(8, 2, activation="selu")
    attention, x = nn.MultiheadAttention(8, 2), flow.ones(3, 2, 8)
    with pytest.raises(ShapeError, match=r"attn_mask must have shape \(3, 3\)"):
        attention(x, x, x, attn_mask=flow.ones(2, 3))
    with pytest.raises(ShapeError, match=r"key_padding_mask must have shape \(2, 3\)"):
        attention(x, x, x, key_padding_mask=flow.ones(3, 2))
    with pytest.raises(ShapeError, match="bools or floats"):
        attention(x, x, x, attn_mask=flow.ones(3, 3, dtype=flow.int64))
    with pytest.raises(ArgumentError, match="embed_dim is 8"):
        attention(*[flow.ones(3, 2, 6)] * 3)
    with pytest.raises(ShapeError, match="2 or 3 dimensions"):
        attention(*[flow.ones(8)] * 3)
    model = nn.Transformer(8, 2, 1, 1, 16)
    with pytest.raises(ShapeError, match="as many samples"):
        model(x, flow.ones(3, 1, 8))
    with pytest.raises(ShapeError, match="d_model = 8"):
        model(x, flow.ones(3, 2, 4))
