"""Spreads and norms of numbers whose squares overflow or vanish: moments, norm layers, lengths.

They are float32, from the smallest numbers to the largest, against float64.
"""

import numpy as np
import pytest

import flowvm as flow
from flowvm.nn.utils.weight_norm import directed

torch = pytest.importorskip("torch")

SCALES = (1.0, 1e30, 1e-30, 1e-23)


def far_off(actual, want):
    """The largest error, as a part of the largest number."""
    want = want.detach().numpy()
    return np.abs(actual.detach().numpy().astype(float) - want).max() / np.abs(want).max()


def errors(function, x, others, rng):
    """Return the errors of the value and of each gradient.

    `function` gets flowvm or PyTorch, and tensors.
    """
    mine = [flow.tensor(a, requires_grad=True) for a in (x, *others)]
    theirs = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, *others)]
    out, expected = function(flow, *mine), function(torch, *theirs)
    g = rng.standard_normal(tuple(expected.shape)).astype(np.float32)
    out.backward(flow.tensor(g))
    expected.backward(torch.tensor(g, dtype=torch.float64))
    grads = [(a.grad, b.grad) for a, b in zip(mine, theirs, strict=True)]
    return [far_off(a, b) for a, b in ((out, expected), *grads)]


@pytest.mark.parametrize("dims", [(1,), (0,), (0, 1), (0, 2)])
@pytest.mark.parametrize("scale", [*SCALES, 1e-40])
def test_moments(rng, dims, scale):
    shape = (6, 5, 40) if len(dims) > 1 else (6, 500)
    x = (rng.standard_normal(shape) * scale).astype(np.float32)
    wide = x.astype(np.float64)
    for freedom in (1,) if dims != (1,) else (0, 1):
        deviation = wide.std(dims, ddof=freedom).astype(np.float32)
        with np.errstate(over="ignore"):
            variance = wide.var(dims, ddof=freedom).astype(np.float32)
        for of in (lambda f: f, flow.compile) if freedom else (lambda f: f,):

            def deviate(t, freedom=freedom):
                return flow.std(t, dims, correction=freedom)

            def vary(t, freedom=freedom):
                return flow.var_mean(t, dims, correction=freedom)[0]

            actual = of(deviate)(flow.tensor(x)).numpy()
            np.testing.assert_allclose(actual, deviation, rtol=2e-7, atol=2e-45)
            actual = of(vary)(flow.tensor(x))
            np.testing.assert_allclose(actual.numpy(), variance, rtol=2e-7, atol=2e-45)
    results = flow.std_mean(flow.tensor(x), dims)
    np.testing.assert_array_equal(results[0].numpy(), flow.std(flow.tensor(x), dims).numpy())


@pytest.mark.parametrize("scale", SCALES)
def test_gradient_of_the_deviation(rng, scale):
    x = (rng.standard_normal((6, 50)) * scale).astype(np.float32)
    for of in (lambda t, v: t.std(v, 1), lambda t, v: t.std(v, 0), lambda t, v: t.std(v)):
        assert max(errors(of, x, (), rng)) < 1e-6


def test_a_spread_that_is_small_against_the_mean(rng):
    x = (rng.standard_normal((6, 500)) + 1e5).astype(np.float32)
    for of in (lambda t, v: t.std(v, 1), lambda t, v: t.var(v, 1)):
        assert max(errors(of, x, (), rng)) < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_spread_of_halves_is_rounded_once(rng, dtype):
    kind = getattr(flow, dtype)
    x = flow.tensor(rng.standard_normal((4, 300)) * 300).to(kind).requires_grad_()
    wide = torch.tensor(x.detach().double().numpy(), requires_grad=True)
    x.std(1).sum().backward()
    wide.std(1).sum().backward()
    actual = x.std(1).detach().double().numpy()
    rounded = flow.tensor(wide.std(1).detach().numpy()).to(kind).double().numpy()
    np.testing.assert_array_equal(actual, rounded)
    grad = flow.tensor(wide.grad.numpy()).to(kind).double().numpy()
    np.testing.assert_allclose(x.grad.double().numpy(), grad, rtol=2**-6, atol=1e-7)


LAYERS = {
    "layer": lambda t, x, w, b: t.nn.functional.layer_norm(x, x.shape[1:], w, b, 1e-5),
    "layer alone": lambda t, x: t.nn.functional.layer_norm(x, x.shape[1:], eps=1e-5),
    "layer, no eps": lambda t, x: t.nn.functional.layer_norm(x, x.shape[1:], eps=1e-37),
    "rms": lambda t, x, w: t.nn.functional.rms_norm(x, x.shape[1:], w, 1e-5),
    "rms, no eps": lambda t, x: t.nn.functional.rms_norm(x, x.shape[1:], eps=1e-37),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", LAYERS)
def test_norms_of_rows(rng, name, scale):
    for n in (8, 300, 5000):
        x = (rng.standard_normal((6, n)) * scale).astype(np.float32)
        count = LAYERS[name].__code__.co_argcount - 2
        others = [rng.standard_normal(n).astype(np.float32) for _ in range(count)]
        assert max(errors(LAYERS[name], x, others, rng)) < 5e-6


def _batch(t, x, w, b):
    mean, var = t.zeros(6, dtype=x.dtype), t.ones(6, dtype=x.dtype)
    return t.nn.functional.batch_norm(x, mean, var, w, b, training=True)


CHANNELS = {
    "batch": _batch,
    "batch, no eps": lambda t, x, w, b: t.nn.functional.batch_norm(
        x, None, None, w, b, training=True, eps=1e-37
    ),
    "group": lambda t, x, w, b: t.nn.functional.group_norm(x, 2, w, b),
    "instance": lambda t, x, w, b: t.nn.functional.instance_norm(x, None, None, w, b),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", CHANNELS)
def test_norms_by_channel(rng, name, scale):
    for shape in ((40, 6), (40, 6, 5), (4, 6, 300), (3, 6, 20, 20)):
        if name == "instance" and len(shape) == 2:
            continue
        x = (rng.standard_normal(shape) * scale).astype(np.float32)
        others = [rng.standard_normal(6).astype(np.float32) for _ in range(2)]
        assert max(errors(CHANNELS[name], x, others, rng)) < 5e-6, shape


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_lengths(rng, scale):
    x = (rng.standard_normal((4, 30)) * scale).astype(np.float32)
    for p in (0.5, 1, 2, 3, 5.5, float("inf")):

        def length(t, v, p=p):
            return t.linalg.vector_norm(v, p, dim=1)

        def unit(t, v, p=p):
            return t.nn.functional.normalize(v, p, eps=1e-37)

        assert max(errors(length, x, (), rng)) < 2e-6, p
        assert max(errors(unit, x, (), rng)) < 2e-6, p
    g = (rng.standard_normal((4, 1))).astype(np.float32)

    def weight(t, v, g):
        return directed(g, v, 0) if t is flow else torch._weight_norm(v, g, 0)

    assert max(errors(weight, x, (g,), rng)) < 2e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_usual_eps_of_an_rms_norm_is_that_of_its_computation(rng, dtype):
    torch = pytest.importorskip("torch")
    values = torch.from_numpy(rng.standard_normal((2, 5)) * 1e-3).to(getattr(torch, dtype))
    x = flow.tensor(values.float().numpy()).to(getattr(flow, dtype)).requires_grad_()
    expected = torch.nn.functional.rms_norm(values, (5,))
    actual = flow.nn.functional.rms_norm(x, (5,))
    assert actual.dtype is getattr(flow, dtype)
    np.testing.assert_allclose(actual.float().detach().numpy(), expected.float().numpy(), rtol=0.01)


@pytest.mark.parametrize("scale", SCALES)
def test_angles_and_distances(rng, scale):
    x, y = ((rng.standard_normal((4, 30)) * scale).astype(np.float32) for _ in range(2))

    def cosine(t, a, b):
        return t.nn.functional.cosine_similarity(a, b, eps=1e-37)

    def distance(t, a, b):
        return t.nn.functional.pairwise_distance(a, b, eps=0.0)

    assert max(errors(cosine, x, (y,), rng)) < 5e-6
    assert max(errors(distance, x, (y,), rng)) < 5e-6


def test_local_response_norm(rng):
    for scale in (1.0, 1e20, 1e30, 1e-30):
        x = (rng.standard_normal((2, 5, 8)) * scale).astype(np.float32)

        def norm(t, v):
            return t.nn.functional.local_response_norm(v, 3, beta=0.5)

        assert max(errors(norm, x, (), rng)) < 5e-6


def test_clipping_takes_gradients_of_any_size(rng):
    for dtype, scale in (
        ("float32", 1e30),
        ("float32", 1e-30),
        ("float16", 3000.0),
        ("float16", 1e-4),
    ):
        for order in (2.0, 3.0, 1.0):
            grads = [rng.standard_normal(n) * scale for n in (300, 7)]
            params = [
                flow.nn.Parameter(flow.zeros(len(g), dtype=getattr(flow, dtype))) for g in grads
            ]
            for p, g in zip(params, grads, strict=True):
                p.grad = flow.tensor(g).to(p.dtype)
            both = np.concatenate([p.grad.double().numpy() for p in params])
            total = np.linalg.norm(both, order)
            most = total / 4
            flow.nn.utils.clip_grad_norm_(params, most, order)
            actual = np.concatenate([p.grad.double().numpy() for p in params])
            eps = 1e-6 if dtype == "float32" else 1e-3
            want = both * min(1.0, most / (total + 1e-6))
            np.testing.assert_allclose(actual, want, rtol=eps, atol=np.finfo(dtype).tiny)
