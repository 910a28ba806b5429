"""Singular and eigenvalues as ops: the factors give the matrix back, and gradients are right."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.linalg.parts import spectra

SHAPES = [(3, 3), (4, 2), (2, 5), (2, 3, 4)]


def matrix(rng, shape, complex=False):
    a = rng.standard_normal(shape)
    return a + 1j * rng.standard_normal(shape) if complex else a


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("complex", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_factors_of_singular_values(rng, shape, complex, full):
    a = matrix(rng, shape, complex)
    u, s, vh = (t.numpy() for t in spectra.svd_op(flow.tensor(a), full))
    k = s.shape[-1]
    np.testing.assert_allclose(u[..., :k] * s[..., None, :] @ vh[..., :k, :], a, atol=1e-12)
    for q in (u, np.swapaxes(vh, -1, -2)):
        eye = np.swapaxes(q.conj(), -1, -2) @ q
        np.testing.assert_allclose(eye, np.broadcast_to(np.eye(q.shape[-1]), eye.shape), atol=1e-12)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), rtol=1e-12)
    np.testing.assert_allclose(spectra.svdvals_op(flow.tensor(a)).numpy(), s, rtol=1e-10)
    assert (u.shape[-1], vh.shape[-2]) == (shape[-2:] if full else (k, k))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 0)])
def test_matrices_without_elements_have_identities(shape):
    u, s, vh = spectra.svd_op(flow.zeros(*shape, dtype=flow.float64), True)
    assert s.shape[-1] == 0
    for q, n in ((u, shape[-2]), (vh, shape[-1])):
        np.testing.assert_array_equal(q.numpy(), np.broadcast_to(np.eye(n), (*shape[:-2], n, n)))


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("complex", [False, True])
def test_eigenvalues_of_one_triangle(rng, lower, complex):
    a = matrix(rng, (2, 4, 4), complex)
    triangle = np.tril(a) if lower else np.triu(a)
    strict = np.tril(a, -1) if lower else np.triu(a, 1)
    whole = triangle + np.swapaxes(strict.conj(), -1, -2)
    diagonal = np.arange(4)
    whole[..., diagonal, diagonal] = whole[..., diagonal, diagonal].real
    w, vh = (t.numpy() for t in spectra.eigh_op(flow.tensor(a), lower))
    np.testing.assert_allclose(w, np.linalg.eigvalsh(whole), rtol=1e-10)
    np.testing.assert_allclose(
        np.swapaxes(vh.conj(), -1, -2) * w[..., None, :] @ vh, whole, atol=1e-11
    )
    np.testing.assert_allclose(spectra.eigvalsh_op(flow.tensor(a), lower).numpy(), w, atol=1e-11)


def test_conjugate_pairs_have_conjugate_vectors(rng):
    a = matrix(rng, (5, 5))
    wr, wi, rows = spectra.real_eig(flow.tensor(a), True)
    w = wr.numpy() + 1j * wi.numpy()
    vectors = spectra.paired(wi, rows).numpy()
    np.testing.assert_allclose(a.T @ vectors.T, vectors.T * w, atol=1e-11)
    assert (wi.numpy() != 0).any()
    _, _, none = spectra.real_eig(flow.tensor(a), False)
    assert none.shape == (0, 0)
    z = matrix(rng, (4, 4), True)
    w, rows = (t.numpy() for t in spectra.complex_eig(flow.tensor(z), True))
    np.testing.assert_allclose(z.T @ rows.T, rows.T * w, atol=1e-11)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (40, 30)])
def test_least_squares_of_every_driver(rng, driver, shape):
    m, n = shape
    a, b = matrix(rng, shape), matrix(rng, (m, 2))
    sides = np.zeros((2, max(m, n)))
    sides[:, :m] = b.T
    x, rank, s = spectra.lstsq_op(flow.tensor(a.T.copy()), flow.tensor(sides), 1e-12, driver)
    np.testing.assert_allclose(x.numpy()[:, :n].T, np.linalg.lstsq(a, b, rcond=None)[0], atol=1e-9)
    if driver != "gels":
        assert rank.item() == min(m, n)
    if driver in ("gelsd", "gelss"):
        np.testing.assert_allclose(s.numpy(), np.linalg.svd(a, compute_uv=False), rtol=1e-9)


def test_gradients_where_values_differ(rng):
    a = flow.tensor(matrix(rng, (3, 2)), requires_grad=True)
    assert flow.autograd.gradcheck(
        lambda a: (lambda u, s, vh: (u.abs(), s, (u * s) @ vh))(*spectra.svd_op(a, False)), (a,)
    )
    h = flow.tensor(matrix(rng, (3, 3)), requires_grad=True)
    assert flow.autograd.gradcheck(lambda h: spectra.eigh_op(h + h.mT, True)[0], (h,))


def test_values_that_nobody_uses_have_no_gradient():
    """Equal singular values divide by nothing where their vectors have no gradient."""
    a = flow.eye(3, dtype=flow.float64).requires_grad_()
    spectra.svd_op(a, False)[1].sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), np.eye(3), atol=1e-12)
