"""Recurrent networks as functions, with the arguments that PyTorch's have: whole networks (`lstm`,
`gru`, `rnn_tanh`, `rnn_relu`) and one step (`lstm_cell` and so on).

A layer in one direction is a product for the inputs of all steps and one instruction for the steps
(`parts.scans`); on other devices, and with projections, the steps are ops (`parts.steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.eager.autocast import lowered
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.device import cpu
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.products.matmul import linear
from flowvm.ops.random.choices import dropout as dropped
from flowvm.ops.sequences.parts.scans import GATES, fits, scan
from flowvm.ops.sequences.parts.steps import run_steps
from flowvm.ops.shapes.fill import zeros
from flowvm.ops.shapes.join import cat, stack
from flowvm.ops.shapes.split import split
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array

# public: flow

Tensors = tuple[Tensor, ...]
Sizes = tuple[int, ...]


class _Weights(NamedTuple):
    """The parameters of a layer in one direction."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    w_hr: Tensor | None = None


def _direction(
    x: Tensor, w: _Weights, state: Tensors, cell: str, sizes: Sizes, reverse: bool
) -> tuple[Tensor, Tensors]:
    """(h of every row, the state of each sample after its last step) for rows (n, input)."""
    gates, size = w.w_hh._meta.shape
    x = linear_of(x, w.w_ih, w.b_ih)
    if x._meta.device is not cpu or w.w_hr is not None or not fits(8, gates):
        return run_steps(x, w.w_hh, w.b_hh, w.w_hr, state, cell, sizes, reverse)
    bias = w.b_hh if w.b_hh is not None else zeros(gates, dtype=x._meta.dtype)
    joined = state[0] if len(state) == 1 else cat(list(state), 1)
    out, last, _ = scan(x, w.w_hh, bias, joined, cell, sizes, reverse)
    return out, (last,) if len(state) == 1 else split(last, size, 1)


# not public
def linear_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear`, whose errors name this network's arguments."""
    if x._meta.shape[-1] != weight._meta.shape[1]:
        raise ShapeError(
            f"the input has {x.shape[-1]} features, the input weight {tuple(weight.shape)} takes "
            f"{weight.shape[1]}"
        )
    out: Tensor = linear(x, weight, bias)
    return out


def _grouped(
    name: str, params: Sequence[Tensor], biased: bool, layers: int, ways: int, projected: bool
) -> list[_Weights]:
    each = 2 + 2 * bool(biased) + projected
    if len(params) != each * layers * ways:
        raise ArgumentError(
            f"{name}: {layers} layers in {ways} directions with {each} parameters each take "
            f"{each * layers * ways}, got {len(params)}"
        )
    weights = []
    for i in range(0, len(params), each):
        own = list(params[i : i + each])
        projection = own.pop() if projected else None
        weights.append(_Weights(*own)._replace(w_hr=projection))
    return weights


def _check(name: str, x: Tensor, state: Tensors, weights: list[_Weights], batch: int) -> None:
    cell = _cell_of(name)
    for i, w in enumerate(weights):
        rows, outs = w.w_hh._meta.shape
        size = rows // GATES[cell]
        widths = (outs, size)[: len(state)]
        for s, width in zip(state, widths, strict=True):
            if s._meta.shape != (len(weights), batch, width):
                raise ShapeError(
                    f"{name}: hx must have shape {(len(weights), batch, width)}: layers times "
                    f"directions, samples, features; got {tuple(s.shape)}"
                )
        for t in (*state, *(p for p in w if p is not None)):
            if need_tensor(name, "parameters", t)._meta.dtype is not x._meta.dtype:
                raise DTypeError(
                    f"{name}: input, hx and parameters must have one dtype, got "
                    f"{x.dtype.name} and {t.dtype.name} (parameters of layer {i})"
                )
    if not x._meta.dtype.is_floating_point:
        raise DTypeError(f"{name} needs floating point tensors, got {x.dtype.name}")


def _cell_of(name: str) -> str:
    return name.removeprefix("rnn_").removesuffix("_cell")


def _network(
    name: str, x: Tensor, sizes: Sizes, state: Tensors, params: Sequence[Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
) -> tuple[Tensor, Tensors]:  # fmt: skip
    """Rows (n, input) through all layers: (rows of the last layer, the states of all)."""
    ways = 2 if bidirectional else 1
    projected = len(state) == 2 and state[0]._meta.shape[-1:] != state[1]._meta.shape[-1:]
    if hot["autocast"]:
        x, *mixed = lowered(x, *state, *params)
        state, params = tuple(mixed[: len(state)]), mixed[len(state) :]
    weights = _grouped(name, params, has_biases, num_layers, ways, projected)
    if not sizes:
        raise ShapeError(f"{name}: the sequence must have a step at least, got none")
    _check(name, x, state, weights, max(sizes))
    before = [s.unbind(0) for s in state]
    cell, after = _cell_of(name), []
    for layer in range(num_layers):
        outs = []
        for way in range(ways):
            k = layer * ways + way
            own = tuple(s[k] for s in before)
            out, last = _direction(x, weights[k], own, cell, sizes, way == 1)
            outs.append(out)
            after.append(last)
        x = outs[0] if ways == 1 else cat(outs, 1)
        if train and dropout > 0 and layer < num_layers - 1:
            x = dropped(x, dropout)
    return x, tuple(stack([s[i] for s in after], 0) for i in range(len(state)))


def _of_sequences(
    name: str, input: Tensor, hx: Tensors, params: Sequence[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Tensors:  # fmt: skip
    if input._meta.ndim != 3:
        raise ShapeError(f"{name}: input must have 3 dimensions, got shape {tuple(input.shape)}")
    x = input.transpose(0, 1) if batch_first else input
    steps, batch, features = x._meta.shape
    rows = x.reshape((steps * batch, features))
    out, state = _network(
        name, rows, (batch,) * steps, hx, params, has_biases, num_layers, dropout, train,
        bidirectional,
    )  # fmt: skip
    out = out.reshape((steps, batch, out._meta.shape[1]))
    return out.transpose(0, 1) if batch_first else out, *state


def _of_packed(
    name: str, data: Tensor, batch_sizes: Tensor, hx: Tensors, params: Sequence[Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
) -> Tensors:  # fmt: skip
    if data._meta.ndim != 2:
        raise ShapeError(f"{name}: packed data has 2 dimensions, got shape {tuple(data.shape)}")
    sizes = tuple(batch_sizes.tolist())
    falling = all(a >= b > 0 for a, b in zip((*sizes[:1], *sizes), sizes, strict=False))
    if not falling or sum(sizes) != data._meta.shape[0]:
        raise ArgumentError(
            f"{name}: batch_sizes must be positive, none larger than the one before, and add up to "
            f"the {data.shape[0]} rows of data, got {list(sizes)}"
        )
    out, state = _network(
        name, data, sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional
    )
    return out, *state


_FLAGS = ("params", "has_biases", "num_layers", "dropout", "train", "bidirectional")


def _called(name: str, states: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensors:
    """The call of a network by one of its two lists of arguments."""
    packed = "batch_sizes" in kwargs or (len(args) > 1 and isinstance(args[1], Tensor))
    if packed and states == 1 and "batch_sizes" not in kwargs:  # (input, hx, params) has one too
        packed = (len(args) > 2 and isinstance(args[2], Tensor)) or "data" in kwargs
    names = ("data", "batch_sizes", "hx", *_FLAGS)
    if not packed:
        names = ("input", "hx", *_FLAGS, "batch_first")
    arguments = dict(zip(names, args, strict=False))
    if (
        len(args) > len(names)
        or arguments.keys() & kwargs
        or (arguments | kwargs).keys() != set(names)
    ):
        raise ArgumentTypeError(
            f"{name}() takes (input, hx, {', '.join(_FLAGS)}, batch_first), or for packed "
            f"sequences (data, batch_sizes, hx, {', '.join(_FLAGS)})"
        )
    arguments |= kwargs
    hx = arguments["hx"]
    arguments["hx"] = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    if len(arguments["hx"]) != states:
        raise ArgumentError(f"{name}: hx must be {states} tensors, got {len(arguments['hx'])}")
    return _of_packed(name, **arguments) if packed else _of_sequences(name, **arguments)


def lstm(*args: object, **kwargs: object) -> tuple[Tensor, Tensor, Tensor]:
    """LSTM layers over sequences: (output, h_n, c_n), as `nn.LSTM` has them.

    lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first), or
    lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional).

    input (steps, samples, features), or (samples, steps, features) if batch_first; the second form
    takes a PackedSequence's data and batch_sizes.  hx: h and c, each (layers * directions, samples,
    size).  params: for each layer and direction w_ih, w_hh, and where has_biases b_ih, b_hh; where
    h is smaller than c, the projection w_hr at the end.

    ShapeError, DTypeError or ArgumentError where these do not fit.

    >>> state = (flow.zeros(1, 1, 2), flow.zeros(1, 1, 2))
    >>> weights = [flow.ones(8, 3), flow.ones(8, 2)]
    >>> x = flow.ones(5, 1, 3)
    >>> output, h, c = flow.lstm(x, state, weights, False, 1, 0.0, False, False, False)
    >>> output.shape, h.shape, c.shape
    (flow.Size([5, 1, 2]), flow.Size([1, 1, 2]), flow.Size([1, 1, 2]))
    """
    output, h, c = _called("lstm", 2, args, kwargs)
    return output, h, c


def _simple(name: str, what: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def network(*args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        output, h = _called(name, 1, args, kwargs)
        return output, h

    gates = 3 if name == "gru" else 1
    network.__name__ = network.__qualname__ = name
    network.__doc__ = f"""{what} over sequences: (output, h_n).

    {name}(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first),
    or {name}(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
    bidirectional).

    As `lstm`, with hx the tensor h (layers * directions, samples, size).

    >>> weights = [flow.ones({gates} * 2, 3), flow.ones({gates} * 2, 2)]
    >>> output, h = flow.{name}(
    ...     flow.ones(5, 1, 3), flow.zeros(1, 1, 2), weights, False, 1, 0.0, False, False, False)
    >>> output.shape, h.shape
    (flow.Size([5, 1, 2]), flow.Size([1, 1, 2]))
    """
    return network


gru = _simple("gru", "GRU layers")
rnn_tanh = _simple("rnn_tanh", "Recurrent layers with tanh")
rnn_relu = _simple("rnn_relu", "Recurrent layers with relu")


# --- one step -------------------------------------------------------------------------------------


def _one_step(
    name: str, input: Tensor, state: Tensors, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None,
) -> Tensors:  # fmt: skip
    for argument, value in (("input", input), ("w_ih", w_ih), ("w_hh", w_hh)):
        need_tensor(name, argument, value)
    for value in state:
        need_tensor(name, "hx", value)
    if input._meta.ndim != 2 or any(s._meta.ndim != 2 for s in state):
        raise ShapeError(
            f"{name}: input and hx must be (samples, features), got shapes {tuple(input.shape)} "
            f"and {', '.join(str(tuple(s.shape)) for s in state)}"
        )
    if (b_ih is None) != (b_hh is None):
        raise ArgumentError(f"{name}: give both biases or neither")
    if hot["autocast"]:
        input, w_ih, w_hh, b_ih, b_hh, *mixed = lowered(input, w_ih, w_hh, b_ih, b_hh, *state)
        state = tuple(mixed)
    weights = _Weights(w_ih, w_hh, b_ih, b_hh)
    samples = input._meta.shape[0]
    _check(name, input, tuple(s.unsqueeze(0) for s in state), [weights], samples)
    return _direction(input, weights, state, _cell_of(name), (samples,), False)[1]


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM: (h, c) from input (samples, features) and hx, (h, c) of (samples, size).

    w_ih (4 * size, features) and w_hh (4 * size, size) have the input, forget, cell and output
    gates one below the other.

    >>> h, c = flow.lstm_cell(flow.ones(1, 3), (flow.zeros(1, 2),) * 2, flow.ones(8, 3),
    ...                       flow.ones(8, 2))
    >>> h.shape
    flow.Size([1, 2])
    """
    if isinstance(hx, Tensor) or len(hx) != 2:  # type: ignore[unreachable]
        raise ArgumentTypeError("lstm_cell: hx must be two tensors, (h, c)")
    h, c = _one_step("lstm_cell", input, tuple(hx), w_ih, w_hh, b_ih, b_hh)
    return h, c


def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """One step of a GRU: h from input (samples, features) and hx (samples, size).

    w_ih (3 * size, features) and w_hh (3 * size, size) have the reset, update and new gates one
    below the other.

    >>> h = flow.gru_cell(flow.ones(4, 3), flow.zeros(4, 2), flow.ones(6, 3), flow.ones(6, 2))
    >>> h.shape
    flow.Size([4, 2])
    """
    return _one_step("gru_cell", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


def rnn_tanh_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """tanh(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh).

    >>> flow.rnn_tanh_cell(flow.zeros(1, 3), flow.zeros(1, 2), flow.ones(2, 3), flow.ones(2, 2))
    tensor([[0., 0.]])
    """
    return _one_step("rnn_tanh_cell", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


def rnn_relu_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """relu(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh).

    >>> flow.rnn_relu_cell(flow.ones(1, 3), flow.ones(1, 2), flow.ones(2, 3), flow.ones(2, 2))
    tensor([[5., 5.]])
    """
    return _one_step("rnn_relu_cell", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


# --- samples --------------------------------------------------------------------------------------


def _cell_samples(gates: int) -> Callable[[np.random.Generator], list[Sample]]:
    def drawn(rng: np.random.Generator) -> list[Sample]:
        def x(*shape: int) -> Any:
            return rng.standard_normal(shape)

        weights = x(gates * 4, 3), x(gates * 4, 4)
        return [
            Sample((x(2, 3), x(2, 4), *weights, x(gates * 4), x(gates * 4))),
            Sample((x(5, 3), x(5, 4), *weights)),
        ]

    return drawn


def _gates(
    x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any = 0.0, b_hh: Any = 0.0
) -> tuple[Any, Any]:
    return x @ w_ih.T + b_ih, h @ w_hh.T + b_hh


def _gru_reference(x: Array, h: Any, *weights: Any) -> Any:
    (xr, xz, xn), (hr, hz, hn) = (np.split(g, 3, 1) for g in _gates(x, h, *weights))
    r, z = 1 / (1 + np.exp(-xr - hr)), 1 / (1 + np.exp(-xz - hz))
    return (1 - z) * np.tanh(xn + r * hn) + z * h


samples(gru_cell, _cell_samples(3), _gru_reference)
samples(rnn_tanh_cell, _cell_samples(1), lambda *args: np.tanh(sum(_gates(*args))))
samples(rnn_relu_cell, _cell_samples(1), lambda *args: np.maximum(sum(_gates(*args)), 0))
