"""Recording names: what they refer to while code is traced, and afterwards."""

import math
import sys
import types

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.fx import recorder, symbolic_trace
from flowvm.fx.proxy import Proxy
from flowvm.nn import functional as F

relu = flow.relu  # a name of the program


def pair(x, k):
    return [x[k], x[k]][0]


flow.fx.wrap("pair")


def targets(graph_module):
    return [n.target for n in graph_module.graph.nodes if n.op.startswith("call")]


def test_functions_by_any_name_are_recorded():
    def function(x):
        return relu(F.gelu(flow.exp(x))), flow.linalg.norm(x), flow.special.expit(flow.fft.fft(x))

    traced = symbolic_trace(function)
    names = [getattr(t, "__name__", t) for t in targets(traced)]
    assert names[:3] == ["exp", "gelu", "relu"]
    assert names[3:] == ["norm", "fft", "sigmoid"]
    x = flow.tensor([3.0, -4.0])
    for ours, theirs in zip(traced(x), function(x), strict=True):
        assert flow.equal(ours, theirs)
    assert flow.linalg.norm(x).item() == 5
    assert relu is flow.relu


def test_proxies_inside_of_lists_are_seen():
    traced = symbolic_trace(lambda x: flow.cat([x, {"a": (x,)}["a"][0]]))
    assert targets(traced) == [flow.cat]
    proxy = object.__new__(Proxy)
    assert recorder._first_proxy((1, [2, {"k": (proxy,)}]), {}) is proxy
    assert recorder._first_proxy((), {"a": [proxy]}) is proxy
    assert recorder._first_proxy((1, [2], {"k": 3}), {"b": "x"}) is None


def test_wrapped_functions_are_single_nodes():
    traced = symbolic_trace(lambda x: pair(x, 1) * 2)
    assert targets(traced)[0] is pair
    assert pair([5, 7], 1) == 7
    with pytest.raises(ArgumentTypeError, match="takes a function of this module or its name"):
        flow.fx.wrap(3)
    with pytest.raises(ArgumentError, match="stands at the top level of a module"):
        flow.fx.wrap("pair")


def test_numbers_are_computed_and_proxies_recorded():
    traced = symbolic_trace(lambda x: x * math.sqrt(4.0))
    (node,) = [n for n in traced.graph.nodes if n.op == "call_function"]
    assert node.args[1] == 2.0


def test_names_are_as_before_also_after_an_error():
    before = dict(vars(flow))
    mine = dict(vars(sys.modules[__name__]))
    add = flow.Tensor.__add__

    def bad(x):
        raise ZeroDivisionError

    for function in (lambda x: flow.relu(x), bad):
        try:
            symbolic_trace(function)
        except ZeroDivisionError:
            assert function is bad
    assert all(vars(flow)[name] is value for name, value in before.items())
    assert all(vars(sys.modules[__name__])[name] is value for name, value in mine.items())
    assert flow.Tensor.__add__ is add


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(flow.ones(3))
        self.spare = nn.Parameter(flow.ones(3))
        self.inner = nn.Linear(3, 3)
        self.act = flow.tanh

    def forward(self, x):
        return self.act(self.inner(x) * self.weight)


def test_parameters_are_nodes_at_their_first_use():
    model = Layer()
    weight = model.weight
    traced = symbolic_trace(model)
    held = [n.target for n in traced.graph.nodes if n.op == "get_attr"]
    assert held == ["weight"]  # spare is not used
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == ["inner"]
    assert model.weight is weight
    assert model.act is flow.tanh
    x = flow.rand(2, 3)
    assert flow.equal(traced(x), model(x))


def test_tensors_give_way_to_proxies():
    traced = symbolic_trace(lambda x: flow.ones(2) + x)
    assert len(targets(traced)) == 1
    declined = recorder._declining(lambda self, other: "own")
    assert declined(1, 2) == "own"
    assert declined(1, object.__new__(Proxy)) is NotImplemented


def test_modules_without_a_tracer_are_called():
    called = []
    call = recorder._calling(lambda self, *args: called.append(args) or "out")
    assert call(nn.Identity(), 3) == "out"
    assert called == [(3,)]
    assert isinstance(recorder, types.ModuleType)
