"""The steps of recurrent networks as ops: the formulas, and the slow twin of the kernels.

Devices without such kernels compute them, projections (LSTM with proj_size) do, and the gradient of
a gradient is that of `steps_back`.  Formulas: Hochreiter and Schmidhuber 1997 with the forget gate
of Gers et al. 2000 (LSTM); Cho et al. 2014 with the reset gate applied after the product (GRU).
"""

from __future__ import annotations

from flowvm.eager.tensor import Tensor
from flowvm.ops.pointwise.activation import relu
from flowvm.ops.pointwise.compare import gt
from flowvm.ops.pointwise.trigonometry import sigmoid, tanh
from flowvm.ops.products.matmul import _matmul_tn, linear
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.split import split

Sizes = tuple[int, ...]
Tensors = tuple[Tensor, ...]


def step(cell: str, x: Tensor, hidden: Tensor, state: Tensors) -> tuple[Tensors, Tensors]:
    """Return (the new state, notes) of one step.

    `state` is (h,), for LSTM (h, c); `hidden` is h times its weight with its bias.  The caller
    projects h.
    """
    if cell == "gru":
        (xr, xz, xn), (hr, hz, part) = x.chunk(3, 1), hidden.chunk(3, 1)
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        new = tanh(xn + r * part)
        return (new + z * (state[0] - new),), (r, z, new, part)
    if cell == "lstm":
        i, f, g, o = (x + hidden).chunk(4, 1)
        i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
        c = f * state[1] + i * g
        return (o * tanh(c), c), (i, f, g, o, c)
    h: Tensor = tanh(x + hidden) if cell == "tanh" else relu(x + hidden)
    return (h,), (h,)


def _step_back(
    cell: str, dstate: Tensors, notes: Tensors, before: Tensors
) -> tuple[Tensor, Tensor, Tensors]:
    """Return the gradients of x, of hidden and of the state by one step.

    The state's is without the part that comes through hidden.
    """
    dh = dstate[0]
    if cell == "gru":
        r, z, new, part = notes
        dnew = dh * (1 - z) * (1 - new * new)
        dz = dh * (before[0] - new) * z * (1 - z)
        dr = dnew * part * r * (1 - r)
        return cat([dr, dz, dnew], 1), cat([dr, dz, dnew * r], 1), (dh * z,)
    if cell == "lstm":
        i, f, g, o, c = notes
        shown = tanh(c)
        dc = dstate[1] + dh * o * (1 - shown * shown)
        di, df = dc * g * i * (1 - i), dc * before[1] * f * (1 - f)
        dx = cat([di, df, dc * i * (1 - g * g), dh * shown * o * (1 - o)], 1)
        return dx, dx, (dh * 0, dc * f)
    (h,) = notes
    d = dh * (1 - h * h) if cell == "tanh" else dh * gt.call(h, 0).to(h._meta.dtype)
    return d, d, (dh * 0,)


def _order(sizes: Sizes, reverse: bool) -> list[int]:
    return list(range(len(sizes)))[:: -1 if reverse else 1]


def _first(states: Tensors, count: int) -> Tensors:
    """The first samples of a state."""
    return tuple(s if s.shape[0] == count else s[:count] for s in states)


def _with_rest(states: Tensors, others: Tensors) -> Tensors:
    """The first samples of `others` replaced."""
    count = states[0].shape[0]
    if count == others[0].shape[0]:
        return states
    return tuple(cat([s, o[count:]], 0) for s, o in zip(states, others, strict=True))


def run_steps(
    x: Tensor, weight: Tensor, bias: Tensor | None, projection: Tensor | None, state: Tensors,
    cell: str, sizes: Sizes, reverse: bool,
) -> tuple[Tensor, Tensors]:  # fmt: skip
    """(h of every row, the state of each sample after its last step), recorded step by step."""
    rows, outs = split(x, list(sizes)), {}
    for t in _order(sizes, reverse):
        own = _first(state, sizes[t])
        own, _ = step(cell, rows[t], linear(own[0], weight, bias), own)
        if projection is not None:
            own = (linear(own[0], projection), *own[1:])
        outs[t] = own[0]
        state = _with_rest(own, state)
    return cat([outs[t] for t in range(len(sizes))], 0), state


def steps_back(
    x: Tensor, weight: Tensor, bias: Tensor, state: Tensor, g: Tensor, dlast: Tensor, cell: str,
    sizes: Sizes, reverse: bool,
) -> tuple[object, ...]:  # fmt: skip
    """The gradients of x, weight, bias and state, in ops that can be differentiated again."""
    size = weight.shape[1]
    parts = [size] * (state.shape[1] // size)
    states: Tensors = tuple(split(state, parts, 1))
    rows, steps = split(x, list(sizes)), _order(sizes, reverse)
    notes, before = {}, {}
    for t in steps:
        before[t] = _first(states, sizes[t])
        own, notes[t] = step(cell, rows[t], linear(before[t][0], weight, bias), before[t])
        states = _with_rest(own, states)
    dstate: Tensors = tuple(split(dlast, parts, 1))
    gs, dx, dhidden = split(g, list(sizes)), {}, {}
    for t in reversed(steps):
        dh, *dc = _first(dstate, sizes[t])
        dx[t], dhidden[t], (dh, *dc) = _step_back(cell, (dh + gs[t], *dc), notes[t], before[t])
        dstate = _with_rest((dh + dhidden[t] @ weight, *dc), dstate)
    order = range(len(sizes))
    around = cat([dhidden[t] for t in order], 0)
    return (
        cat([dx[t] for t in order], 0),
        _matmul_tn(around, cat([before[t][0] for t in order], 0)),
        around.sum(0),
        cat(list(dstate), 1),
    )
