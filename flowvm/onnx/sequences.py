"""Translations of attention and recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.onnx.call import Call
from flowvm.onnx.expressions import Untranslated
from flowvm.onnx.rows import Values


def attention(c: Call) -> Values:
    """softmax(q k^T * scale + mask) v, causal by the upper left corner."""
    w, dtype = c.w, c.metas[0].dtype
    q, k, v = c.metas[:3]
    order = [*range(k.ndim - 2), k.ndim - 1, k.ndim - 2]
    query = w.op("Mul", c.x(0), c.number(c.attrs["scale"], dtype))
    key = w.transpose(_heads(c, c.x(1), k, q), order)
    scores = w.op("MatMul", query, key)
    if c.attrs["is_causal"]:
        later = w.expand(c.number(-np.inf, dtype), (q.shape[-2], k.shape[-2]))
        later = w.op("Trilu", later, w.constant(1, int64), upper=1)
        scores = w.op("Add", scores, later)
    blind = ""
    if c.count > 3:  # a row that sees nothing has weights of 0
        scores = w.op("Add", scores, c.x(3))
        most = w.op("ReduceMax", scores, w.ints(-1), keepdims=1)
        blind = w.op("Equal", most, c.number(-np.inf, dtype))
        scores = w.op("Where", blind, c.number(0.0, dtype), scores)
    weights = w.op("Softmax", scores, axis=-1)
    if blind:
        weights = w.op("Where", blind, c.number(0.0, dtype), weights)
    return [w.op("MatMul", weights, _heads(c, c.x(2), v, q)), None]


def _heads(c: Call, x: str, meta: TensorMeta, q: TensorMeta) -> str:
    """Keys or values once for each head of the query."""
    own, all_ = meta.shape[1], q.shape[1]
    if own in (1, all_):
        return x
    return c.w.op("Gather", x, c.w.ints(*[k * own // all_ for k in range(all_)]), axis=1)


# --- recurrent networks ---------------------------------------------------------------------------

# cell -> ONNX's op, where its gates are among flowvm's, and its attributes
_CELLS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "tanh": ("RNN", [0], {"activations": ["Tanh"]}),
    "relu": ("RNN", [0], {"activations": ["Relu"]}),
    "lstm": ("LSTM", [0, 3, 1, 2], {}),
    "gru": ("GRU", [1, 0, 2], {"linear_before_reset": 1}),
}


def recurrent(c: Call) -> Values:
    """One layer in one direction.  Its input is multiplied by the weights already, so ONNX's node
    gets a matrix that puts the gates in its order.
    """
    w, sizes, dtype = c.w, c.attrs["sizes"], c.metas[0].dtype
    if len(set(sizes)) != 1:
        raise Untranslated("a packed sequence")
    samples, steps = sizes[0], len(sizes)
    kind, order, more = _CELLS[c.attrs["cell"]]
    gates, size = c.metas[1].shape
    rows = np.concatenate([np.arange(g * size, (g + 1) * size) for g in order])
    row_order = w.ints(*rows.tolist())
    x = w.reshape(c.x(0), (steps, samples, gates))
    weight = w.op("Gather", c.x(1), row_order, axis=0)
    bias = w.op("Gather", c.x(2), row_order, axis=0)
    both = w.op("Concat", c.number(np.zeros(gates)), bias, axis=0)
    inputs = [
        x, c.number(np.eye(gates)[rows][None], dtype), w.reshape(weight, (1, gates, size)),
        w.reshape(both, (1, 2 * gates)), "",
    ]  # fmt: skip
    parts = c.metas[3].shape[1] // size  # h, and c of an LSTM
    for k in range(parts):
        cut = [w.ints(k * size), w.ints((k + 1) * size), w.ints(1)]
        part = w.op("Slice", c.x(3), *cut) if parts > 1 else c.x(3)
        inputs.append(w.reshape(part, (1, samples, size)))
    direction = "reverse" if c.attrs["reverse"] else "forward"
    every, *last = w.ops(kind, 1 + parts, *inputs, hidden_size=size, direction=direction, **more)
    ends = [w.reshape(v, (samples, size)) for v in last]
    end = w.op("Concat", *ends, axis=1) if parts > 1 else ends[0]
    return [w.reshape(every, (steps * samples, size)), end, None]
