"""Linear systems on CUDA: against NumPy in float64, and the errors of the CPU."""

import numpy as np
import pytest
from played import agree, launch, named, play

import flowvm as flow
from flowvm.cuda.compiler import compilation
from flowvm.errors import Status

SIZES = (0, 1, 2, 5, 33)
TOLERANCE = {"float32": 2e-4, "float64": 1e-11}
assert flow.eye(1).numel() == 1  # all ops are declared


def regular(rng, count, n):
    """Matrices that are far from singular, and need their rows exchanged."""
    a = rng.standard_normal((count, n, n)) * (0.4 / max(n, 1) ** 0.5) + np.eye(n)
    return np.ascontiguousarray(a[:, rng.permutation(n)])


def close(actual, expected):
    assert actual.shape == expected.shape
    np.testing.assert_allclose(
        actual, expected, TOLERANCE[actual.dtype.name], TOLERANCE[actual.dtype.name]
    )


@pytest.mark.parametrize("order", ["", "reversed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_systems(rng, n, dtype, order):
    a, b = regular(rng, 2, n), rng.standard_normal((2, n, 3))
    narrow = a.astype(dtype)
    (x,), _ = play(named("solve"), [narrow, b.astype(dtype)], order=order)
    close(narrow @ x, b.astype(dtype))
    (inverse,), _ = play(named("inverse"), [narrow], order=order)
    close(narrow @ inverse, np.broadcast_to(np.eye(n, dtype=dtype), a.shape))
    (sign, logarithm), _ = play(named("slogdet"), [narrow], order=order)
    expected = np.linalg.slogdet(narrow.astype(np.float64))
    close(sign, expected[0].astype(dtype))
    close(logarithm, expected[1].astype(dtype))


def test_one_matrix_for_many_right_sides_and_the_other_way(rng):
    a, b = regular(rng, 1, 4), rng.standard_normal((3, 4, 2))
    (x,), _ = play(named("solve"), [a, b])
    close(a @ x, b)
    a, b = regular(rng, 3, 4), rng.standard_normal((1, 4, 2))
    (x,), _ = play(named("solve"), [a, b])
    close(a @ x, np.broadcast_to(b, x.shape))


def test_empty_batches_and_no_right_sides():
    for shapes in (((0, 3, 3), (0, 3, 2)), ((2, 3, 3), (2, 3, 0))):
        agree(named("solve"), [np.zeros(s) for s in shapes])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_cholesky(rng, n, dtype):
    a = rng.standard_normal((2, n, n))
    a = (a @ a.swapaxes(1, 2) + np.eye(n)).astype(dtype)
    (factor,), _ = play(named("cholesky"), [a + np.triu(np.ones_like(a), 1)])
    assert (np.triu(factor, 1) == 0).all()
    close(factor @ factor.swapaxes(1, 2), a)


def test_what_has_no_solution_is_told(rng):
    a = regular(rng, 3, 4)
    a[1, :, 2] = 0
    for op, arrays in (("solve", [a, np.ones((3, 4, 1))]), ("inverse", [a])):
        outputs, details = play(named(op), arrays)
        assert not outputs
        assert (details[0], details[1], details[6]) == (1, 2, Status.SINGULAR_MATRIX)
    (sign, logarithm), _ = play(named("slogdet"), [a])
    assert sign[1] == 0
    assert logarithm[1] == -np.inf
    symmetric = np.stack([np.eye(3), np.diag([1.0, 2.0, -1.0])])
    _, details = play(named("cholesky"), [symmetric])
    assert (details[0], details[1], details[6]) == (1, 3, Status.NOT_POSITIVE_DEFINITE)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernels_compile(ptx_of, dtype, monkeypatch):
    monkeypatch.setattr(compilation, "simulated", lambda: False)
    a, b = np.zeros((2, 5, 5), dtype), np.zeros((2, 5, 2), dtype)
    for name, arrays in (("solve", [a, b]), ("inverse", [a]), ("slogdet", [a]), ("cholesky", [a])):
        plan = launch(named(name), arrays)
        assert all(".entry" in text for text in ptx_of.launch(plan, ((7, 0), (10, 0))))
