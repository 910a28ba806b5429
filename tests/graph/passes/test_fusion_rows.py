"""Rows: reductions fused with their neighbours give the bits of the single nodes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flowvm as flow
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.logical.nodes import BufferKind
from flowvm.graph.logical.plain import plain, read_plain
from flowvm.graph.passes import fusion_rows
from flowvm.graph.passes.passes import PASSES
from flowvm.graph.plan.plan import compile_plan
from flowvm.ops.declare.cpu.blocks import run_blocks
from flowvm.vm.machine.words import ARG
from tests.graph.helpers import same_bits
from tests.graph.passes.test_passes import captured, names

F = flow.nn.functional


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Groups of any size are fused."""
    monkeypatch.setattr(fusion_rows, "WORTH", 0)


def fused(function, *inputs):
    """Names after both fusion passes; each form gives the bits of elementwise fusion alone, and
    about the values of the graph that was captured.
    """
    before = captured(function, *inputs)
    apart = PASSES["fusion"](before)
    after = PASSES["rows"](apart)
    after.check()
    plan, arguments = compile_plan(after), list(inputs)
    expected = [t.numpy() for t in compile_plan(apart).launch(arguments)]
    for _ in range(2):
        same_bits([t.numpy() for t in plan.launch(arguments)], expected, "the plan")
    same_bits([t.numpy() for t in interpret(after, arguments)], expected, "the graph")
    for ours, theirs in zip(expected, interpret(before, arguments), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-5, atol=2e-5)
    return names(after)


def randoms(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [flow.tensor(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


X, Y, W, B = randoms((300, 96), (300, 96), 96, 96)
WIDE, WIDER = randoms((700, 640), (700, 640), seed=1)
Q, M = randoms((4, 3, 40, 64), (40, 64), seed=2)
TARGET = flow.tensor(np.random.default_rng(3).integers(0, 96, 300))


def norm_by_hand(x):
    d = x - x.mean(-1, keepdim=True)
    return d * ((d * d).mean(-1, keepdim=True) + 1e-5).rsqrt() * W + B


def softmax_by_hand(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def residual_norm(x, y):
    s = x + y
    return s, F.layer_norm(s, (96,), W, B)


CASES = {
    "scale, softmax": (lambda x: F.softmax(x * 0.3 + 1, -1), X),
    "softmax, scale": (lambda x, y: F.log_softmax(x, -1) * y, X, Y),
    "both sides": (lambda x, y: F.softmax(x * 0.3 + y, -1) * 2, X, Y),
    "residual, norm": (residual_norm, X, Y),
    "norm, activation": (lambda x, y: F.layer_norm(x + y, (96,), W, B).relu() * y, X, Y),
    "rms norm": (lambda x, y: F.rms_norm(x * y, (96,)) + 1, X, Y),
    "norm by hand": (norm_by_hand, X),
    "softmax by hand": (softmax_by_hand, X),
    "softmax of four dimensions": (lambda x: softmax_by_hand(x * 0.5), Q),
    "mask of some dimensions": (lambda q: F.softmax(q * 0.125 + M, -1), Q),
    "mask of others": (lambda q: F.softmax(q * 0.125 + M[:1] + Q[:, :1], -1) * 2, Q * 1),
    "masked fill": (lambda q: F.softmax((q * 0.125).masked_fill(M > 0, -1e9), -1), Q),
    "two norms": (lambda x, y: F.layer_norm(x + y, (96,)) - F.rms_norm(x + y, (96,)), X, Y),
    "loss": (lambda x, y: ((x - y) * 3).abs().mean(), X, Y),
    "loss of segments": (lambda x, y: (x - y).abs().mean(), WIDE, WIDER),
    "largest of segments": (lambda x: (x * -2).amax(), WIDE),
    "sum over a batch": (lambda x, y: (lambda g: (g, g.sum(0)))(x * (y > 0).float()), X, Y),
    "sum over a long batch": (lambda x, y: (x * (y > 0).float() + 1).sum(0), WIDE, WIDER),
    "sum over two dimensions": (lambda q: (q * 2 + 1).sum((0, 2)), Q),
    "sum over the first and third": (lambda x: (x * 2 + 1).sum((0, 2)), flow.randn(30, 4, 50, 64)),
    "sum over narrow rows": (lambda x: (x * 2 + 1).sum(0), X.reshape(-1, 12)),
    "sums of few": (lambda x: (x * 2 + 1).reshape(-1, 6).sum(-1), X),
    "extremes of rows": (lambda x: (x * 2).amax(-1) - (x * 2).amin(-1), X),
    "cross entropy": (lambda x: F.cross_entropy(x * 0.5 + B, TARGET), X),
    "entropies": (lambda x: F.cross_entropy(x * 0.5 + B, TARGET, reduction="none") * 2, X),
    "reshaped on the way": (lambda x: F.softmax((x * 2).reshape(10, 30, 96), -1), X),
    "one row": (lambda x: F.softmax(x * 2, -1), X[0]),
    "rows of one": (lambda x: F.softmax(x.reshape(-1, 1) * 2, -1) * 3, X),
    "strided input": (lambda x: F.softmax(x.t() * 2, -1) + 1, flow.randn(96, 50)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bits(name):
    function, *inputs = CASES[name]
    names = fused(function, *inputs)
    if name not in ("strided input", "sums of few", "mask of others", "rows of one") and (
        "dimensions" not in name and "third" not in name
    ):
        assert any(n.startswith("fused[") for n in names), names


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("norm by hand", 1), ("softmax by hand", 1), ("both sides", 1), ("residual, norm", 1),
     ("loss of segments", 1), ("cross entropy", 1), ("mask of some dimensions", 1)],
)  # fmt: skip
def test_what_is_one_kernel(name, nodes):
    function, *inputs = CASES[name]
    assert len(fused(function, *inputs)) == nodes


def test_gradients():
    w, b = (t.detach().clone().requires_grad_() for t in (W, B))

    def step(x, y):
        x = x.detach().requires_grad_()
        z = F.layer_norm(x * 2 + y, (96,), w, b)
        loss = (F.softmax(z * 0.5, -1) * y).sum() + F.cross_entropy(z * 0.1, TARGET)
        grads = flow.autograd.grad(loss, (x, w, b))
        return loss, *grads

    names = fused(step, X, Y)
    assert len(names) == 4, names
    assert names[-1].startswith("fused[cross_entropy_backward,mul,softmax_backward,mul,")


def test_float16_and_float64():
    double = [t.double() for t in (X, Y)]
    assert fused(lambda x, y: F.softmax(x * y, -1) * 2, *double) == ["fused[mul,softmax,mul]"]
    fused(lambda x: (x.half() * 2).float().sum(-1), X)
    fused(lambda x: F.softmax((x.half() * 2).float(), -1).half() * 2, X)


def test_what_only_the_group_needs_has_no_memory():
    graph = PASSES["fusion"](captured(norm_by_hand, WIDE[:, :96].contiguous()))
    before, after = (compile_plan(g).memory.nbytes for g in (graph, PASSES["rows"](graph)))
    assert before > 100_000
    assert after < 1000


def test_little_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(fusion_rows, "WORTH", 1 << 20)
    assert fused(lambda x: F.softmax(x * 2, -1), X) == ["mul", "softmax"]
    # a norm reads what was stored anyway in the time that it computes
    big = flow.randn(3000, 96)
    assert fused(residual_norm, big, flow.randn(3000, 96)) == ["add", "normalize"]
    assert len(fused(lambda x: F.softmax(x * 2, -1), big)) == 1


@pytest.mark.parametrize("name", ["norm by hand", "mask of some dimensions", "loss of segments"])
def test_in_python_and_in_any_order(name):
    """Blocks are independent, phases follow one another, and the driver is plain Python."""
    function, *inputs = CASES[name]
    (node,) = PASSES["rows"](PASSES["fusion"](captured(function, *inputs))).nodes
    launch = node.operator.kernel.lower(tuple(o.meta for o in node.inputs), node.attrs)
    values = [t.numpy() for t in inputs]
    variables = {t.storage().id: t.numpy() for t in (W, B, M)}
    arrays = [np.empty(o.meta.shape, np.float32) for o in node.outputs]
    arrays += [
        values.pop(0) if o.buffer.kind is BufferKind.INPUT else variables[o.buffer.held.id]
        for o in node.inputs
    ]
    scratch, arena = np.zeros(max(1, launch.scratch), np.uint8), np.zeros(ARG.ARENA_BYTES, np.uint8)
    words = np.zeros(32, np.int64)
    words[6] = scratch.ctypes.data
    words[8 : 8 + len(arrays)] = [a.ctypes.data for a in arrays]
    arguments = words.ctypes.data, launch.layout.ctypes.data
    for phase, (units, _) in enumerate([(launch.units, launch.grain), *launch.phases]):
        for unit in reversed(range(units)):
            at = (phase << ARG.PHASE_BITS) + unit
            assert run_blocks(*arguments, at, at + 1, arena.ctypes.data) == 0
    expected = function(*inputs).numpy()
    np.testing.assert_allclose(arrays[0], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["both sides", "loss of segments", "sum over a long batch"])
def test_any_number_of_workers(name):
    function, *inputs = CASES[name]
    plan = compile_plan(PASSES["rows"](PASSES["fusion"](captured(function, *inputs))))
    results = []
    threads = flow.get_num_threads()
    try:
        for count in (1, 2, 3):
            flow.set_num_threads(count)
            results.append([t.numpy() for t in plan.launch(inputs)])
    finally:
        flow.set_num_threads(threads)
    for other in results[1:]:
        same_bits(other, results[0], "another number of workers")


def test_dropout_draws_what_eager_code_draws():
    def function(x, y):
        return F.layer_norm(F.dropout(x * 2, 0.4) + y, (96,))

    graph = flow.compile(function)
    flow.manual_seed(7)
    expected = [function(X, Y).numpy() for _ in range(3)]
    flow.manual_seed(7)
    for theirs in expected:
        np.testing.assert_allclose(graph(X, Y).numpy(), theirs, rtol=2e-6, atol=2e-6)
    before = captured(function, X, Y)
    assert any("dropout" in n for n in names(PASSES["rows"](PASSES["fusion"](before)))[-1:])


def test_errors_come_from_inside():
    bad = TARGET.numpy().copy()
    bad[170] = 96
    target = flow.tensor(bad)

    def function(x):
        return F.cross_entropy(x * 0.5, target)

    graph = PASSES["rows"](PASSES["fusion"](captured(function, X)))
    assert names(graph) == ["fused[mul,cross_entropy]"]
    with pytest.raises(flow.errors.FlowError) as eager:
        function(X).item()
    with pytest.raises(type(eager.value), match=r"96"):
        compile_plan(graph).launch([X])[0].item()
    assert compile_plan(graph) is not None
    assert flow.ones(2).sum().item() == 2


def test_nan_and_infinity():
    x = X.numpy().copy()
    x[3, 4], x[5, 6], x[7], x[9] = np.nan, np.inf, -np.inf, np.nan
    x = flow.tensor(x)
    before = captured(lambda x: (F.softmax(x * 2, -1) * 3, (x + 1).amax(-1)), x)
    apart = PASSES["fusion"](before)
    expected = [t.numpy() for t in compile_plan(apart).launch([x])]
    same_bits(
        [t.numpy() for t in compile_plan(PASSES["rows"](apart)).launch([x])], expected, "rows"
    )


def test_equal_structure_is_one_operator():
    def layers(x):
        for _ in range(3):
            x = F.softmax(x * 1.5, -1) @ SQUARE
        return x

    graph = PASSES["rows"](PASSES["fusion"](captured(layers, X)))
    operators = {n.operator for n in graph.nodes if "softmax" in n.operator.name}
    assert len(operators) == 1


def test_a_program_on_rows_can_be_saved():
    graph = PASSES["rows"](PASSES["fusion"](captured(norm_by_hand, X)))
    (node,) = graph.nodes
    assert node.attrs[1] == "4 blocks of 85 x 96"
    read = read_plain(json.loads(json.dumps(plain(node.operator, "it"))))
    assert read is node.operator


SQUARE = flow.randn(96, 96)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.product(3)
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(1, 200)), int(rng.choice([1, 7, 32, 65, 200]))
    x, y, w = randoms((rows, columns), (rows, columns), columns, seed=seed)

    def program(x, y):
        local = np.random.default_rng(seed + 1000)
        pool = [x, y]
        for _ in range(9):
            a, b = (pool[local.integers(len(pool))] for _ in range(2))
            kind = local.integers(8)
            if kind == 0:
                pool.append(F.softmax(a, -1))
            elif kind == 1:
                pool.append((a + b) * 0.5)
            elif kind == 2:
                pool.append(a - a.mean(-1, keepdim=True))
            elif kind == 3:
                pool.append(F.layer_norm(a, (columns,), w))
            elif kind == 4:
                pool.append(flow.where(a > b, a, b * 0.25) + w)
            elif kind == 5:
                pool.append(a * b.tanh() + b.sum(0))
            elif kind == 6:
                pool.append(a.clamp(-1, 1) * a.amax())
            else:
                pool.append((a * w).sum(-1, keepdim=True) * 0.1 + b)
        return tuple(pool[-3:])

    fused(program, x, y)
