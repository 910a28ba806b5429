"""Random numbers in a file: of the distributions that flowvm draws from, by onnxruntime."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError
from flowvm.nn import functional as F

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from flowvm.onnx import draws
from flowvm.onnx.expressions import Untranslated
from tests.onnx_files.calls import call
from tests.onnx_files.calls import run as reference
from tests.onnx_files.helpers import onnx, onnxruntime, run

COUNT = 100_000  # numbers that are drawn; their mean is off by less than 6 / sqrt(COUNT) deviations
X = flow.linspace(0, 1, COUNT)

DRAWS: list[tuple[str, Callable[..., Any], float, float, float, float]] = [
    # name, what is drawn, its mean, deviation, least and most
    ("rand", lambda x: flow.rand_like(x), 0.5, 12**-0.5, 0, 1),
    ("rand of float64", lambda x: flow.rand(COUNT, dtype=flow.float64), 0.5, 12**-0.5, 0, 1),
    ("uniform_", lambda x: x.clone().uniform_(2, 4), 3, 3**-0.5, 2, 4),
    ("randn", lambda x: flow.randn(COUNT), 0, 1, -9, 9),
    ("normal_", lambda x: x.clone().normal_(5, 2), 5, 2, -13, 23),
    ("exponential_", lambda x: x.clone().exponential_(2.0), 0.5, 0.5, 0, 20),
    ("randint", lambda x: flow.randint(3, 7, (COUNT,)), 4.5, 1.25**0.5, 3, 6),
    ("randint of int32", lambda x: flow.randint(0, 2, (COUNT,), dtype=flow.int32), 0.5, 0.5, 0, 1),
    ("bernoulli", lambda x: flow.bernoulli(x), 0.5, 0.5, 0, 1),
    ("bernoulli_", lambda x: x.clone().bernoulli_(0.25), 0.25, 0.1875**0.5, 0, 1),
    ("dropout", lambda x: F.dropout(x * 0 + 1, 0.75), 1, 3**0.5, 0, 4),
    ("dropout of half", lambda x: F.dropout((x * 0 + 1).half(), 0.5), 1, 1, 0, 2),
    ("dropout of all", lambda x: F.dropout(x, 1.0), 0, 0, 0, 0),
    ("randperm", lambda x: flow.randperm(COUNT), (COUNT - 1) / 2, COUNT * 12**-0.5, 0, COUNT - 1),
]


@pytest.mark.parametrize("case", DRAWS, ids=lambda case: case[0])
def test_a_distribution(case: Any) -> None:
    _, model, mean, deviation, least, most = case
    proto = flow.onnx.export(model, (X,))
    onnx.checker.check_model(proto, full_check=True)
    output = run(proto, {"x": X.numpy()})[0]
    expected = model(X)
    assert (output.shape, output.dtype) == (tuple(expected.shape), expected.numpy().dtype)
    values = output.astype(np.float64)
    assert least <= values.min()
    assert values.max() <= most
    assert abs(values.mean() - mean) <= 6 * deviation / COUNT**0.5
    assert abs(values.std() - deviation) <= 0.05 * deviation
    if case[0] == "randperm":
        assert (np.sort(output) == np.arange(COUNT)).all()


def test_a_module_that_trains_drops() -> None:
    net = nn.Sequential(nn.Linear(6, 512), nn.Dropout(0.5))
    mode = flow.onnx.TrainingMode.TRAINING
    x = flow.ones(4, 6)
    proto = flow.onnx.export(net, x, training=mode, dynamic_axes={"input": {0: "n"}})
    plain = net[0](flow.ones(9, 6)).detach().numpy()
    output = run(proto, {"input": np.ones((9, 6), np.float32)})[0]
    nonzero = output != 0
    assert 0.4 < nonzero.mean() < 0.6
    np.testing.assert_allclose(output[nonzero], 2 * plain[nonzero], rtol=1e-5, atol=1e-5)
    assert "RandomUniformLike" not in {n.op_type for n in flow.onnx.export(net, x).graph.node}


def test_each_run_and_each_node_draws_anew() -> None:
    proto = flow.onnx.export(lambda x: (flow.rand_like(x), flow.rand_like(x)), (X,))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    one, two = session.run(None, {"x": X.numpy()})
    assert (one != two).any()
    assert (one != session.run(None, {"x": X.numpy()})[0]).any()


def test_random_numbers_of_any_count() -> None:
    proto = flow.onnx.export(
        lambda x: x + flow.randn(x.shape[0], 3), flow.zeros(4, 3), dynamic_axes={"x": {0: "n"}}
    )
    output = run(proto, {"x": np.zeros((5000, 3), np.float32)})[0]
    assert output.shape == (5000, 3)
    assert 0.9 < output.std() < 1.1


def test_what_onnx_does_not_draw() -> None:
    with pytest.raises(ArgumentError, match=r"poisson at .*draws random numbers"):
        flow.onnx.export(lambda x: flow.poisson(x), (X,))


@pytest.mark.parametrize("n", [1, 3, 40])
def test_determinants(n: int) -> None:
    a = np.random.default_rng(n).standard_normal((2, n, n)).astype(np.float32) * 50
    a[1, 0] *= -1

    def model(a: flow.Tensor) -> Any:
        return flow.linalg.slogdet(a)

    sign, size = run(flow.onnx.export(model, flow.from_numpy(a)), {"a": a})
    expected = np.linalg.slogdet(a.astype(np.float64))
    np.testing.assert_array_equal(sign, expected[0])
    np.testing.assert_allclose(size, expected[1], rtol=1e-4, atol=1e-3)
    singular = np.zeros((2, 2), np.float32)
    sign, size = run(flow.onnx.export(model, flow.from_numpy(singular)), {"a": singular})
    assert (sign, size) == (0, -np.inf)


# --- translations by hand -------------------------------------------------------------------------


def drawn(translation: Any, dtype: Any, shape: tuple[int, ...] = (400,), **scalars: float) -> Any:
    """Draw by ONNX's reference what a call without inputs is translated to."""
    c = call([], {}, [(shape, dtype)], scalars)
    return reference(c, translation(c)[0], [])


@pytest.mark.parametrize("dtype", [flow.float16, flow.float32, flow.float64])
def test_draws_have_the_dtype_that_is_asked_for(dtype: Any) -> None:
    for values, low, high in (
        (drawn(draws.uniform, dtype, start=-3.0, span=2.0), -3, -1),
        (drawn(draws.normal, dtype, mean=10.0, std=0.0), 10, 10),
        (drawn(draws.exponential, dtype, rate=4.0), 0, 20),
    ):
        assert values.dtype == np.dtype(dtype.name)
        assert values.shape == (400,)
        assert low <= values.min()
        assert values.max() <= high


def test_integers_reach_both_ends() -> None:
    values = drawn(draws.integers, flow.int64, low=-2, size=3)
    assert set(values.tolist()) == {-2, -1, 0}
    assert set(drawn(draws.integers, flow.int64, low=5, size=1).tolist()) == {5}
    for size in (0, (1 << 53) + 1):
        with pytest.raises(Untranslated, match=f"a range of {size} integers"):
            drawn(draws.integers, flow.int64, low=0, size=size)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_chances_of_nought_and_one_are_certain(p: float) -> None:
    assert (drawn(draws.bernoulli, flow.float32, p=p) == p).all()
    c = call([((50,), flow.int32)], {}, [((50,), flow.float32)])
    chances = np.full(50, int(p), np.int32)
    assert (reference(c, draws.bernoulli(c)[0], [chances]) == p).all()
    c = call([((50,), flow.float32)], {}, [((50,), flow.float32)], {"p": p})
    x = np.arange(50, dtype=np.float32)
    np.testing.assert_array_equal(reference(c, draws.dropout(c)[0], [x]), x * (1 - p))


def test_permutations_have_each_place_once() -> None:
    values = drawn(draws.permutation, flow.int32, (31,))
    assert sorted(values.tolist()) == list(range(31))
    assert values.dtype == np.int32
