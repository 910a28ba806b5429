"""Moments and entropies that are said as formulas."""

import inspect

import pytest

import flowvm as flow
from flowvm.distributions import Distribution, Normal
from flowvm.distributions.formulas import formulas

OFFSET = 10.0


@formulas(mean="loc + OFFSET", variance="ops.clamp(scale, min=2) ** 2", entropy="mean.log()")
class Shifted(Normal):
    """A distribution with formulas of its own."""


def test_a_formula_is_the_property_or_method():
    d = Shifted(flow.tensor([1.0, 2.0]), 1.0)
    assert d.mean.tolist() == [11.0, 12.0]
    assert d.variance.tolist() == [4.0, 4.0]
    assert d.entropy().tolist() == pytest.approx([2.3979, 2.4849], abs=1e-4)
    assert d.mode.tolist() == [1.0, 2.0]  # the base's


def test_it_says_what_the_general_one_says():
    assert inspect.getdoc(Shifted.mean) == inspect.getdoc(Distribution.mean)
    assert Shifted.entropy.__qualname__ == "Shifted.entropy"


def test_gradients_go_through():
    loc = flow.tensor(1.0, requires_grad=True)
    Shifted(loc, 1.0).entropy().backward()
    assert loc.grad.item() == pytest.approx(1 / 11)
