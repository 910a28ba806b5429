"""Recurrent networks against their steps written in ops, and against torch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.ops.sequences.parts.scans import GATES, scan
from flowvm.ops.sequences.parts.steps import run_steps

UNEVEN = (5, 5, 3, 2, 1, 1)  # samples of each step
NETWORKS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def operands(rng, cell, samples, rows, size=6):
    """Gates, weight, bias and state of a scan, as leaves."""
    gates = GATES[cell] * size
    shapes = (rows, gates), (gates, size), (gates,), (samples, size * (1 + (cell == "lstm")))
    return [flow.tensor(rng.standard_normal(s)).requires_grad_(True) for s in shapes]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("sizes", [UNEVEN, (30,) * 3], ids=["uneven", "even"])
def test_the_kernel_computes_the_steps(rng, cell, sizes, reverse):
    leaves = operands(rng, cell, sizes[0], sum(sizes))
    x, weight, bias, state = leaves
    ways = []
    for fused in (True, False):
        if fused:
            out, last, _ = scan(x, weight, bias, state, cell, sizes, reverse)
        else:
            parts = tuple(state.split(6, 1))
            out, after = run_steps(x, weight, bias, None, parts, cell, sizes, reverse)
            last = flow.cat(list(after), 1)
        loss = (out * out.detach().cos()).sum() + (last * last.detach().sin()).sum()
        first = flow.autograd.grad(loss, leaves, create_graph=True)
        again = flow.autograd.grad(loss, leaves, retain_graph=True)
        second = flow.autograd.grad(sum((g * g).sum() for g in first), leaves)
        ways.append([out, last, *first, *second])
        for g, h in zip(first, again, strict=True):
            np.testing.assert_allclose(g.detach().numpy(), h.numpy(), 1e-9, 1e-9)
    for a, b in zip(*ways, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), 1e-9, 1e-9)


@pytest.mark.parametrize("network", ["lstm", "gru"])
def test_the_same_bits_with_1_and_3_workers(rng, network):
    shapes = network_shapes(network, 40, 33, 1, True, True, 0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in [(7, 70, 40), *shapes]]
    results = []
    for workers in (1, 2, 3):
        with flow.config(workers=workers):
            tensors = [flow.tensor(a).requires_grad_(True) for a in arrays]
            x, *params = tensors
            hx = [flow.ones(2, 70, 33)] * (2 if network == "lstm" else 1)
            hx = tuple(hx) if network == "lstm" else hx[0]
            out = getattr(flow, network)(x, hx, params, True, 1, 0.0, True, True, False)
            sum(o.sum() for o in out).backward()
            results.append([t.numpy().tobytes() for t in (*(o.detach() for o in out),)])
            results[-1] += [t.grad.numpy().tobytes() for t in tensors]
    assert results[0] == results[1] == results[2]


def network_shapes(network, features, size, layers, both, biased, projected):
    gates, outs = GATES[network.removeprefix("rnn_")] * size, projected or size
    shapes = []
    for layer, _ in itertools.product(range(layers), range(1 + both)):
        ins = outs * (1 + both) if layer else features
        shapes += [(gates, ins), (gates, outs), *[(gates,)] * (2 * biased)]
        shapes += [(outs, size)] * bool(projected)
    return shapes


CALLS = {
    "plain": {},
    "no bias, one way, batch first": {"biased": False, "both": False, "batch_first": True},
    "packed": {"sizes": UNEVEN},
    "projected": {"projected": 2},
    "projected and packed": {"projected": 2, "sizes": UNEVEN},
}


@pytest.mark.parametrize(
    ("network", "how"),
    [(n, how) for n in NETWORKS for how in CALLS if n == "lstm" or "projected" not in CALLS[how]],
)
def test_like_torch(rng, network, how):
    torch = pytest.importorskip("torch")
    options = {"biased": True, "both": True, "batch_first": False, "sizes": (), "projected": 0}
    options |= CALLS[how]
    sizes, projected = options["sizes"], options["projected"]
    ways, size = 2 * (1 + options["both"]), 4
    shape = (sum(sizes), 3) if sizes else (5, 5, 3)
    states = [(ways, 5, projected or size), (ways, 5, size)][: 1 + (network == "lstm")]
    shapes = network_shapes(network, 3, size, 2, options["both"], options["biased"], projected)
    arrays = [rng.standard_normal(s) for s in [shape, *states, *shapes]]
    weights = []
    ways = []
    for lib in (flow, torch):
        leaves = [lib.tensor(a).requires_grad_(True) for a in arrays]
        x, rest = leaves[0], leaves[1:]
        hx = tuple(rest[:2]) if network == "lstm" else rest[0]
        flags = [rest[len(states) :], options["biased"], 2, 0.0, True, options["both"]]
        if sizes:
            out = getattr(lib, network)(x, lib.tensor(sizes), hx, *flags)
        else:
            out = getattr(lib, network)(x, hx, *flags, options["batch_first"])
        weights = weights or [rng.standard_normal(tuple(o.shape)) for o in out]
        loss = sum((o * lib.tensor(w)).sum() for o, w in zip(out, weights, strict=True))
        ways.append([*out, *lib.autograd.grad(loss, leaves)])
    for ours, theirs in zip(*ways, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), 1e-9, 1e-9)


def test_lstm_cell(rng):
    x, h, c = (rng.standard_normal((3, n)) for n in (5, 2, 2))
    w_ih, w_hh, b_ih, b_hh = (rng.standard_normal(s) for s in [(8, 5), (8, 2), 8, 8])
    i, f, g, o = np.split(x @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, 1)
    i, f, o = (1 / (1 + np.exp(-v)) for v in (i, f, o))
    cell = f * c + i * np.tanh(g)
    state = flow.lstm_cell(
        *(flow.tensor(x), (flow.tensor(h), flow.tensor(c))),
        *(flow.tensor(w) for w in (w_ih, w_hh, b_ih, b_hh)),
    )
    np.testing.assert_allclose(state[0].numpy(), o * np.tanh(cell), 1e-12)
    np.testing.assert_allclose(state[1].numpy(), cell, 1e-12)


def test_dropout_stands_between_layers():
    params = [flow.ones(*s) for s in network_shapes("rnn_relu", 1, 1, 2, False, False, 0)]
    x, hx = flow.ones(1, 1000, 1), flow.zeros(2, 1000, 1)
    for train, values in ((True, {0.0, 2.0}), (False, {1.0})):
        out, h = flow.rnn_relu(x, hx, params, False, 2, 0.5, train, False, False)
        assert set(out.flatten().tolist()) == values
        assert set(h[0].flatten().tolist()) == {1.0}


def test_reduced_floats_and_autocast(rng):
    shapes = network_shapes("gru", 3, 4, 1, False, True, 0)
    x, hx, *params = (flow.tensor(rng.standard_normal(s)) for s in [(5, 2, 3), (1, 2, 4), *shapes])
    exact, _ = flow.gru(x, hx, params, True, 1, 0.0, True, False, False)
    for dtype in (flow.float16, flow.bfloat16):
        low = [p.to(dtype) for p in params]
        out, h = flow.gru(x.to(dtype), hx.to(dtype), low, True, 1, 0.0, True, False, False)
        assert out.dtype is h.dtype is dtype
        np.testing.assert_allclose(out.to(flow.float64).numpy(), exact.numpy(), 0.05, 0.05)
    single = [t.to(flow.float32) for t in (x, hx, *params)]
    with flow.autocast("cpu", flow.bfloat16):
        out, _ = flow.gru(*single[:2], single[2:], True, 1, 0.0, True, False, False)
    assert out.dtype is flow.bfloat16


def test_what_does_not_fit_is_said_at_the_call():
    params = [flow.ones(*s) for s in network_shapes("gru", 3, 4, 1, False, True, 0)]
    x, hx = flow.ones(5, 2, 3), flow.ones(1, 2, 4)
    flags = True, 1, 0.0, True, False
    with pytest.raises(ShapeError, match=r"hx must have shape \(1, 2, 4\)"):
        flow.gru(x, flow.ones(1, 3, 4), params, *flags, False)
    with pytest.raises(ShapeError, match="takes 3"):
        flow.gru(flow.ones(5, 2, 7), hx, params, *flags, False)
    with pytest.raises(ShapeError, match="3 dimensions"):
        flow.gru(x[0], hx, params, *flags, False)
    with pytest.raises(ShapeError, match="a step at least"):
        flow.gru(x[:0], hx, params, *flags, False)
    with pytest.raises(ArgumentError, match="got 3"):
        flow.gru(x, hx, params[:3], *flags, False)
    with pytest.raises(DTypeError, match="one dtype"):
        flow.gru(x, hx.to(flow.float64), params, *flags, False)
    with pytest.raises(ArgumentTypeError, match="batch_sizes"):
        flow.gru(x, hx, params)
    with pytest.raises(ArgumentError, match="2 tensors"):
        flow.lstm(x, (hx,), params, *flags, False)
    with pytest.raises(ArgumentError, match="none larger than the one before"):
        flow.gru(flow.ones(5, 3), flow.tensor([2, 3]), hx, params, *flags)
    with pytest.raises(ArgumentTypeError, match=r"\(h, c\)"):
        flow.lstm_cell(x[0], hx, *params)
