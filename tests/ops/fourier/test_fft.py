"""`flow.fft` against PyTorch's transforms: values, dtypes, gradients, and refused calls."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.fourier.cpu import butterflies

torch = pytest.importorskip("torch")

_numbers = np.random.default_rng(21)
R = _numbers.standard_normal((3, 4, 6))
Z = R + 1j * _numbers.standard_normal((3, 4, 6))
ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL = tuple(name + end for name in ONE for end in ("2", "n"))
OF_REAL = ("rfft", "ihfft")
ARGUMENTS = [
    *[(name, kw) for name in ONE for kw in (
        {}, {"n": 4}, {"n": 9}, {"dim": 1}, {"norm": "ortho"}, {"norm": "forward", "dim": 0},
        {"n": 1}, {"n": 5, "dim": -2, "norm": "backward"},
    )],
    *[(name, kw) for name in SEVERAL for kw in (
        {}, {"s": (4, 5)}, {"dim": (0, 2), "norm": "ortho"}, {"s": (2, 7), "dim": (1, 0)},
        {"norm": "forward"},
    )],
]  # fmt: skip


def named(argument):
    return str(argument).replace(" ", "")


def input_of(name, library, kind):
    array = R if name.rstrip("2n") in OF_REAL else Z
    array = array.astype({"f": "float", "c": "complex"}[array.dtype.kind] + kind[array.dtype.kind])
    return torch.from_numpy(array) if library is torch else flow.tensor(array)


def close(ours, theirs, tolerance):
    theirs = theirs.detach().resolve_conj()
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "options"), ARGUMENTS, ids=named)
@pytest.mark.product(4)
def test_values_and_gradients_are_pytorchs(name, options):
    for kind, tolerance in (({"f": "32", "c": "64"}, 1e-5), ({"f": "64", "c": "128"}, 1e-12)):
        results, grads = [], []
        for library in (flow, torch):
            x = input_of(name, library, kind).requires_grad_(True)
            out = getattr(library.fft, name)(x, **options)
            weight = np.random.default_rng(4).standard_normal(tuple(out.shape))
            make = torch.tensor if library is torch else flow.tensor
            (out.abs() * make(weight)).sum().backward()
            results.append(out)
            grads.append(x.grad)
        close(results[0], results[1], tolerance)
        close(grads[0], grads[1], tolerance * 10)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 30, 49, 64, 61, 67, 210, 1009, 2 * 1009, 4096])
def test_every_length(n):
    x = _numbers.standard_normal((2, n)) + 1j * _numbers.standard_normal((2, n))
    for ours, theirs in ((flow.fft.fft, np.fft.fft), (flow.fft.ifft, np.fft.ifft)):
        want = theirs(x)
        worst = np.abs(ours(flow.tensor(x)).numpy() - want).max() / np.abs(want).max()
        assert worst < 1e-14
        single = ours(flow.tensor(x.astype("complex64"))).numpy()
        assert np.abs(single - want).max() / np.abs(want).max() < 1e-6


def test_rows_longer_than_a_threads_memory():
    x = _numbers.standard_normal((2, 1 << 18))
    want = np.fft.fft(x)
    actual = flow.fft.fft(flow.tensor(x)).numpy()
    assert np.abs(actual - want).max() / np.abs(want).max() < 1e-14


def test_there_and_back():
    x = flow.tensor(R)
    assert flow.allclose(flow.fft.irfftn(flow.fft.rfftn(x)), x)
    assert flow.allclose(flow.fft.hfft(flow.fft.ihfft(x)), x)
    assert flow.fft.fft(flow.tensor([1, 2, 3])).dtype is flow.complex64


def test_gradients_of_gradients():
    z = flow.tensor(Z[0, 0], requires_grad=True)
    r = flow.tensor(R[0, 0], requires_grad=True)
    for function in (
        lambda a, b: flow.fft.fft(a).abs(),
        lambda a, b: flow.fft.rfft(b * b),
        lambda a, b: flow.fft.irfft(a * a, 9),
    ):
        assert flow.autograd.gradcheck(function, (z, r))
        assert flow.autograd.gradgradcheck(function, (z, r))


@pytest.mark.parametrize("n", [1, 4, 7])
def test_frequencies(n):
    for name in ("fftfreq", "rfftfreq"):
        ours, theirs = getattr(flow.fft, name), getattr(torch.fft, name)
        close(ours(n, 0.3), theirs(n, 0.3), 1e-6)
        close(ours(n, dtype=flow.float64), theirs(n, dtype=torch.float64), 1e-15)
        out = flow.empty(ours(n).shape)
        assert ours(n, out=out) is out
    x = np.arange(3.0 * n).reshape(3, n)
    for name in ("fftshift", "ifftshift"):
        for dim in (None, 0, (1,)):
            ours = getattr(flow.fft, name)(flow.tensor(x), dim)
            assert np.array_equal(ours.numpy(), getattr(np.fft, name)(x, dim))


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: flow.fft.rfft(flow.tensor(Z)), RuntimeError),
        (lambda: flow.fft.fft(flow.tensor(R), 0), ValueError),
        (lambda: flow.fft.fft(flow.tensor(R), norm="up"), ValueError),
        (lambda: flow.fft.fft(flow.tensor(R), dim=3), IndexError),
        (lambda: flow.fft.fft(flow.tensor(1.0)), RuntimeError),
        (lambda: flow.fft.fft([1.0]), TypeError),
        (lambda: flow.fft.fft(flow.ones(4).half()), RuntimeError),
        (lambda: flow.fft.fftn(flow.tensor(R), s=(2, 2), dim=(0,)), RuntimeError),
        (lambda: flow.fft.fftn(flow.tensor(R), dim=(0, 0)), IndexError),
        (lambda: flow.fft.fftfreq(0), ValueError),
    ],
)
def test_what_is_wrong_is_an_error_at_the_call(call, kind):
    with pytest.raises(kind) as caught:
        call()
    assert len(str(caught.value)) > 10


def test_out_and_a_graph():
    x = flow.tensor(Z)
    out = flow.empty_like(x)
    assert flow.fft.fft(x, out=out) is out
    assert flow.equal(out, flow.fft.fft(x))

    class Step(flow.nn.Graph):
        def build(self, a):
            return flow.fft.irfft(flow.fft.rfft(a) * 2)

    step = Step()
    for _ in range(2):
        assert flow.allclose(step(flow.tensor(R)), flow.tensor(R) * 2)


@pytest.mark.parametrize("n", [32, 64, 128, 1024, 2048])
def test_powers_of_two_are_transformed_in_parts(rng, n):
    x = rng.standard_normal((3, n)) + 1j * rng.standard_normal((3, n))
    for dtype, most in ((flow.complex64, 1e-6), (flow.complex128, 1e-15)):
        for ours, theirs in ((flow.fft.fft, np.fft.fft), (flow.fft.ifft, np.fft.ifft)):
            expected = theirs(x)
            result = ours(flow.tensor(x, dtype=dtype)).numpy()
            assert np.abs(result - expected).max() <= 4 * most * np.abs(expected).max()


def test_the_passes_mean_in_python_what_their_vectors_do(rng):
    m, stride = 4, 16
    n = 4 * m * stride
    x = rng.standard_normal(2 * n)
    roots = np.exp(-2j * np.pi * np.arange(n) / n)
    numbers, y = x[:n] + 1j * x[n:], np.empty(2 * n)
    butterflies.by_four(y, x, roots, m, stride, 1.0)
    parts = numbers.reshape(4, m, stride)
    turns = np.exp(-2j * np.pi * np.outer(np.arange(4), np.arange(4)) / 4)
    expected = np.einsum("jk,kpq->pjq", turns, parts)
    expected *= roots[np.arange(m)[:, None] * np.arange(4) * stride][:, :, None]
    np.testing.assert_allclose(y[:n] + 1j * y[n:], expected.ravel(), rtol=1e-12)
    first = np.empty(2 * n)
    butterflies.first_by_four(first, numbers, roots, n // 4, 1.0)
    again = np.empty(2 * n)
    butterflies.by_four(again, x, roots, n // 4, 1, 1.0)
    np.testing.assert_allclose(first, again, rtol=1e-12)
