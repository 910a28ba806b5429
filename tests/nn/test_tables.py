"""Dicts of the program in the place of a module's tables, as PyTorch treats them."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict

import pytest

import flowvm as flow
from flowvm import nn


def libraries():
    torch = pytest.importorskip("torch")
    return flow, torch


def facts_of(module) -> dict[str, object]:
    names = [n for n, _ in module.named_parameters()] + [n for n, _ in module.named_buffers()]
    return {
        "names": names + [n for n, _ in module.named_modules()],
        "state": {k: v.tolist() for k, v in module.state_dict().items()},
    }


def replaced_parameters(lib):
    m = lib.nn.Linear(2, 2)
    mine = OrderedDict(weight=lib.nn.Parameter(lib.eye(2)), bias=None)
    m._parameters = mine
    results = [m(lib.ones(1, 2)).tolist(), m._parameters is mine, m.bias]
    mine["weight"] = lib.nn.Parameter(2 * lib.eye(2))
    results += [m(lib.ones(1, 2)).tolist(), m.weight is mine["weight"]]
    m.weight = lib.nn.Parameter(3 * lib.eye(2))
    results += [m(lib.ones(1, 2)).tolist(), m.weight is mine["weight"], facts_of(m)]
    m.half().float()
    results += [m(lib.ones(1, 2)).tolist(), m.weight is mine["weight"]]
    del m.bias
    return [*results, hasattr(m, "bias"), "bias" in mine]


def replaced_modules(lib):
    m = lib.nn.Sequential(lib.nn.ReLU(), lib.nn.Tanh())
    m._modules = OrderedDict(a=lib.nn.Sigmoid())
    results = [m(lib.zeros(1)).tolist(), len(m), type(m.a).__name__, facts_of(m)]
    m._modules["b"] = lib.nn.Softplus()
    m.c = lib.nn.ReLU()
    return [*results, len(m), list(m._modules), m.eval().b.training]


def replaced_buffers(lib):
    m = lib.nn.BatchNorm1d(2).eval()
    mine = {k: v + 1 for k, v in m._buffers.items()}
    m._buffers = mine
    m.running_mean = lib.full((2,), 5.0)
    results = [m.running_mean is mine["running_mean"], facts_of(m)]
    m.register_buffer("more", lib.zeros(1))
    m.train()(lib.ones(4, 2))
    return [*results, list(mine), m.running_mean.tolist(), int(m.num_batches_tracked)]


def shared_tables(lib):
    a, b = lib.nn.Linear(2, 2, bias=False), lib.nn.Linear(2, 2, bias=False)
    b._parameters = a._parameters
    b.weight = lib.nn.Parameter(lib.eye(2))
    results = [a.weight is b.weight, a(lib.ones(1, 2)).tolist()]
    a._parameters = dict(a._parameters)
    a.weight = lib.nn.Parameter(2 * lib.eye(2))
    return [*results, a.weight is b.weight, a(lib.ones(1, 2)).tolist(), b(lib.ones(1, 2)).tolist()]


def replica(lib):
    m = lib.nn.Linear(2, 2, bias=False)
    other = m.__new__(type(m))
    other.__dict__ = m.__dict__.copy()
    other._parameters = m._parameters.copy()
    other._parameters["weight"] = lib.nn.Parameter(lib.eye(2))
    return [other(lib.ones(1, 2)).tolist(), m.weight is other.weight, len(list(m.parameters()))]


def copies(lib):
    m = lib.nn.Linear(2, 2)
    m._parameters = OrderedDict(weight=lib.nn.Parameter(lib.eye(2)), bias=None)
    values = []
    for again in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        again.weight = lib.nn.Parameter(4 * lib.eye(2))
        values += [again(lib.ones(1, 2)).tolist(), m(lib.ones(1, 2)).tolist()]
    return values


def called_functionally(lib):
    m = lib.nn.Linear(2, 2)
    m._parameters = {"weight": lib.nn.Parameter(lib.eye(2)), "bias": None}
    options = {"weight": 7 * lib.eye(2)}
    other = lib.func.functional_call(m, options, (lib.ones(1, 2),))
    return [other.tolist(), m(lib.ones(1, 2)).tolist()]


def trained(lib):
    m = lib.nn.Linear(2, 1, bias=False)
    m._parameters = OrderedDict(weight=lib.nn.Parameter(lib.ones(1, 2)), bias=None)
    optimizer = lib.optim.SGD(m.parameters(), lr=0.5)
    m(lib.ones(1, 2)).sum().backward()
    optimizer.step()
    return [m.weight.tolist(), m.weight.grad.tolist()]


@pytest.mark.parametrize(
    "program",
    [
        replaced_parameters, replaced_modules, replaced_buffers, shared_tables, replica, copies,
        called_functionally, trained,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_dicts_in_the_place_of_tables(program):
    ours, theirs = (program(lib) for lib in libraries())
    assert ours == theirs


def test_a_graph_sees_what_is_written_to_such_a_dict():
    m = nn.Linear(2, 2, bias=False)
    graph = flow.compile(m)
    with flow.no_grad():
        for k in range(3):
            mine = {"weight": nn.Parameter(k * flow.eye(2)), "bias": None}
            m._parameters = mine
            assert graph(flow.ones(2)).tolist() == [k, k]
            mine["weight"] = nn.Parameter((k + 5) * flow.eye(2))
            assert graph(flow.ones(2)).tolist() == [k + 5, k + 5]


def test_what_is_no_dict_is_refused():
    with pytest.raises(TypeError, match="_parameters is a dict"):
        nn.Linear(1, 1)._parameters = [1]
