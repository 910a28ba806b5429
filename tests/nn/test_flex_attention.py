"""Attention by functions of a place: PyTorch's blocks, numbers and gradients."""

import functools
import math
import operator
import sys
import types

import numpy as np
import pytest

import flowvm as flow
import flowvm.nn.attention.flex_attention as ours
from flowvm.nn.attention.lanes import over_places

B, HEADS, KV_HEADS, QUERIES, KEYS, FEATURES = 2, 4, 2, 7, 9, 8
SCALE = 0.3
DOCUMENTS = [[0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 2, 2, 3, 3]]
RNG = np.random.default_rng(0)
ARRAYS = {
    "q": RNG.standard_normal((B, HEADS, QUERIES, FEATURES)),
    "k": RNG.standard_normal((B, KV_HEADS, KEYS, FEATURES)),
    "v": RNG.standard_normal((B, KV_HEADS, KEYS, 5)),
    "bias": RNG.standard_normal((B, 1, QUERIES, KEYS)),
    "slope": RNG.standard_normal(HEADS),
}


def _causal(b, h, q, k):
    return q >= k


# mask_mods: of the framework and its flex_attention module; heads and batch they depend on
MASKS = {
    "none": lambda xp, m: None,
    "causal": lambda xp, m: (_causal, None, None, 2, True),
    "documents": lambda xp, m: (
        m.and_masks(_causal, functools.partial(
            lambda doc, b, h, q, k: doc[b, q] == doc[b, k], xp.tensor(DOCUMENTS))),
        B, None, (2, 4), True),
    "unseen": lambda xp, m: (
        m.or_masks(lambda b, h, q, k: (q == k) & (q < 5), lambda b, h, q, k: (k < 2) & (q < h)),
        B, HEADS, 3, False),
}  # fmt: skip
# score_mods, and the same of all places at once, in PyTorch
SCORES = {
    "none": (lambda xp, bias, slope: None, lambda s, bias, slope, q, k: s),
    "looked up": (
        lambda xp, bias, slope: lambda s, b, h, q, k: s + bias[b, 0, q, k] * slope[h],
        lambda s, bias, slope, q, k: s + bias * slope[:, None, None]),
    "row by row": (
        lambda xp, bias, slope: lambda s, b, h, q, k: s + bias[b][0][q][k],
        lambda s, bias, slope, q, k: s + bias),
    "of places": (
        lambda xp, bias, slope: lambda s, b, h, q, k:
            (s / 20).tanh() * 20 - slope[h] * abs(q - k),
        lambda s, bias, slope, q, k: (s / 20).tanh() * 20 - slope[:, None, None] * abs(q - k)),
    "hides": (
        lambda xp, bias, slope: lambda s, b, h, q, k: xp.where(q >= k + 1, s, -float("inf")),
        lambda s, bias, slope, q, k: s.masked_fill(q < k + 1, -float("inf"))),
}  # fmt: skip


def block_mask(framework, flex, name):
    expected = MASKS[name](framework, flex)
    if expected is None:
        return None
    mod, batch, heads, size, apart = expected
    return flex.create_block_mask(
        mod, batch, heads, QUERIES, KEYS, device="cpu", BLOCK_SIZE=size, separate_full_blocks=apart
    )


def joined(operation):
    return lambda *mods: lambda *at: functools.reduce(operation, [mod(*at) for mod in mods])


PLAIN = types.SimpleNamespace(and_masks=joined(operator.and_), or_masks=joined(operator.or_))


def all_places(framework):
    """Batch, head, query and key, as tensors that broadcast."""
    sizes = B, HEADS, QUERIES, KEYS
    return [
        framework.arange(n).reshape([-1 if d == e else 1 for e in range(4)])
        for d, n in enumerate(sizes)
    ]


def same(a, b):
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=2e-5, rtol=2e-4)


def test_numbers_are_those_of_pytorchs_flex_attention():
    """Compare with the function that PyTorch calls on the CPU, without the compiler around it."""
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("torch.nn.attention.flex_attention")
    peer = sys.modules["torch._higher_order_ops.flex_attention"].math_attention
    score, mask = SCORES["row by row"][0], "unseen"
    expected, lse, _ = peer(
        *(torch.tensor(ARRAYS[n]) for n in "qkv"), score(torch, torch.tensor(ARRAYS["bias"]), None),
        block_mask(torch, theirs, mask).as_tuple(), SCALE, {},
    )  # fmt: skip
    output, levels = ours.flex_attention(
        *(flow.tensor(ARRAYS[n]) for n in "qkv"), score(flow, flow.tensor(ARRAYS["bias"]), None),
        block_mask(flow, ours, mask), SCALE, enable_gqa=True, return_lse=True,
    )  # fmt: skip
    same(output, expected)
    same(levels, lse * math.log(2))


@pytest.mark.parametrize("name", ["documents", "unseen"])
def test_block_masks_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("torch.nn.attention.flex_attention")
    mask, peer = block_mask(flow, ours, name), block_mask(torch, theirs, name)
    for part in (None, 0, -1, (0, 0), (slice(None), slice(0, 1)), (0, 0, slice(1, 2))):
        a, b = (mask, peer) if part is None else (mask[part], peer[part])
        assert a.shape == b.shape, part
        assert abs(a.sparsity() - b.sparsity()) < 1e-9
        assert np.array_equal(a.to_dense().numpy(), b.to_dense().numpy()), part
        for field in ours.BlockMask._TENSORS:
            x, y = getattr(a, field), getattr(b, field)
            assert (x is None) == (y is None), field
            if x is not None:
                assert x.numpy().dtype == y.numpy().dtype
                assert np.array_equal(x.numpy(), y.numpy()), (part, field)
    assert mask.to_string(limit=99) == peer.to_string(limit=99)
    assert mask.numel() == peer.numel()
    less, fewer = mask._adjust(4, 5), peer._adjust(4, 5)
    assert less.shape == fewer.shape
    whole = [
        m.create_mask(x.mask_mod, B, HEADS, 4, 5, device="cpu")
        for m, x in ((ours, less), (theirs, fewer))
    ]
    assert np.array_equal(whole[0].numpy(), whole[1].numpy())


@pytest.mark.parametrize(
    ("mask", "score"),
    [("none", "of places"), ("causal", "looked up"), ("documents", "none"),
     ("unseen", "row by row"), ("unseen", "hides")],
)  # fmt: skip
def test_numbers_and_gradients_are_those_of_a_composition_in_pytorch(mask, score):
    torch = pytest.importorskip("torch")
    mod, dense = SCORES[score]
    mine = {n: flow.tensor(a.astype(np.float32), requires_grad=True) for n, a in ARRAYS.items()}
    peer = {n: torch.tensor(a.astype(np.float32), requires_grad=True) for n, a in ARRAYS.items()}
    options = {"enable_gqa": True, "scale": SCALE}

    out, aux = ours.flex_attention(
        mine["q"], mine["k"], mine["v"], mod(flow, mine["bias"], mine["slope"]),
        block_mask(flow, ours, mask),
        return_aux=ours.AuxRequest(lse=True, max_scores=True), **options,
    )  # fmt: skip
    alone = ours.flex_attention(
        mine["q"], mine["k"], mine["v"], mod(flow, mine["bias"], mine["slope"]),
        block_mask(flow, ours, mask), **options,
    )  # fmt: skip
    same(alone, out)
    places = torch.arange(QUERIES)[:, None], torch.arange(KEYS)
    k, v = (peer[n].repeat_interleave(HEADS // KV_HEADS, 1) for n in "kv")
    scores = dense(peer["q"] @ k.mT * SCALE, peer["bias"], peer["slope"], *places)
    if mask != "none":
        values = MASKS[mask](torch, PLAIN)[0](*all_places(torch))
        scores = scores.masked_fill(~values, -float("inf"))
    same(aux.lse, scores.logsumexp(-1))
    same(aux.max_scores, scores.amax(-1))
    blind = (scores == -float("inf")).all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    (weights @ v).square().sum().backward()
    for result in (out, alone):
        for t in mine.values():
            t.grad = None
        result.square().sum().backward()
        for name, t in mine.items():
            assert (t.grad is None) == (peer[name].grad is None), name
            if t.grad is not None:
                same(t.grad, peer[name].grad)


def test_only_what_is_made_of_single_numbers_is_computed_at_once():
    sizes = (2, 3, 4, 5)
    score = flow.tensor(RNG.standard_normal(sizes))
    table = flow.tensor(RNG.standard_normal((2, 4, 5)))
    line = flow.tensor(RNG.standard_normal(5))
    cases = {  # and the calls that they take beside the one that is looked at
        "arithmetic": (lambda s, b, h, q, k: s * (h + 1) - abs(q - k), 1),
        "looked up": (lambda s, b, h, q, k: s + table[b, q, k] * line[k], 1),
        "row by row": (lambda s, b, h, q, k: s + table[b][q][k], 2 * 4),
        "summed": (lambda s, b, h, q, k: s + table[b, q].sum() * table[b].mean(), 2 * 4),
        "of the score": (lambda s, b, h, q, k: s + s.reshape(1).sum(), 2 * 3 * 4 * 5),
        "in place": (lambda s, b, h, q, k: s.clone().add_(k), 2 * 3 * 4 * 5),
    }  # fmt: skip
    for name, (mod, calls) in cases.items():
        made_calls = []

        def counted(*numbers, mod=mod, made_calls=made_calls):
            made_calls.append(numbers)
            return mod(*numbers)

        values = over_places("score_mod", counted, sizes, score, "cpu").expand(sizes).numpy()
        for place in ((0, 0, 0, 0), (1, 2, 3, 4), (1, 0, 2, 1), (0, 2, 1, 3)):
            expected = mod(score[place], *(flow.tensor(i) for i in place)).item()
            assert np.isclose(values[place], expected), (name, place)
        assert len(made_calls) == 1 + calls, name


def test_it_is_captured_like_any_call():
    q = flow.tensor(ARRAYS["q"])
    bias = flow.tensor(ARRAYS["slope"])
    mask = ours.create_block_mask(_causal, None, None, QUERIES, QUERIES, BLOCK_SIZE=4)

    def attend(q, bias):
        return ours.flex_attention(q, q, q, lambda s, b, h, q, k: s + bias[h] * k, mask)

    same(flow.compile(attend)(q, bias), attend(q, bias))
    x = flow.tensor(ARRAYS["q"], requires_grad=True)  # as programs for PyTorch do
    flow.compile(ours.flex_attention)(x, x, x, lambda s, b, h, q, k: s + bias[h]).sum().backward()
    assert x.grad.shape == x.shape


def test_parts_of_a_mask_decode():
    """Decode as programs do: one row of blocks, with a mask_mod that knows its position."""
    q = flow.tensor(RNG.standard_normal((1, 1, 8, 4)))
    mask = ours.create_block_mask(_causal, None, None, 8, 8, BLOCK_SIZE=2)
    part = mask[:, :, 2]
    part.seq_lengths = (1, 8)
    with pytest.raises(flow.errors.ArgumentError, match="sliced BlockMask"):
        ours.flex_attention(q[:, :, 5:6], q, q, block_mask=part)
    part.mask_mod = lambda b, h, q_idx, k: _causal(b, h, q_idx + 5, k)
    same(
        ours.flex_attention(q[:, :, 5:6], q, q, block_mask=part),
        ours.flex_attention(q, q, q, block_mask=mask)[:, :, 5:6],
    )


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda q, m: ours.flex_attention(q[0], q[0], q[0]), NotImplementedError, "4D"),
        (lambda q, m: ours.flex_attention(q, q[:, :2], q[:, :2]), ValueError, "enable_gqa=True"),
        (lambda q, m: ours.flex_attention(q, q[:, :3], q[:, :3], enable_gqa=True), ValueError,
         "multiple of kv heads"),
        (lambda q, m: ours.flex_attention(q, q, q.float()), ValueError, "one floating point dtype"),
        (lambda q, m: ours.flex_attention(q[:, :, :3], q, q, block_mask=m), ValueError, "_adjust"),
        (lambda q, m: ours.flex_attention(q, q, q, _causal), TypeError, "mask_mod"),
        (lambda q, m: ours.flex_attention(q, q, q, lambda s, b, h, q, k: s.expand(2)), ValueError,
         "gives one number"),
        (lambda q, m: ours.flex_attention(q, q, q, lambda s, b, h, q, k: s if q > k else 0 * s),
         flow.errors.CaptureError, "value"),
        (lambda q, m: ours.flex_attention(q, q, q, lambda s, b, h, q, k: 1.0), TypeError, "float"),
        (lambda q, m: ours.create_block_mask(lambda q, k: q > k, 1, 1, 2, 2), TypeError, "of 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(call, kind, says):
    q = flow.tensor(ARRAYS["q"])
    mask = ours.create_block_mask(_causal, None, None, QUERIES, QUERIES)
    with pytest.raises(kind, match=says):
        call(q, mask)
