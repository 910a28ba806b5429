"""Single calls of an op, translated by hand and run by ONNX's reference."""

from types import SimpleNamespace

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.declaration import Signature
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand
from flowvm.meta.meta import TensorMeta

pytest.importorskip("onnx")

import onnx
from onnx.reference import ReferenceEvaluator

from flowvm.onnx.call import Call
from flowvm.onnx.memory import Memory
from flowvm.onnx.writer import Writer


def operand(shape, dtype, number=0):
    meta = TensorMeta.of(shape, dtype)
    return Operand(Buffer(number, BufferKind.TEMPORARY, meta.nbytes), 0, meta)


def call(inputs, attrs=None, outs=(), scalars=None, read=()):
    """A Call on inputs and outputs of some (shape, dtype); `read` are outputs that others read."""
    attrs, scalars = attrs or {}, scalars or {}
    given = [operand(*one, k) for k, one in enumerate(inputs)]
    made = [operand(*one, 100 + k) for k, one in enumerate(outs)]
    node = SimpleNamespace(
        operator=SimpleNamespace(signature=Signature((), (), tuple(attrs), tuple(scalars))),
        inputs=given, outputs=made, attrs=tuple(attrs.values()), scalars=tuple(scalars.values()),
        accesses=lambda: [("mut", one) for one in given[:1]],
    )  # fmt: skip
    reader = SimpleNamespace(inputs=[made[k] for k in read])
    w = Writer(18)
    memory = Memory(SimpleNamespace(nodes=[node, reader], outputs=[]), w)
    for k, one in enumerate(given):
        memory.define(one, w.name(f"x{k}"))
    return Call(node, memory, w)


def run(c, value, arrays, out=None):
    """The array of a value; the arrays are those of the inputs.  `out`: its (shape, dtype)."""
    meta = c.out if out is None else TensorMeta.of(*out)
    places = [(f"x{k}", m.dtype, m.shape) for k, m in enumerate(c.metas)]
    proto = c.w.model("m", places, [(value, meta.dtype, meta.shape)], False, True)
    onnx.checker.check_model(proto, full_check=True)
    given = {f"x{k}": a for k, a in enumerate(arrays)}
    return ReferenceEvaluator(proto).run(None, given)[0]


DTYPES = {np.dtype(d.name): d for d in (flow.float32, flow.float64, flow.int32, flow.int64)}
DTYPES[np.dtype(bool)] = flow.bool


def translated(translation, arrays, attrs=None, outs=(), scalars=None):
    """The first output of a translation on arrays; `outs` as for `call`."""
    inputs = [(a.shape, DTYPES[a.dtype]) for a in arrays]
    c = call(inputs, attrs, outs or [inputs[0]], scalars)
    return run(c, translation(c)[0], arrays)
