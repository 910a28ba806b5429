"""The base of normalizing layers: a weight of ones and a bias of zeros, where they are wanted."""

import pytest

import flowvm as flow
from flowvm.nn.modules._affine import Affine


class Layer(Affine):
    def __init__(self, shape, weight=True, bias=True, device=None, dtype=None):
        super().__init__()
        self._make(shape, weight, bias, device, dtype)


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_that_are_wanted(weight, bias):
    layer = Layer((2, 3), weight, bias, dtype=flow.float64)
    assert set(layer.state_dict()) == {n for n, k in (("weight", weight), ("bias", bias)) if k}
    if weight:
        assert layer.weight.tolist() == [[1, 1, 1]] * 2
        assert layer.weight.dtype is flow.float64
    else:
        assert layer.weight is None
    if bias:
        assert layer.bias.tolist() == [[0, 0, 0]] * 2
    assert all(p.requires_grad for p in layer.parameters())


def test_parameters_are_reset_in_place():
    layer = Layer([2])
    weight = layer.weight
    with flow.no_grad():
        weight.fill_(7)
        layer.bias.fill_(7)
    layer.reset_parameters()
    assert layer.weight is weight
    assert (weight.tolist(), layer.bias.tolist()) == ([1, 1], [0, 0])
    assert Layer([2], device="meta").weight.is_meta
