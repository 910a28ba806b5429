"""Methods, properties and operators of Tensor, called on other objects, raise."""

import inspect
import re

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.receivers import NAMES
from flowvm.errors import ArgumentTypeError

# of any object: Python's own, and those of classes and ends
OTHERS = {"__del__", "__hash__", "__init_subclass__", "__torch_function__"}
GIVEN = (3, "x", None, [1.0], np.ones(2))


def members():
    for name in sorted(dir(flow.Tensor)):
        owner = next(kind for kind in flow.Tensor.__mro__ if name in vars(kind))
        value = vars(owner)[name]
        if owner is object or name in OTHERS or isinstance(value, type):
            continue
        if callable(value) or isinstance(value, property):
            yield name, value


def calls(value, inputs):
    """Calls with as many arguments as are needed, and with one more."""
    if isinstance(value, property):
        actual = [] if inputs is None else [lambda: value.__get__(inputs)]
        return [lambda: value.fget(inputs), *actual]
    own = list(inspect.signature(value).parameters.values())
    placed = [p for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least = max(1, sum(p.default is p.empty for p in placed))
    most = 4 if any(p.kind is p.VAR_POSITIONAL for p in own) else len(placed)
    named = {p.name: 4 for p in own if p.default is p.empty and p.kind is p.KEYWORD_ONLY}
    return [
        lambda count=count: value(inputs, *(4, 5, 6, 7, 8, 9)[: count - 1], **named)
        for count in sorted({least, min(most, least + 1)})
    ]


MEMBERS = dict(members())


@pytest.mark.parametrize("name", MEMBERS)
def test_what_is_no_tensor(name):
    for inputs in GIVEN:
        for call in calls(MEMBERS[name], inputs):
            with pytest.raises(ArgumentTypeError) as caught:
                call()
            text = str(caught.value)  # of the first argument, or of another that is wrong, too
            assert re.match(r"([\w.]+|@)(:| needs \w+)", text), text
            assert re.search("got ", text), text


def test_all_are_among_them():
    assert len(MEMBERS) > 600
    assert set(NAMES) <= set(MEMBERS)


def test_a_tensor_is_as_before():
    x = flow.tensor([4.0, 9.0], requires_grad=True)
    assert x.shape == (2,)
    assert x.is_cpu is True
    assert x.is_sparse is False
    assert x.float() is x
    assert x.new_full((2,), fill_value=3).tolist() == [3.0, 3.0]
    assert x.type() == "flowvm.FloatTensor"
    with flow.no_grad():
        assert x.clone().fill_(2).tolist() == [2.0, 2.0]
    assert inspect.signature(flow.Tensor.new_full).parameters.keys() >= {"size", "fill_value"}
    with pytest.raises(TypeError, match="unexpected keyword"):
        x.zero_(much=1)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        x.nothing  # noqa: B018


def test_numbers_alone_are_a_function_s():
    assert flow.add(3, 4).item() == 7
    for method in (flow.Tensor.add, flow.Tensor.__add__, flow.Tensor.__radd__):
        with pytest.raises(ArgumentTypeError, match=r"^Tensor\.\w+ needs a Tensor, got int \(3\)"):
            method(3, 4)


def test_errors_of_what_a_tensor_holds_stay():
    class Odd:
        def __index__(self):
            raise AttributeError("mine")

    with pytest.raises(AttributeError, match="mine"):
        flow.ones(2, 3).size(Odd())
