"""flow.fx.symbolic_trace, and graphs that are changed and run; PyTorch gives the same nodes."""

import copy
import math
import operator
import pickle
import sys
import types
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError, ArgumentTypeError, GraphError, TraceError
from flowvm.nn import functional as F

gelu = F.gelu


@pytest.fixture(params=["flow", "torch"])
def lib(request: pytest.FixtureRequest) -> Any:
    """flowvm or PyTorch."""
    if request.param == "flow":
        return flow
    torch = pytest.importorskip("torch")
    __import__("torch.fx")
    return torch


def net(lib: Any) -> Any:
    """A model with most of what a trace has to see."""

    class Net(lib.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = lib.nn.Conv2d(3, 8, 3, padding=1)
            self.bn = lib.nn.BatchNorm2d(8)
            self.seq = lib.nn.Sequential(lib.nn.Linear(8, 8), lib.nn.ReLU())
            self.scale = lib.nn.Parameter(lib.ones(8) * 2)
            self.register_buffer("shift", lib.arange(8).float())
            self.three = lib.tensor(3.0)
            self.act = lib.nn.functional.gelu

        def forward(self, x: Any, y: Any = None, *, last: Any = 1) -> Any:
            x = lib.relu(self.bn(self.conv(x)))
            n, c = x.size(0), x.shape[1]
            x = lib.flatten(lib.nn.functional.adaptive_avg_pool2d(x, 1), 1)
            x = (self.seq(x) * self.scale.exp() + self.shift) * self.three
            a, b = x.chunk(2, dim=1)
            x = 2 - lib.cat([a, b], dim=1)[:, :4]
            return {"out": self.act(x).view(n, -1) / last, "c": (c, math.sqrt(c))}

    return Net().eval()


def test_the_nodes_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    fx = pytest.importorskip("torch.fx")

    def rows_of(graph: Any) -> list[Any]:
        return [
            (
                n.op, n.name, n.target if isinstance(n.target, str) else n.target.__name__,
                str(n.args), str(n.kwargs), [u.name for u in n.users],
            )
            for n in graph.nodes
        ]  # fmt: skip

    ours = flow.fx.symbolic_trace(net(flow)).graph
    assert rows_of(ours) == rows_of(fx.symbolic_trace(net(torch)).graph)


def test_a_trace_gives_what_the_model_gives() -> None:
    model = net(flow)
    gm = flow.fx.symbolic_trace(model)
    gm.graph.lint()
    for shape in [(2, 3, 5, 5), (1, 3, 8, 4)]:
        x = flow.randn(*shape)
        results, expected = gm(x, last=4), model(x, last=4)
        np.testing.assert_array_equal(
            results["out"].detach().numpy(), expected["out"].detach().numpy()
        )
        assert results["c"] == expected["c"]
        again = flow.fx.Interpreter(gm).run(x, None, 4)
        np.testing.assert_array_equal(
            again["out"].detach().numpy(), results["out"].detach().numpy()
        )
    assert gm.conv.weight is model.conv.weight
    assert set(dict(gm.named_parameters())) == set(dict(model.named_parameters()))
    gm(x)["out"].sum().backward()
    assert model.scale.grad is not None
    assert isinstance(model.scale, nn.Parameter)  # what was replaced is back
    assert F.gelu is model.act is gelu
    assert (flow.ones(2) + 1).tolist() == [2, 2]


def test_an_op_is_exchanged_as_in_pytorch(lib: Any) -> None:
    def f(x: Any) -> Any:
        return lib.add(lib.relu(x), 1) * x

    gm = lib.fx.symbolic_trace(f)
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target == lib.add:
            node.target = lib.mul
            node.args = (node.args[0], 3)
        if node.target == lib.relu:
            with gm.graph.inserting_after(node):
                new = gm.graph.call_function(lib.neg, node.args)
            with gm.graph.inserting_before(node):
                later = gm.graph.call_method("abs", (new,))
                new.append(later)
            node.replace_all_uses_with(later)
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    assert [n.name for n in gm.graph.nodes] == ["x", "neg", "abs_1", "add", "mul", "output"]
    assert gm(lib.tensor([1.0, -2.0])).tolist() == [3, -12]


def test_a_graph_is_written_node_by_node(lib: Any) -> None:
    graph = lib.fx.Graph()
    x = graph.placeholder("x")
    y = graph.placeholder("y", default_value=2)
    layer = graph.call_module("inner.layer", (x,))
    weight = graph.get_attr("inner.layer.weight")
    total = graph.call_function(lib.add, (layer,), {"other": y})
    both = graph.call_method("matmul", (total, weight))
    graph.output([both, {"y": y}])
    inner = lib.nn.Module()
    inner.layer = lib.nn.Linear(2, 2)
    gm = lib.fx.GraphModule(
        {"inner.layer": inner.layer, "inner.layer.weight": inner.layer.weight}, graph
    )
    gm.graph.lint()
    z = lib.ones(3, 2)
    want = (inner.layer(z) + 5) @ inner.layer.weight
    assert gm(z, 5)[0].tolist() == want.tolist()
    assert gm(z)[1] == {"y": 2}
    assert (total.next, total.prev) == (both, weight)
    assert list(total.users) == [both]
    assert total.all_input_nodes == [layer, y]
    twice = copy.deepcopy(gm)
    assert twice(z)[0].tolist() == gm(z)[0].tolist()
    assert twice.inner.layer.weight is not inner.layer.weight


def test_modules_are_exchanged_and_taken_out(lib: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Linear(2, 2), lib.nn.Dropout(), lib.nn.ReLU()).eval()
    gm = lib.fx.symbolic_trace(model)
    modules = dict(gm.named_modules())
    for node in list(gm.graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], lib.nn.Dropout):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.delete_all_unused_submodules()
    assert gm.add_submodule("extra.tanh", lib.nn.Tanh())
    relu = next(n for n in gm.graph.nodes if n.target == "2")
    relu.target = "extra.tanh"
    gm.recompile()
    x = lib.ones(1, 2)
    assert gm(x).tolist() == model[0](x).tanh().tolist()
    assert "1" not in dict(gm.named_modules())
    assert gm.delete_submodule("extra.tanh")
    assert not gm.delete_submodule("extra.no")
    with pytest.raises(RuntimeError, match="nonexistent attribute"):
        gm.graph.lint()


def test_edits_that_cannot_be(lib: Any) -> None:
    gm = lib.fx.symbolic_trace(lambda x: lib.relu(x) + 1)
    x, relu, add, _ = gm.graph.nodes
    with pytest.raises(RuntimeError, match="still had 1 users"):
        gm.graph.erase_node(relu)
    relu.prepend(add)
    with pytest.raises(RuntimeError, match="used before it has been defined"):
        gm.graph.lint()
    relu.append(add)
    gm.graph.lint()
    other = lib.fx.Graph()
    with pytest.raises((RuntimeError, AssertionError)), other.inserting_before(x):
        pass
    add.args = (add.args[0], [1, 2])
    with pytest.raises((TypeError, NotImplementedError)):
        add.args[1].append(3)


def test_dead_code_is_taken_out(lib: Any) -> None:
    def f(x: Any) -> Any:
        x.add_(1)
        dead = lib.relu(x)
        dead * 2
        return x.neg()

    gm = lib.fx.symbolic_trace(f)
    if lib is flow:
        assert gm.graph.eliminate_dead_code()
        assert [n.name for n in gm.graph.nodes] == ["x", "add_", "neg", "output"]
        assert not gm.graph.eliminate_dead_code()
        gm.recompile()
    assert gm(lib.zeros(1)).tolist() == [-1]


def test_what_needs_a_value_is_a_trace_error(lib: Any) -> None:
    for f in (
        lambda x: x if x.sum() > 0 else -x,
        lambda x: [row for row in x],  # noqa: C416
    ):
        with pytest.raises(ValueError, match=r"Proxy|symbolically"):
            lib.fx.symbolic_trace(f)
    with pytest.raises(RuntimeError if lib is not flow else TraceError, match="'len'"):
        lib.fx.symbolic_trace(lambda x: len(x))


def test_a_trace_that_fails_leaves_names_as_they_were() -> None:
    class Bad(nn.Linear):
        def forward(self, x: Any) -> Any:
            return F.relu(x) * (1 / 0)

    model = nn.Sequential(Bad(2, 2))
    before = flow.relu, F.linear, math.sqrt, nn.Module.__call__, flow.Tensor.__add__
    with pytest.raises(ZeroDivisionError):
        flow.fx.symbolic_trace(model)
    with pytest.raises(ZeroDivisionError):
        flow.fx.symbolic_trace(lambda x: flow.relu(x) + 1 / 0)
    assert before == (flow.relu, F.linear, math.sqrt, nn.Module.__call__, flow.Tensor.__add__)
    assert isinstance(model[0].weight, nn.Parameter)


def test_concrete_args_fix_parameters() -> None:
    gm = flow.fx.symbolic_trace(lambda x, up: x + 1 if up else x - 1, {"up": True})
    assert gm(flow.zeros(1)).tolist() == [1]
    assert gm(flow.zeros(1), True).tolist() == [1]
    with pytest.raises(ArgumentError, match="up was True"):
        gm(flow.zeros(1), False)
    with pytest.raises(ArgumentError, match="names down"):
        flow.fx.symbolic_trace(lambda x: x, {"down": 1})
    with pytest.raises(ArgumentTypeError, match="make_fx"):
        flow.fx.symbolic_trace(nn.Linear(2, 2), flow.ones(2))  # type: ignore[arg-type]


class Loud(flow.fx.Interpreter):
    """An interpreter that notes the nodes it runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ran: list[str] = []

    def run_node(self, n: Any) -> Any:
        self.ran.append(n.name)
        return super().run_node(n)

    def call_module(self, target: str, args: Any, kwargs: Any) -> Any:
        return super().call_module(target, args, kwargs) * 2


def test_interpreters_and_transformers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    gm = flow.fx.symbolic_trace(model)
    x = flow.ones(1, 2)
    loud = Loud(gm, garbage_collect_values=False)
    result = loud.run(x)
    assert loud.ran == ["input_1", "_0", "_1", "output"]
    np.testing.assert_allclose(result.tolist(), (4 * model(x)).tolist(), rtol=1e-6)
    assert len(loud.env) == 4

    class Doubled(flow.fx.Transformer):
        def call_module(self, target: str, args: Any, kwargs: Any) -> Any:
            return super().call_module(target, args, kwargs) * 2

    new = Doubled(gm).transform()
    assert [n.name for n in new.graph.nodes] == ["input_1", "_0", "mul", "_1", "mul_1", "output"]
    np.testing.assert_allclose(new(x).tolist(), result.tolist(), rtol=1e-6)
    gm.get_submodule("1").forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError) as caught:
        flow.fx.Interpreter(gm).run(x)
    assert "While executing %_1" in caught.value.__notes__[-1]


def test_leaves_are_what_a_tracer_says() -> None:
    class Block(nn.Module):
        def forward(self, x: Any) -> Any:
            return F.relu(x) + flow.arange(2)

    class Leafy(flow.fx.Tracer):
        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            return isinstance(m, Block)

    root = nn.Sequential(Block())
    assert [n.op for n in flow.fx.symbolic_trace(root).graph.nodes] == [
        "placeholder", "call_function", "get_attr", "call_function", "output",
    ]  # fmt: skip
    graph = Leafy().trace(root)
    assert [n.op for n in graph.nodes] == ["placeholder", "call_module", "output"]
    with pytest.raises(NameError, match="not below it"):
        flow.fx.symbolic_trace(lambda x: root(x))


def test_functions_that_are_wrapped() -> None:
    space = types.ModuleType("a_program")
    sys.modules["a_program"] = space
    try:
        exec(
            "import flowvm as flow\n"
            "from flowvm import relu as positive\n"
            "flow.fx.wrap('rows')\n"
            "def rows(x): return [r for r in x][0]\n"
            "def f(x): return positive(rows(x))\n",
            space.__dict__,
        )
        gm = flow.fx.symbolic_trace(space.f)
        assert [n.target for n in gm.graph.find_nodes(op="call_function")] == [space.rows, F.relu]
        assert gm(flow.tensor([[-1.0, 2.0], [3.0, 4.0]])).tolist() == [0, 2]
    finally:
        del sys.modules["a_program"]


def test_code_in_print() -> None:
    gm = flow.fx.symbolic_trace(lambda x, lam: {"a": x[..., 1:] @ lam.T, "b": (x.float(),)})
    assert gm.code.strip().splitlines() == [
        "def forward(self, x, lam):",
        "    getitem = x[(..., slice(1, None, None))]",
        "    getattr_1 = lam.T;  lam = None",
        "    matmul = getitem @ getattr_1;  getitem = getattr_1 = None",
        "    float_1 = x.float();  x = None",
        "    return {'a': matmul, 'b': (float_1,)}",
    ]
    gm = flow.fx.symbolic_trace(lambda x: x.to(flow.float64) * math.inf)
    assert gm(flow.ones(1)).tolist() == [math.inf]
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(gm)
    with pytest.raises(GraphError, match="no output"):
        flow.fx.Graph().python_code("self")
    assert operator.add in {n.target for n in flow.fx.symbolic_trace(lambda x: 1 + x).graph.nodes}
