"""Initialisers: exact ones by value, random ones by moments and bounds."""

import math

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn import init

N = (300, 200)


def array(tensor: flow.Tensor) -> np.ndarray:
    return np.array(tensor.detach().numpy(), dtype=np.float64)


@pytest.mark.parametrize(
    ("fill", "bound"),
    [
        (lambda w: init.uniform_(w, -0.3, 0.3), 0.3),
        (lambda w: init.xavier_uniform_(w, gain=2.0), 2 * math.sqrt(6 / 500)),
        (lambda w: init.kaiming_uniform_(w, a=math.sqrt(5)), 1 / math.sqrt(200)),
        (
            lambda w: init.kaiming_uniform_(w, mode="fan_out", nonlinearity="relu"),
            math.sqrt(6 / 300),
        ),
        (lambda w: nn.Linear(200, 300).weight, 1 / math.sqrt(200)),
        (lambda w: nn.Linear(200, 60000).bias, 1 / math.sqrt(200)),
        (lambda w: nn.Conv2d(8, 800, 5, groups=2).weight, 1 / math.sqrt(4 * 25)),
        (lambda w: nn.Bilinear(30, 40, 50).weight, 1 / math.sqrt(30)),
    ],
)
def test_uniform(fill: object, bound: float) -> None:
    drawn = array(fill(flow.empty(*N)))  # type: ignore[operator]
    assert np.abs(drawn).max() <= bound * (1 + 1e-6)
    assert np.abs(drawn).max() > 0.99 * bound
    assert drawn.std() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert abs(drawn.mean()) < 0.03 * bound


@pytest.mark.parametrize(
    ("fill", "std"),
    [
        (lambda w: init.normal_(w, 0.0, 0.2), 0.2),
        (lambda w: init.xavier_normal_(w), math.sqrt(2 / 500)),
        (lambda w: init.kaiming_normal_(w, nonlinearity="relu"), math.sqrt(2 / 200)),
        (lambda w: init.kaiming_normal_(w, 0.5, "fan_out"), math.sqrt(2 / 1.25 / 300)),
        (lambda w: nn.Embedding(300, 200).weight, 1.0),
    ],
)
def test_normal(fill: object, std: float) -> None:
    drawn = array(fill(flow.empty(*N)))  # type: ignore[operator]
    assert drawn.std() == pytest.approx(std, rel=0.03)
    assert abs(drawn.mean()) < 0.03 * std
    assert np.abs(drawn).max() > 3 * std


def test_truncated_normal() -> None:
    drawn = array(init.trunc_normal_(flow.empty(*N), 1.0, 2.0, -1.0, 3.0))
    assert drawn.min() >= -1
    assert drawn.max() <= 3
    # the standard deviation of N(0, 1) cut at one sigma either side is 0.5396
    assert drawn.std() == pytest.approx(2 * 0.5396, rel=0.03)
    assert drawn.mean() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 3, 2)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    q = array(init.orthogonal_(flow.empty(*shape), gain=2.0)).reshape(shape[0], -1) / 2
    gram = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)


def test_exact_ones() -> None:
    np.testing.assert_array_equal(array(init.constant_(flow.empty(2), 1.5)), [1.5, 1.5])
    np.testing.assert_array_equal(array(init.ones_(flow.empty(2))), [1, 1])
    np.testing.assert_array_equal(array(init.zeros_(flow.empty(2))), [0, 0])
    np.testing.assert_array_equal(array(init.eye_(flow.empty(2, 3))), np.eye(2, 3))
    x = flow.randn(1, 4, 5, 5)
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
    init.dirac_(conv.weight, groups=2)
    np.testing.assert_allclose(array(conv(x)), array(x))


def test_sparse() -> None:
    drawn = array(init.sparse_(flow.empty(10, 7), 0.25, std=1.0))
    assert ((drawn == 0).sum(0) == 3).all()


def test_gain() -> None:
    assert init.calculate_gain("tanh") == 5 / 3
    assert init.calculate_gain("leaky_relu", 0.5) == math.sqrt(2 / 1.25)
    with pytest.raises(ValueError, match="Unsupported nonlinearity 'relux'"):
        init.calculate_gain("relux")


def test_bad_shapes_say_so() -> None:
    with pytest.raises(ValueError, match=r"fewer than 2 dimensions, got shape \(3,\)"):
        init.xavier_uniform_(flow.empty(3))
    with pytest.raises(RuntimeError, match="2-D"):
        init.eye_(flow.empty(3))


def test_a_seed_repeats_and_no_graph_is_made() -> None:
    flow.manual_seed(7)
    a = nn.Linear(4, 4)
    flow.manual_seed(7)
    b = nn.Linear(4, 4)
    np.testing.assert_array_equal(array(a.weight), array(b.weight))
    assert init.normal_(a.weight) is a.weight
    assert a.weight.is_leaf
    assert a.weight.requires_grad


def test_older_names_warn_and_do_the_same() -> None:
    weight = nn.Linear(2, 2).weight
    with pytest.warns(FutureWarning, match="constant_"):
        assert nn.init.constant(weight, 3.0) is weight
    assert weight.tolist() == [[3.0, 3.0], [3.0, 3.0]]
