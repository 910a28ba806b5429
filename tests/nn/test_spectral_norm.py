"""Weights by their largest singular value: the hook in front of calls, and the parametrization."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError
from flowvm.nn.utils import parametrizations
from flowvm.nn.utils.spectral_norm import SpectralNorm, remove_spectral_norm, spectral_norm


def largest(weight):
    return np.linalg.svd(weight.detach().numpy(), compute_uv=False)[0]


def test_weights_are_divided_in_front_of_each_call():
    layer = spectral_norm(nn.Linear(3, 4), n_power_iterations=60)
    own = layer.weight_orig.detach().numpy().copy()
    x = flow.rand(2, 3)
    out = layer(x)
    assert largest(layer.weight) == pytest.approx(1, abs=1e-4)
    expected = (
        x.numpy() @ (own / np.linalg.svd(own, compute_uv=False)[0]).T + layer.bias.detach().numpy()
    )
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(layer.weight_orig.detach().numpy(), own)
    assert set(layer.state_dict()) == {"bias", "weight_orig", "weight_u", "weight_v"}


def test_evaluation_takes_no_steps():
    layer = spectral_norm(nn.Linear(3, 4)).eval()
    before = layer.weight_u.clone()
    layer(flow.rand(1, 3))
    assert flow.equal(layer.weight_u, before)
    layer.train()
    layer(flow.rand(1, 3))
    assert not flow.equal(layer.weight_u, before)


def test_norms_are_once_and_undone():
    layer = spectral_norm(nn.Linear(3, 4), n_power_iterations=60)
    with pytest.raises(RuntimeError, match="spectral_norm is on 'weight' of this Linear already"):
        spectral_norm(layer)
    layer(flow.rand(1, 3))
    value = layer.weight.detach().clone()
    remove_spectral_norm(layer)
    np.testing.assert_allclose(layer.weight.detach().numpy(), value.numpy(), rtol=1e-4)
    assert set(layer.state_dict()) == {"bias", "weight"}
    assert isinstance(layer.weight, nn.Parameter)
    with pytest.raises(ArgumentError, match="there is no spectral_norm on 'weight' of this Linear"):
        remove_spectral_norm(layer)
    with pytest.raises(ArgumentError, match="Linear has no parameter 'other'"):
        spectral_norm(nn.Linear(1, 1), "other")
    with pytest.raises(ArgumentError, match="n_power_iterations is positive, got 0"):
        spectral_norm(nn.Linear(1, 1), n_power_iterations=0)


def test_matrices_of_transposed_convolutions_are_by_their_outputs():
    hook = SpectralNorm("weight", 1, 1, 1e-12)
    w = flow.rand(2, 3, 4)
    matrix = hook.reshape_weight_to_matrix(w)
    np.testing.assert_array_equal(matrix.numpy(), w.numpy().transpose(1, 0, 2).reshape(3, 8))
    layer = spectral_norm(nn.ConvTranspose1d(2, 3, 4))
    assert layer.weight_u.shape == (3,)


def test_the_parametrization_has_the_same_value():
    layer = nn.Linear(3, 4)
    own = layer.weight.detach().numpy().copy()
    parametrizations.spectral_norm(layer, n_power_iterations=60)
    layer.eval()
    np.testing.assert_allclose(
        layer.weight.detach().numpy(), own / np.linalg.svd(own, compute_uv=False)[0], rtol=1e-3
    )
    vector = nn.Module()
    vector.bias = nn.Parameter(flow.tensor([3.0, 4.0]))
    parametrizations.spectral_norm(vector, "bias")
    np.testing.assert_allclose(vector.bias.detach().numpy(), [0.6, 0.8], rtol=1e-6)
    with pytest.raises(IndexError, match="dim 5 is out of range for a weight of 2 dimensions"):
        parametrizations.spectral_norm(nn.Linear(2, 2), dim=5)
    with pytest.raises(ArgumentError, match="Linear has no parameter or buffer 'other'"):
        parametrizations.spectral_norm(nn.Linear(2, 2), "other")


@pytest.mark.parametrize("name", parametrizations._MAPS)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
def test_maps_are_orthogonal(name, shape, rng):
    layer = nn.Linear(shape[1], shape[0], dtype=flow.float64)
    own = layer.weight.detach().numpy().copy()
    parametrizations.orthogonal(layer, orthogonal_map=name)
    q = layer.weight.detach().numpy()
    q = q if shape[0] >= shape[1] else q.T
    np.testing.assert_allclose(q.T @ q, np.eye(q.shape[1]), atol=1e-10)
    assert own.shape == shape
    target = np.linalg.qr(rng.standard_normal(shape if shape[0] >= shape[1] else shape[::-1]))[0]
    target = target if shape[0] >= shape[1] else target.T
    layer.weight = flow.tensor(target)  # an orthogonal matrix stays what it is
    np.testing.assert_allclose(layer.weight.detach().numpy(), target, atol=1e-10)


def test_orthogonal_weights_are_matrices():
    with pytest.raises(ArgumentError, match="orthogonal_map is one of 'matrix_exp', 'cayley'"):
        parametrizations.orthogonal(nn.Linear(2, 2), orthogonal_map="other")
    with pytest.raises(ArgumentError, match=r"bias must be matrices .*, got shape \(2,\)"):
        parametrizations.orthogonal(nn.Linear(2, 2), "bias")
    layer = parametrizations.orthogonal(
        nn.Linear(2, 2), orthogonal_map="cayley", use_trivialization=False
    )
    with pytest.raises(
        NotImplementedError, match="cayley without use_trivialization has no inverse"
    ):
        layer.weight = flow.eye(2)


def test_directions_and_lengths(rng):
    layer = nn.Linear(3, 2)
    own = layer.weight.detach().numpy().copy()
    older = {"bias": layer.bias.detach(), "weight_g": flow.tensor([[2.0], [3.0]]),
             "weight_v": flow.tensor(own)}  # fmt: skip
    parametrizations.weight_norm(layer)
    np.testing.assert_allclose(layer.weight.detach().numpy(), own, rtol=1e-5)
    layer.load_state_dict(older)
    expected = own / np.linalg.norm(own, axis=1, keepdims=True) * [[2.0], [3.0]]
    np.testing.assert_allclose(layer.weight.detach().numpy(), expected, rtol=1e-5)
