"""The pass that parts a layer's bias from its product, where that is worth it."""

import numpy as np

import flowvm as flow
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes.biases import split_biases
from tests.graph.helpers import captured, names

F = flow.nn.functional


def parts(dtype=flow.float64):
    x, w = flow.rand(4, 3, dtype=dtype), flow.rand(5, 3, dtype=dtype)
    return x, w, flow.rand(5, dtype=dtype)


def test_a_bias_is_added_by_what_reads_the_product():
    x, w, b = parts()
    graph = captured(lambda x: F.relu(F.linear(x, w, b)), x)
    split = split_biases(graph)
    split.check()
    assert names(graph) == ["linear", "relu"]
    assert names(split) == ["_matmul_nt", "add", "relu"]
    product, added, _ = split.nodes
    assert added.inputs == (product.outputs[0], graph.nodes[0].inputs[2])
    assert added.outputs == graph.nodes[0].outputs
    (ours,) = interpret(split, [x])
    expected = np.maximum(x.numpy() @ w.numpy().T + b.numpy(), 0)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-15)


def test_biases_stay_where_nothing_would_read_the_sum_anyway():
    x, w, b = parts()
    alone = captured(lambda x: F.linear(x, w, b), x)
    assert split_biases(alone) is alone
    rows = captured(lambda x: F.linear(x, w, b).sum(1), x)
    assert split_biases(rows) is rows
    wider = captured(lambda x: F.linear(x, w, b).unsqueeze(0) + flow.ones(2, 4, 5).double(), x)
    assert split_biases(wider) is wider  # each sum would be made twice
    vector = captured(lambda x: F.relu(F.linear(x[0], w, b)), x)
    assert split_biases(vector) is vector
    bare = captured(lambda x: F.relu(F.linear(x, w)), x)
    assert split_biases(bare) is bare


def test_halves_are_rounded_once():
    x, w, b = parts(flow.float16)
    graph = captured(lambda x: F.relu(F.linear(x, w, b)), x)
    assert split_biases(graph) is graph
