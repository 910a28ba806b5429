"""Dual tensors: tangents equal the results of `jvp`, and PyTorch's tangents."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.func import forward_ad
from flowvm.nn import functional as F

X = flow.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=flow.float64)
T = flow.tensor([[1.0, 0.0], [2.0, 1.0]], dtype=flow.float64)

FUNCTIONS = {
    "power": lambda x: x**2,
    "sum": lambda x: x.sum(),
    "matmul": lambda x: x @ x,
    "softmax": lambda x: F.softmax(x, -1),
    "max": lambda x: x.max(1)[0],
    "index": lambda x: x[0],
    "cat": lambda x: flow.cat([x, 2 * x]),
    "transposed": lambda x: x.T,
    "inverse": lambda x: flow.linalg.inv(x),
    "where": lambda x: flow.where(x > 1, x, 0.0),
    "in place": lambda x: x.clone().mul_(x),
    "split": lambda x: x.split(1)[1],
    "norm": lambda x: F.layer_norm(x, (2,)),
    "einsum": lambda x: flow.einsum("ij,jk->k", x, x),
    "reversed": lambda x: 1.0 / x - x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tangents_are_those_of_jvp(name):
    f = FUNCTIONS[name]
    value, derivative = flow.func.jvp(f, (X,), (T,))
    with forward_ad.dual_level():
        primal, tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(X, T)))
        np.testing.assert_allclose(primal.numpy(), value.numpy())
        np.testing.assert_allclose(tangent.numpy(), derivative.numpy(), rtol=1e-12, atol=1e-14)


def test_what_has_no_tangent():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, T)
        for y in (dual.detach(), dual.argmax(), dual > 1, flow.zeros_like(dual)):
            assert forward_ad.unpack_dual(y).tangent is None
        assert (dual.shape, dual.numel(), dual.requires_grad) == (X.shape, 4, False)
        assert "tangent=tensor" in repr(dual)
    assert forward_ad.unpack_dual(dual).tangent is None  # its level is over
    assert (dual + 1).tolist() == (X + 1).tolist()


def test_changes_in_place():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X.clone(), T)
        dual.mul_(2)
        dual += dual
        dual[0] = 3.0
        assert forward_ad.unpack_dual(dual).tangent.tolist() == [[0, 0], [8, 4]]
        with pytest.raises(NotImplementedError, match="make it dual first"):
            flow.zeros(2, 2, dtype=flow.float64).copy_(dual)


def test_parameters_of_a_module():
    layer = nn.Linear(2, 1)
    x = flow.ones(1, 2)
    with forward_ad.dual_level():
        for name, p in list(layer.named_parameters()):
            delattr(layer, name)
            setattr(layer, name, forward_ad.make_dual(p, flow.ones_like(p)))
        y = layer(x)
        assert forward_ad.unpack_dual(y).tangent.tolist() == [[3.0]]
        assert y.requires_grad


def test_bad_input():
    with pytest.raises(NotImplementedError, match="no level is open"):
        forward_ad.make_dual(X, T)
    with pytest.raises(NotImplementedError, match="not open"):
        forward_ad.exit_dual_level()
    with forward_ad.dual_level() as level:
        with pytest.raises(ValueError, match="the tangent is"):
            forward_ad.make_dual(X, T[0])
        with pytest.raises(ValueError, match="floating point tensor is needed"):
            forward_ad.make_dual(X.to(flow.int64), T.to(flow.int64))
        with pytest.raises(TypeError, match="tangent that is a tensor"):
            forward_ad.make_dual(X, 1.0)
        with pytest.raises(NotImplementedError, match="nested"):
            forward_ad.enter_dual_level()
        forward_ad.exit_dual_level(level=level)
        with pytest.raises(NotImplementedError, match="no level is open"):
            forward_ad.make_dual(X, T)
