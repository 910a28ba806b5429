"""Classes and modes that take calls over, by PyTorch's rules; and that nothing asks before there is
one.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import ClassVar

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.eager.native.objects import Call
from flowvm.nn import functional as F

overrides = flow.overrides


class Named(flow.Tensor):
    pass


class Logged(flow.Tensor):
    names: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.names.append(overrides.resolve_name(func))
        return super().__torch_function__(func, types, args, kwargs)


class Names(overrides.TorchFunctionMode):
    def __init__(self):
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(overrides.resolve_name(func))
        return func(*args, **(kwargs or {}))


HANDLED = {}


class Diagonal:
    """No tensor: n times n, the same number on its diagonal."""

    def __init__(self, n, value):
        self.n, self.value = n, value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED or not all(issubclass(t, (flow.Tensor, cls)) for t in types):
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))


HANDLED[flow.mean] = lambda x: x.value / x.n
HANDLED[flow.add] = lambda x, y: Diagonal(x.n, x.value + y.value)
HANDLED[flow.clone] = lambda x: Diagonal(x.n, x.value)
HANDLED[flow.exp] = lambda x: "exp"
HANDLED[F.relu] = lambda x, inplace=False: Diagonal(x.n, max(x.value, 0))
HANDLED[flow.cat] = lambda parts, dim=0: len(parts)


def test_results_of_a_subclass_are_of_it():
    x, y = flow.arange(4.0).reshape(2, 2).as_subclass(Named), flow.ones(2, 2)
    several = (flow.max(x, 1)[0], x.split(1)[1], flow.zeros_like(x), flow.add(y, x), x.data)
    for z in (x + 1, 1 + x, y - x, flow.exp(x), x.sum(), x[0], x.T, F.relu(x), flow.cat([y, x])):
        assert type(z) is Named
    assert {type(z) for z in several} == {Named}
    assert isinstance(flow.max(x, 1), flow.return_types.max)
    assert type(y + 1) is flow.Tensor
    assert type(x.shape) is flow.Size
    assert type(x.add_(1)) is Named
    assert x.tolist() == [[1, 2], [3, 4]]
    assert type(nn.Parameter(y) + y) is flow.Tensor


def test_gradients_of_a_subclass():
    leaf = flow.ones(3, requires_grad=True)
    out = (leaf.as_subclass(Named) * 3).sum()
    assert type(out) is Named
    out.backward()
    assert leaf.grad.tolist() == [3, 3, 3]


def test_a_class_is_asked_of_functions_methods_and_properties():
    x = flow.ones(2, 2).as_subclass(Logged)
    Logged.names.clear()
    flow.exp(x), x.exp(), x.shape, x.T, F.softmax(x, dim=0), flow.where(flow.ones(2, 2) > 0, x, 0.0)
    assert Logged.names == [
        "flow.exp", "flow.Tensor.exp", "flow.Tensor.shape.__get__", "flow.Tensor.T.__get__",
        "flow.nn.functional.softmax", "flow.where",
    ]  # fmt: skip


def test_subclasses_are_asked_first():
    class Inner(Logged):
        names: ClassVar[list[str]] = []

    base, inner = flow.ones(2).as_subclass(Logged), flow.ones(2).as_subclass(Inner)
    Logged.names.clear()
    assert type(base + inner) is Inner
    assert Logged.names == []
    assert len(Inner.names) == 1
    other = flow.ones(2).as_subclass(Named)
    with pytest.raises(TypeError, match=r"no implementation found.*Logged.*Named"):
        base + other


def test_what_is_no_tensor_is_asked():
    overrides.begin()
    d = Diagonal(5, 2)
    assert flow.mean(d) == 0.4
    assert flow.add(d, d).value == 4
    assert flow.clone(d).n == 5
    assert flow.exp(d) == "exp"
    assert F.relu(d).value == 2
    assert flow.cat([flow.ones(2), d]) == 2
    with pytest.raises(TypeError, match=r"sum.*no implementation found.*Diagonal"):
        flow.sum(d)


def test_a_mode_sees_the_calls_of_its_thread():
    x, layer = flow.ones(2, 2), nn.Linear(2, 2)
    x + x, layer(x)  # native, where calls are
    with Names() as mode:
        other = threading.Thread(target=lambda: x * 2)
        other.start()
        other.join()
        y = layer(x + 1)
        y.sum().backward()
        flow.zeros(2), flow.tensor(1.0), x.ndim
        x[0] = 1
    assert mode.names == [
        "flow.Tensor.add", "flow.linear", "flow.sum", "flow.Tensor.backward", "flow.zeros",
        "flow.tensor", "flow.Tensor.ndim.__get__", "flow.Tensor.__setitem__",
    ]  # fmt: skip
    count = len(mode.names)
    x + x
    assert len(mode.names) == count
    assert layer.weight.grad is not None


def test_modes_in_each_other():
    calls = []

    class Own(overrides.TorchFunctionMode):
        def __init__(self, name):
            self.name = name

        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append(self.name)
            return NotImplemented if self.name == "no" else func(*args, **(kwargs or {}))

    with Own("outer"), Own("inner"):
        flow.ones(2).sum()
    assert calls == ["inner", "outer"] * 2
    with pytest.raises(TypeError, match=r"no implementation found.*nor in mode Own"), Own("no"):
        flow.ones(2)
    with pytest.raises(ValueError, match="mine"), Own("outer"):
        raise ValueError("mine")
    calls.clear()
    with overrides.DisableTorchFunction(), Own("outer"):
        flow.ones(2)
    assert calls == []


def test_what_disables():
    x = flow.ones(2).as_subclass(Named)
    with overrides.DisableTorchFunctionSubclass(), Names() as mode:
        assert type(x + 1) is flow.Tensor
        with overrides.enable_reentrant_dispatch():
            assert type(x + 1) is Named
    assert mode.names[0] == "flow.Tensor.add"


def test_handle_and_has():
    x, d = flow.ones(2).as_subclass(Named), Diagonal(2, 1)
    assert overrides.has_torch_function((x,))
    assert overrides.has_torch_function_variadic(1, d)
    assert not overrides.has_torch_function((flow.ones(2), 1, nn.Parameter(flow.ones(2))))
    with pytest.raises(TypeError, match="no implementation"):
        overrides.handle_torch_function(flow.sum, (d,), d)
    assert overrides.handle_torch_function(flow.mean, (d,), d) == 0.5
    assert overrides.is_tensor_like(d)
    assert not overrides.is_tensor_like(1)


def test_names_and_tables():
    functions = overrides.get_overridable_functions()
    assert flow.add in functions[flow]
    assert F.dropout in functions[F] + functions[flow]
    assert flow.Tensor.T.__get__ in functions[flow.Tensor]
    assert overrides.is_tensor_method_or_property(flow.Tensor.add_)
    assert overrides.is_tensor_method_or_property(flow.Tensor.grad.__get__)
    assert not overrides.is_tensor_method_or_property(F.dropout)
    assert overrides.resolve_name(print) is None
    assert overrides.get_ignored_functions().isdisjoint(functions[flow])


def test_signatures_stay():
    import inspect

    assert list(inspect.signature(flow.clamp).parameters)[:3] == ["input", "min", "max"]
    assert list(inspect.signature(F.softmax).parameters)[:2] == ["input", "dim"]


def test_nothing_asks_before_somebody_may_take_calls_over():
    code = """
import flowvm as flow
from flowvm.eager import overrides
x = flow.ones(2); (x + x).sum(); flow.nn.Linear(2, 2); import flowvm.overrides
class Duck:
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return 3
for f in (flow.mean, flow.exp, flow.clone):
    try: f(Duck())
    except TypeError as error:
        assert "flowvm.overrides.begin()" in str(error), error
assert not overrides._begun and not overrides._given_way
class Own(flow.nn.Parameter): pass
assert not overrides._begun
class Named(flow.Tensor): pass
assert overrides._begun and flow.mean(Duck()) == 3
assert type(flow.clone(x.as_subclass(Named))) is Named
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


def test_native_calls_stay_native():
    x = flow.ones(2)
    assert isinstance(flow.Tensor.__add__, Call) or flow.config.calls == "python"
    assert (x + x).tolist() == [2, 2]
