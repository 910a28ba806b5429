"""Layers made of rows: as if their methods had been written."""

import copy
import inspect
import pickle
import traceback
from dataclasses import KW_ONLY

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn.modules._check import choice
from flowvm.nn.modules.layer import Dimensional, layer


def scaled(input, other, factor=1.0, kind="plain", *, training=False, more=None):
    """input * factor + other, and 1 more in training."""
    out = input * factor + other + (1 if training else 0)
    return out if more is None else out + more


def one_of_two(owner, name, value):
    return choice(owner, name, value, ("plain", "other"))


@layer(scaled, "input, other", kind=one_of_two, buffers=("more",))
class Scaled(nn.Module):
    """A row with everything."""

    factor: float = 2.0
    kind: str = "plain"
    _: KW_ONLY
    more: flow.Tensor | None = None
    inplace: bool = False


def test_the_signature_is_that_of_the_fields():
    parameters = inspect.signature(Scaled).parameters
    assert list(parameters) == ["factor", "kind", "more", "inplace"]
    assert parameters["factor"].default == 2.0
    assert parameters["more"].kind is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(Scaled.forward).parameters) == ["self", "input", "other"]
    assert Scaled.__init__.__qualname__ == "Scaled.__init__"
    assert Scaled.__doc__ == "A row with everything."


def test_forward_gives_what_was_kept():
    x, y = flow.tensor([1.0]), flow.tensor([10.0])
    assert Scaled(3.0)(x, y).tolist() == [14.0]
    assert Scaled(3.0).eval()(x, y).tolist() == [13.0]
    assert Scaled(more=flow.tensor([100.0])).eval()(x, y).tolist() == [112.0]


def test_buffers_are_buffers_and_no_field_hides_them():
    module = Scaled(more=flow.ones(2))
    assert list(module.state_dict()) == ["more"]
    module.more = None
    assert module.more is None
    assert not hasattr(Scaled, "factor")


def test_arguments_are_checked_and_counted():
    with pytest.raises(flow.errors.ArgumentError, match="Scaled: kind must be one of"):
        Scaled(kind="third")
    with pytest.raises(TypeError, match=r"Scaled.__init__\(\) got an unexpected keyword argument"):
        Scaled(scale=1)
    with pytest.raises(TypeError, match="positional"):
        Scaled(1.0, "plain", None)


def test_all_fields_are_shown_but_inplace_only_where_true():
    assert repr(Scaled()) == "Scaled(factor=2.0, kind=plain, more=None)"
    assert repr(Scaled(inplace=True)).endswith("more=None, inplace=True)")
    assert repr(nn.GELU("tanh")) == "GELU(approximate='tanh')"
    assert repr(nn.L1Loss()) == "L1Loss()"


def test_they_are_pickled_and_copied():
    module = Scaled(3.0, "other", more=flow.ones(1))
    for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert type(other) is Scaled
        assert (repr(other), other.more.tolist()) == (repr(module), [1.0])


def test_a_users_subclass_has_init_and_forward_of_its_own():
    class Own(nn.LeakyReLU):
        def __init__(self, more):
            super().__init__(0.5, inplace=False)
            self.more = more

        def forward(self, input):
            return super().forward(input) + self.more

    module = Own(1.0)
    assert module(flow.tensor([-2.0])).tolist() == [0.0]
    assert repr(module) == "Own(negative_slope=0.5)"

    class Later(nn.Softplus):
        extra: int = 3  # no field: the class is no row

    assert Later(2.0).beta == 2.0
    assert Later.extra == 3


def test_a_class_keeps_what_it_has():
    @layer(flow.relu)
    class Shown(nn.Module):
        bound: float = 1.0

        def forward(self, input):
            return input + self.bound

        def extra_repr(self):
            return "own"

    assert Shown(2.0)(flow.zeros(1)).tolist() == [2.0]
    assert repr(Shown()) == "Shown(own)"


def test_what_the_base_takes_is_given_to_it():
    with pytest.warns(UserWarning, match="write reduction='sum'"):
        loss = nn.SmoothL1Loss(beta=0.5, size_average=False)
    assert (loss.reduction, loss.beta) == ("sum", 0.5)
    assert not hasattr(loss, "size_average")
    weighted = nn.MultiMarginLoss(2, weight=flow.ones(3))
    assert list(weighted.state_dict()) == ["weight"]


def test_an_error_names_the_users_line():
    try:
        nn.Softplus(beta="x")(flow.ones(2))
    except Exception as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        assert files[0] == __file__
    else:
        pytest.fail("no error")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_layers_of_dimensions_follow_from_their_names(n):
    x = np.arange(4.0, dtype=np.float32) + np.zeros((1, 2) + (4,) * n, np.float32)
    pool, mean = getattr(nn, f"MaxPool{n}d"), getattr(nn, f"AvgPool{n}d")
    assert pool(2)(flow.tensor(x)).flatten()[:2].tolist() == [1.0, 3.0]
    assert mean(2)(flow.tensor(x)).flatten()[:2].tolist() == [0.5, 2.5]
    assert f"nn.MaxPool{n}d(2)" in pool.__doc__
    lazy = getattr(nn, f"LazyConv{n}d")
    assert lazy.cls_to_become is getattr(nn, f"Conv{n}d")


def test_a_users_name_says_no_dimension():
    class Mine1d(nn.MaxPool2d):
        pass

    assert Mine1d._ndim == 2
    assert issubclass(Mine1d, Dimensional)
