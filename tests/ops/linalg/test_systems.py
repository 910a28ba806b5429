"""Linear systems, and the threads of the library that solves them."""

import ctypes

import numpy as np
import pytest

import flowvm as flow
from flowvm import autograd
from flowvm.errors import LinAlgError
from flowvm.ops.linalg.cpu import blas
from flowvm.private.scipy import openblas_threads


def tensor(array):
    return flow.from_numpy(np.array(array))


def test_power_zero_and_negative(rng):
    a = rng.standard_normal((3, 3)) + 3 * np.eye(3)
    np.testing.assert_array_equal(flow.matrix_power(tensor(a), 0).numpy(), np.eye(3))
    np.testing.assert_allclose(
        flow.matrix_power(tensor(a), -2).numpy(), np.linalg.matrix_power(a, -2), rtol=1e-9
    )


# --- linear systems ---------------------------------------------------------------------------


def test_solve_many(rng):
    a = rng.standard_normal((40, 7, 7)) + 4 * np.eye(7)
    b = rng.standard_normal((40, 7, 3))
    np.testing.assert_allclose(
        flow.solve(tensor(a), tensor(b)).numpy(), np.linalg.solve(a, b), rtol=1e-8
    )
    np.testing.assert_allclose(flow.inverse(tensor(a)).numpy(), np.linalg.inv(a), rtol=1e-8)
    np.testing.assert_allclose(flow.det(tensor(a)).numpy(), np.linalg.det(a), rtol=1e-8)


def test_singular_is_found_where_it_is():
    a = np.stack([np.eye(2), np.ones((2, 2))])
    with pytest.raises(LinAlgError, match="matrix 1 of the batch is singular"):
        flow.inverse(tensor(a)).numpy()
    with pytest.raises(LinAlgError, match="singular"):
        flow.solve(flow.zeros(2, 2), flow.ones(2)).numpy()
    assert flow.det(flow.ones(2, 2)).item() == 0.0


def test_cholesky(rng):
    a = rng.standard_normal((3, 5, 5))
    a = a @ np.swapaxes(a, -1, -2) + np.eye(5)
    np.testing.assert_allclose(flow.cholesky(tensor(a)).numpy(), np.linalg.cholesky(a), rtol=1e-9)
    with pytest.raises(LinAlgError, match="not positive definite"):
        flow.cholesky(-flow.ones(1, 1)).numpy()

    def symmetric(x):
        return flow.cholesky(x @ x.t() + flow.tensor(2 * np.eye(3)))

    x = tensor(rng.standard_normal((3, 3))).requires_grad_()
    assert autograd.gradcheck(symmetric, (x,))
    assert autograd.gradgradcheck(symmetric, (x,))


def test_empty_systems():
    assert tuple(flow.inverse(flow.ones(0, 3, 3)).shape) == (0, 3, 3)
    assert flow.det(flow.ones(2, 0, 0)).tolist() == [1.0, 1.0]
    assert tuple(flow.solve(flow.ones(0, 0), flow.ones(0, 2)).shape) == (0, 2)


# --- the library's threads ----------------------------------------------------------------------


@pytest.fixture
def threads_of_openblas():
    """Return functions to ask for and to set OpenBLAS's threads; set them back after the test."""
    threads = openblas_threads()
    if threads is None:
        pytest.skip("SciPy has no OpenBLAS of its own")
    ask = ctypes.CFUNCTYPE(ctypes.c_int)(threads[0])
    tell = ctypes.CFUNCTYPE(None, ctypes.c_int)(threads[1])
    before = ask()
    yield ask, tell
    flow.vm.sync()
    tell(before)


def test_the_library_has_its_threads_back(threads_of_openblas, rng):
    ask, tell = threads_of_openblas
    tell(2)
    a = rng.standard_normal((5, 40, 40)) + 40 * np.eye(40)
    for function in (flow.inverse, flow.det):
        function(tensor(a)).numpy()
        assert ask() == 2
    with pytest.raises(LinAlgError):
        flow.inverse(flow.zeros(3, 3)).numpy()
    assert ask() == 2
    with pytest.raises(LinAlgError):
        flow.cholesky(tensor(-np.eye(3))).numpy()
    assert ask() == 2


def test_the_library_has_one_thread_while_somebody_is_inside(threads_of_openblas):
    ask, tell = threads_of_openblas
    tell(2)
    block = blas.threads()
    blas.enter(block)
    assert ask() == 1
    blas.enter(block)
    blas.leave(block)
    assert ask() == 1
    blas.leave(block)
    assert ask() == 2


def test_another_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(blas, "openblas_threads", lambda: None)
    assert blas.threads.__wrapped__() == 0
    blas.enter(0)
    blas.leave(0)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
def test_ranks_and_singular_values_are_of_the_matrices_that_were_given(driver):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((1, 4, 3)), rng.standard_normal((2, 4, 2))
    results = flow.linalg.lstsq(flow.tensor(a), flow.tensor(b), driver=driver)
    expected = torch.linalg.lstsq(torch.tensor(a), torch.tensor(b), driver=driver)
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)
