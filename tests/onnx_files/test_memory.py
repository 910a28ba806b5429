"""Memory: views of buffers and writes into them, against NumPy's views of the same bytes."""

from types import SimpleNamespace

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand
from flowvm.meta.meta import TensorMeta

pytest.importorskip("onnx")

import onnx
from onnx.reference import ReferenceEvaluator

from flowvm.onnx import memory
from flowvm.onnx.memory import Memory
from flowvm.onnx.writer import Writer

ITEM = 8


def operand(buffer, offset, shape, stride=None, dtype=flow.float64):
    return Operand(buffer, offset * ITEM, TensorMeta.of(shape, dtype, flow.device("cpu"), stride))


def buffer(count, kind=BufferKind.TEMPORARY, name=""):
    return Buffer(0, kind, count * ITEM, name)


def view(array, offset, shape, stride):
    """Make the view with NumPy, which has no bounds to check."""
    flat = array.reshape(-1)
    return np.lib.stride_tricks.as_strided(
        flat[offset:], shape, [s * flat.itemsize for s in stride]
    )


def evaluated(w, value, shape, x):
    """The value of `value`, whose shape is checked, where the first value is `x`."""
    w.nodes.append(onnx.helper.make_node("Identity", [value], ["y"]))
    proto = w.model(
        "m", [("x", flow.float64, x.shape)], [("y", flow.float64, shape)], False, True
    )  # fmt: skip
    onnx.checker.check_model(proto, full_check=True)
    return ReferenceEvaluator(proto).run(None, {"x": x})[0]


VIEWS = {
    "whole": (0, (4, 6), (6, 1)),
    "transposed": (0, (6, 4), (1, 6)),
    "a row": (6, (6,), (1,)),
    "a column": (2, (4,), (6,)),
    "a corner": (8, (2, 3), (6, 1)),
    "every second": (0, (4, 3), (6, 2)),
    "split": (0, (2, 2, 2, 3), (12, 6, 3, 1)),
    "flipped": (23, (4, 6), (-6, -1)),
    "flipped in part": (5, (4, 3), (6, -2)),
    "expanded": (7, (3, 2, 5), (0, 6, 0)),
    "one": (9, (), ()),
    "of length 1": (0, (1, 24, 1), (24, 1, 1)),
    "the diagonal": (0, (4,), (7,)),
    "windows": (0, (19, 6), (1, 1)),
    "empty": (3, (0, 2), (2, 1)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_numpys(name):
    offset, shape, stride = VIEWS[name]
    x = np.arange(24.0).reshape(4, 6)
    of = buffer(24)
    whole, part = operand(of, 0, (4, 6)), operand(of, offset, shape, stride)
    w = Writer(18)
    store = Memory(SimpleNamespace(nodes=[], outputs=[part]), w)
    assert store.is_read(part)
    store.define(whole, w.name("x"))
    value = store.read(part)
    assert store.read(part) == value  # known by now
    np.testing.assert_array_equal(evaluated(w, value, shape, x), view(x, offset, shape, stride))
    np.testing.assert_array_equal(memory.places(part), view(np.arange(24), offset, shape, stride))


def test_views_made_at_random_are_numpys(rng):
    """Ways are held against the places of elements: where there is none, elements are gathered."""
    ways = 0
    for _ in range(300):
        ndim = rng.integers(1, 4)
        shape = tuple(rng.integers(1, 5, ndim).tolist())
        stride = tuple(rng.choice([-6, -2, -1, 0, 1, 2, 3, 6, 12], ndim).tolist())
        lowest = sum((n - 1) * s for n, s in zip(shape, stride, strict=True) if s < 0)
        highest = sum((n - 1) * s for n, s in zip(shape, stride, strict=True) if s > 0)
        if highest - lowest >= 24:
            continue
        offset = int(rng.integers(-lowest, 24 - highest))
        part = operand(buffer(24), offset, shape, stride)
        way = memory._way((4, 6), part)
        if way is None:
            continue
        ways += 1
        stored = np.arange(24).reshape(way.radix)
        cut = stored[tuple(slice(a, a + n) for a, n in way.cuts)].transpose(way.order)
        narrow = [1 if s == 0 else n for n, s in zip(shape, stride, strict=True)]
        flipped = np.flip(cut.reshape(narrow), way.flipped)
        np.testing.assert_array_equal(np.broadcast_to(flipped, shape), memory.places(part))
    assert ways > 50


def test_buffers_defined_in_another_order_are_stored_in_theirs():
    """A result may be laid out by columns."""
    of = buffer(6)
    across = operand(of, 0, (2, 3), (1, 2))
    w = Writer(18)
    store = Memory(SimpleNamespace(nodes=[], outputs=[]), w)
    store.define(across, w.name("x"))
    x = np.arange(6.0).reshape(2, 3)
    assert evaluated(w, store.read(operand(of, 0, (6,))), (6,), x).tolist() == [0, 3, 1, 4, 2, 5]


def test_gaps_cannot_be_defined():
    store = Memory(SimpleNamespace(nodes=[], outputs=[]), Writer(18))
    with pytest.raises(ArgumentError, match="has gaps"):
        store.define(operand(buffer(6), 0, (3,), (2,)), "x")


def test_dense_orders():
    def order(shape, stride):
        return memory._dense_order(TensorMeta.of(shape, flow.float32, flow.device("cpu"), stride))

    assert order((2, 3), (3, 1)) == [0, 1]
    assert order((2, 3), (1, 2)) == [1, 0]
    assert order((2, 1, 3), (1, 99, 2)) is not None  # no step is made along a size of 1
    assert order((2, 3), (4, 1)) is None
    assert order((2, 3), (0, 1)) is None
    assert order((2, 0), (7, 9)) == [0, 1]


@pytest.mark.parametrize(("offset", "shape", "stride"), [(0, (4, 6), (6, 1)), (2, (4,), (6,)),
                                                        (23, (4, 6), (-6, -1))])  # fmt: skip
def test_writes_show_in_later_views(offset, shape, stride):
    of = buffer(24)
    x = np.arange(24.0).reshape(4, 6)
    w = Writer(18)
    store = Memory(SimpleNamespace(nodes=[], outputs=[]), w)
    store.define(operand(of, 0, (4, 6)), w.name("x"))
    before = store.read(operand(of, 0, (24,)))
    store.write(operand(of, offset, shape, stride), w.constant(np.full(shape, -1.0), flow.float64))
    expected = x.copy()
    view(expected, offset, shape, stride)[...] = -1
    after = store.read(operand(of, 0, (24,)))
    both = w.op("Concat", before, after, axis=0)
    out = evaluated(w, both, (48,), x)
    np.testing.assert_array_equal(out[:24], x.reshape(-1))  # what was read stays
    np.testing.assert_array_equal(out[24:], expected.reshape(-1))


def test_tensors_from_outside_are_not_written():
    store = Memory(SimpleNamespace(nodes=[], outputs=[]), Writer(18))
    of = buffer(6, BufferKind.VARIABLE, "bn.running_mean")
    with pytest.raises(ArgumentError, match=r"bn.running_mean, a tensor from outside, is changed"):
        store.write(operand(of, 0, (6,)), "x")


def test_bytes_of_another_dtype_are_an_error():
    of = buffer(6)
    store = Memory(SimpleNamespace(nodes=[], outputs=[]), Writer(18))
    store.define(operand(of, 0, (6,)), "x")
    with pytest.raises(ArgumentError, match="bytes of float64 are looked at as int64"):
        store.read(operand(of, 0, (6,), dtype=flow.int64))


def test_parameters_are_read_as_they_lie(rng):
    """A transposed parameter is written by its memory, and transposed in the file."""
    values = rng.standard_normal((3, 2))
    held = flow.tensor(values)
    of = Buffer(1, BufferKind.VARIABLE, held._meta.nbytes, "layer.weight", held.storage())
    turned = Operand(of, 0, TensorMeta.of((2, 3), flow.float64, flow.device("cpu"), (1, 2)))
    w = Writer(18)
    store = Memory(SimpleNamespace(nodes=[], outputs=[turned]), w)
    w.name("x")
    value = w.op("Add", store.read(turned), w.op("Mul", "x", w.constant(0.0, flow.float64)))
    assert list(w.parameters) == ["layer.weight"]
    out = evaluated(w, value, (2, 3), np.ones((1,)))
    np.testing.assert_array_equal(out, values.T)
