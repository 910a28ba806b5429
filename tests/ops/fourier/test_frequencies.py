"""Frequencies of transforms and their order, against NumPy's."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.ops.fourier import frequencies


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_of_odd_and_even_counts(name, n):
    ours = getattr(frequencies, name)
    expected = getattr(np.fft, name)(n, 0.25)
    np.testing.assert_allclose(ours(n, 0.25, dtype=flow.float64).numpy(), expected)
    out = flow.zeros(len(expected), dtype=flow.float64)
    assert ours(n, 0.25, out=out) is out
    np.testing.assert_allclose(out.numpy(), expected)
    plain = ours(n, requires_grad=True)
    assert (plain.dtype, plain.requires_grad) == (flow.float32, True)


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
def test_counts_are_positive_and_samples_apart(name):
    for n, d in ((0, 1.0), (-1, 1.0), (4, 0.0)):
        with pytest.raises(ArgumentError, match="n is at least 1 and d is not 0"):
            getattr(frequencies, name)(n, d)
    with pytest.raises(TypeError):
        getattr(frequencies, name)(2.5)


@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4)])
def test_frequency_nought_is_in_the_middle(rng, shape):
    x = rng.standard_normal(shape)
    for dim in (None, 0, -1, tuple(range(len(shape)))):
        ours = frequencies.fftshift(flow.tensor(x), dim)
        np.testing.assert_array_equal(ours.numpy(), np.fft.fftshift(x, dim))
        np.testing.assert_array_equal(frequencies.ifftshift(ours, dim).numpy(), x)
    with pytest.raises(IndexError):
        frequencies.fftshift(flow.tensor(x), len(shape))


def test_numbers_are_copied():
    x = flow.tensor(3.0)
    y = frequencies.fftshift(x)
    y.add_(1)
    assert x.item() == 3
