"""Writer: nodes and constants, and the models of them, run by ONNX's reference."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.meta.meta import TensorMeta

pytest.importorskip("onnx")

import onnx
from onnx.reference import ReferenceEvaluator

from flowvm.onnx import writer
from flowvm.onnx.writer import Writer


def model(w, inputs, outputs, as_inputs=False, with_values=True):
    """The checked model of some float32 places."""
    places = [[(n, flow.float32, shape) for n, shape in side.items()] for side in (inputs, outputs)]
    proto = w.model("m", *places, as_inputs, with_values)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def test_names_are_given_once():
    w = Writer(18)
    assert [w.name("x") for _ in range(3)] == ["x", "x_1", "x_2"]
    assert w.name("x_1") == "x_1_1"
    w.scope, w.line, w.origin = "net.0", "a.py:3", "add at a.py:3"
    out = w.op("Add", "x", "x")
    (node,) = w.nodes
    assert (node.name, out, node.doc_string) == ("/net/0/Add", "/net/0/Add_output_0", "a.py:3")
    assert w.origins == {"/net/0/Add": "add at a.py:3"}


def test_constants_are_written_once_for_each_dtype_and_shape():
    w = Writer(18)
    first = w.ints(1, 2)
    assert w.ints(1, 2) == first
    assert w.constant([1, 2], flow.int64) == first
    others = [w.constant([1, 2], flow.int32), w.constant([[1, 2]], flow.int64), w.ints(1),
              w.constant([-0.0], flow.float32), w.constant([0.0], flow.float32)]  # fmt: skip
    assert len({first, *others}) == 6
    stored = onnx.numpy_helper.to_array(w.initializers[w.constant(1.5, flow.bfloat16)])
    assert stored.astype(np.float32) == 1.5


@pytest.mark.parametrize("dtype", [flow.complex64, flow.complex128])
def test_complex_numbers_have_no_type(dtype):
    with pytest.raises(ArgumentError, match=f"{dtype.name} has no translation to ONNX"):
        writer.type_number(dtype)


def test_helpers_are_numpys(rng):
    w = Writer(18)
    w.name("x")
    flat = w.reshape(w.transpose("x", (1, 0, 2)), (-1,))
    assert w.transpose("x", (0, 1, 2)) == "x"
    out = w.op("Sub", w.expand(flat, (2, 12)), w.cast(w.ints(1), flow.float32))
    x = rng.standard_normal((2, 3, 2), np.float32)
    w.nodes.append(onnx.helper.make_node("Identity", [out], ["y"]))
    (y,) = ReferenceEvaluator(model(w, {"x": (2, 3, 2)}, {"y": (2, 12)})).run(None, {"x": x})
    np.testing.assert_array_equal(y, np.tile(x.transpose(1, 0, 2).reshape(-1), (2, 1)) - 1)


def test_a_size_of_nought_is_one():
    w = Writer(18)
    y = w.reshape(w.name("x"), (3, 0))
    (out,) = ReferenceEvaluator(model(w, {"x": (0, 2)}, {y: (3, 0)})).run(
        None, {"x": np.zeros((0, 2), np.float32)}
    )
    assert out.shape == (3, 0)


def test_models_have_what_outputs_need_and_parameters_as_asked():
    w = Writer(18)
    x = w.name("x")
    meta = TensorMeta.of((2,), flow.float32)
    read = []

    def values():
        read.append(1)
        return np.array([3.0, 4.0], np.float32)

    held, other = object(), object()
    weight = w.variable("weight", held, meta, values)
    idle = w.variable("idle", other, meta, values)
    y = w.op("Mul", x, weight)
    w.op("Add", idle, w.constant(7, flow.float32))  # no output needs it
    proto = model(w, {"x": (2,)}, {y: (2,)})
    assert [n.op_type for n in proto.graph.node] == ["Mul"]
    assert [t.name for t in proto.graph.initializer] == ["weight"]
    assert [i.name for i in proto.graph.input] == ["x"]
    assert ReferenceEvaluator(proto).run(None, {"x": np.array([1, 2], np.float32)})[0].tolist() == [
        3, 8,
    ]  # fmt: skip
    both = model(w, {"x": (2,)}, {y: (2,)}, as_inputs=True)
    assert [i.name for i in both.graph.input] == ["x", "weight"]
    assert len(both.graph.initializer) == 1
    bare = model(w, {"x": (2,)}, {y: (2,)}, with_values=False)
    assert [i.name for i in bare.graph.input] == ["x", "weight"]
    assert not bare.graph.initializer
    again = Writer(18, w.values)  # of the same model: what was read is read no more
    again.variable("weight", held, meta, values)
    assert len(read) == 2


def test_the_package_is_asked_for(monkeypatch):
    writer.need_onnx("onnx.export")

    class Absent:
        def __getattr__(self, name):
            raise ImportError("No module named 'onnx'")

    monkeypatch.setattr(writer, "onnx", Absent())
    with pytest.raises(
        ArgumentError, match=r"onnx.export needs the package onnx.*pip install onnx"
    ):
        writer.need_onnx("onnx.export")
