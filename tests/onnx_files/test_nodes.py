"""Nodes of a captured call: those that are needed, and what is said of untranslated ones."""

from types import SimpleNamespace

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand
from flowvm.meta.meta import TensorMeta

pytest.importorskip("onnx")

from flowvm.onnx import nodes
from flowvm.onnx.writer import Writer
from tests.onnx_files.calls import operand


def place(number, held=None):
    meta = TensorMeta.of((2,), flow.float32)
    return Operand(Buffer(number, BufferKind.TEMPORARY, 8, held=held), 0, meta)


def node(name, inputs, written):
    return SimpleNamespace(
        operator=SimpleNamespace(name=name), inputs=inputs, written=lambda: written
    )


def test_nodes_that_nothing_needs_are_left_out():
    a, b, c, d, state = place(0), place(1), place(2), place(3), place(4, held=object())
    one = node("one", [a], [b])
    idle = node("idle", [b], [c])
    two = node("two", [b], [d])
    tracked = node("tracked", [b], [state])  # a variable, which an error must name
    late = node("late", [d], [c])
    graph = SimpleNamespace(nodes=[one, idle, two, tracked, late], outputs=[d])
    assert nodes.needed(graph) == [one, two, tracked]
    assert nodes.needed(SimpleNamespace(nodes=[one, idle], outputs=[])) == []


def test_complex_inputs_are_named():
    given = operand((2,), flow.complex64)
    graph = SimpleNamespace(nodes=[], inputs=[given], outputs=[])
    with pytest.raises(ArgumentError, match=r"z is complex64.*real and imaginary parts"):
        nodes.translated(SimpleNamespace(graph=graph), Writer(18), ["z"], [])


def test_inputs_may_be_outputs():
    given = operand((2,), flow.float32)
    graph = SimpleNamespace(nodes=[], inputs=[given], outputs=[given, given])
    w = nodes.translated(SimpleNamespace(graph=graph), Writer(18), ["x"], ["y", "z"])
    assert [(n.op_type, n.input[0], n.output[0]) for n in w.nodes] == [
        ("Identity", "x", "y"),
        ("Identity", "x", "z"),
    ]


class Drawing(flow.nn.Module):
    def forward(self, x):
        return x + flow.poisson(x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (flow.special.digamma, "digamma.* has no translation to ONNX .*Compute it outside"),
        (Drawing(), r"poisson.* draws random numbers.* call eval\(\)"),
    ],
)
def test_untranslated_nodes_are_named(model, words):
    with pytest.raises(ArgumentError, match=words):
        flow.onnx.export(model, (flow.ones(2),))
