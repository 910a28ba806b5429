"""Factors multiplied again, gradients against finite differences, input that LAPACK refuses."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import autograd
from flowvm.errors import ArgumentError, AutogradError, DTypeError, LinAlgError, ShapeError

L = flow.linalg
SHAPES = [(3, 3), (4, 2), (2, 4), (2, 3, 3), (2, 4, 2), (0, 3), (0, 2, 2)]
CLOSE = {"float32": 1e-4, "float64": 1e-11}


def tensor(array, **options):
    return flow.tensor(np.array(array), **options)


def check(actual, want, dtype="float64"):
    assert actual.dtype.name == dtype
    np.testing.assert_allclose(actual.numpy(), want, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def symmetric(rng, n=3):
    a = rng.standard_normal((2, n, n))
    return a + np.swapaxes(a, -1, -2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_factors_multiply_to_the_matrix(rng, shape, dtype):
    a = rng.standard_normal(shape).astype(dtype)
    x = tensor(a)
    k = min(shape[-2:])
    for mode in ("reduced", "complete"):
        q, r = L.qr(x, mode)
        check(q @ r, a, dtype)
        check(
            q.mT @ q, np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], *q.shape[-1:] * 2)), dtype
        )
    for full in (False, True):
        u, s, vh = L.svd(x, full)
        check(u[..., :k] @ s.diag_embed() @ vh[..., :k, :], a, dtype)
        np.testing.assert_allclose(
            s.numpy(), np.linalg.svd(a, compute_uv=False), rtol=1e-4, atol=1e-5
        )
    p, lower, upper = L.lu(x)
    check(p @ lower @ upper, a, dtype)
    assert [p.shape[-1], lower.shape[-1], upper.shape[-2]] == [shape[-2], k, k]
    check(flow.svd(x).V, L.svd(x, False).Vh.mT.numpy(), dtype)


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigenvalues_of_symmetric_matrices_read_one_triangle(rng, uplo):
    a = symmetric(rng)
    half = np.tril(a) if uplo == "L" else np.triu(a)
    values, vectors = L.eigh(tensor(half), uplo)
    check(vectors @ values.diag_embed() @ vectors.mT, a)
    check(L.eigvalsh(tensor(half), uplo), np.linalg.eigvalsh(a))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_lu_solve_broadcasts(rng, left, adjoint):
    a, b = rng.standard_normal((2, 1, 3, 3)), rng.standard_normal((4, 3, 3))
    factors, pivots = L.lu_factor(tensor(a))
    x = L.lu_solve(factors, pivots, tensor(b), left=left, adjoint=adjoint).numpy()
    t = np.swapaxes(a, -1, -2) if adjoint else a
    np.testing.assert_allclose(t @ x if left else x @ t, np.broadcast_to(b, x.shape), atol=1e-10)
    assert x.shape == (2, 4, 3, 3)
    check(flow.lu_unpack(factors, pivots)[0] @ np_tensor(factors), a)


def np_tensor(factors):
    return (factors.tril(-1) + flow.eye(3, dtype=factors.dtype)) @ factors.triu()


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular_systems_read_one_triangle(rng, upper, left, unit):
    a, b = rng.standard_normal((2, 3, 3)) + 2 * np.eye(3), rng.standard_normal((3, 3))
    x = L.solve_triangular(tensor(a), tensor(b), upper=upper, left=left, unitriangular=unit).numpy()
    t = np.triu(a) if upper else np.tril(a)
    t = t - unit * (np.diagonal(t, 0, -2, -1)[..., None] - 1) * np.eye(3)
    np.testing.assert_allclose(t @ x if left else x @ t, np.broadcast_to(b, x.shape), atol=1e-9)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (40, 30)], ids=str)
def test_least_squares(rng, shape, driver):
    a, b = rng.standard_normal((2, *shape)), rng.standard_normal((2, shape[0], 2))
    x, residuals, rank, values = L.lstsq(tensor(a), tensor(b), driver=driver)
    check(x, np.linalg.pinv(a) @ b)
    if shape[0] > shape[1] and driver != "gelsy":
        check(residuals, ((a @ x.numpy() - b) ** 2).sum(-2))
    assert rank.tolist() == ([] if driver == "gels" else [min(shape)] * 2)
    if driver in ("gelsd", "gelss"):
        check(values, np.linalg.svd(a, compute_uv=False))


def test_symmetric_indefinite_systems(rng):
    a, b = symmetric(rng), rng.standard_normal((2, 3, 2))
    factors, pivots = L.ldl_factor(tensor(a))
    check(L.ldl_solve(factors, pivots, tensor(b)), np.linalg.solve(a, b))


def test_reflectors(rng):
    a = rng.standard_normal((2, 4, 3))
    factors, tau = flow.geqrf(tensor(a))
    q = L.householder_product(factors, tau)
    check(q @ factors.triu()[..., :3, :], a)
    c = rng.standard_normal((2, 4, 5))
    whole = flow.ormqr(factors, tau, tensor(np.broadcast_to(np.eye(4), (2, 4, 4))))
    check(flow.ormqr(factors, tau, tensor(c), True, True), np.swapaxes(whole.numpy(), -1, -2) @ c)
    check(
        flow.ormqr(factors, tau, tensor(np.swapaxes(c, -1, -2)), False),
        np.swapaxes(c, -1, -2) @ whole.numpy(),
    )


def spread(rng, *shape):
    """Matrices whose singular values lie apart."""
    u, _, v = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    return (u * np.arange(1, min(shape[-2:]) + 1)) @ v


GRADIENTS = {
    "qr": ((3, 3), L.qr),
    "tall qr": ((4, 2), L.qr),
    "wide qr": ((2, 4), L.qr),
    "svd": ((3, 3), lambda x: [t.abs() for t in L.svd(x, False)]),
    "tall svd": ((4, 2), lambda x: [t.abs() for t in L.svd(x, True)[:2]][1]),
    "thin svd": ((4, 2), lambda x: [t.abs() for t in L.svd(x, False)]),
    "wide svd": ((2, 4), lambda x: [t.abs() for t in L.svd(x, False)]),
    "eigh": ((3, 3), lambda x: [t.abs() for t in L.eigh(x + x.mT)]),
    "lu": ((3, 3), lambda x: list(L.lu(x))[1:]),
    "tall lu": ((4, 2), lambda x: list(L.lu(x))[1:]),
    "wide lu": ((2, 4), lambda x: list(L.lu(x))[1:]),
    "cholesky_ex": ((3, 3), lambda x: L.cholesky_ex(x @ x.mT + flow.eye(3, dtype=x.dtype)).L),
    "solve_ex": ((3, 3), lambda x: L.solve_ex(x, x[:, :2], left=True).result),
    "inv_ex": ((3, 3), lambda x: L.inv_ex(x).inverse),
    "right": ((3, 3), lambda x: L.solve_triangular(x, x @ x, upper=False, left=False)),
    "left": ((3, 3), lambda x: L.solve_triangular(x, x @ x, upper=True, unitriangular=True)),
    "lstsq": ((4, 2), lambda x: L.lstsq(x, x * x).solution),
    "wide lstsq": ((2, 4), lambda x: L.lstsq(x, x * x).solution),
    "pinv": ((4, 2), L.pinv),
    "matrix_exp": ((2, 2), L.matrix_exp),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(rng, name):
    shape, function = GRADIENTS[name]
    x = tensor(spread(rng, *shape)).requires_grad_()

    def factors_of(t):
        out = function(t)
        return tuple(out) if isinstance(out, (list, tuple)) else out

    assert autograd.gradcheck(factors_of, (x,))
    assert autograd.gradgradcheck(factors_of, (x,), atol=1e-4)


def test_gradients_of_equal_values():
    for function in (L.svdvals, L.eigvalsh, lambda x: L.svd(x).S, lambda x: L.eigh(x)[0]):
        x = (2 * flow.eye(3, dtype=flow.float64)).requires_grad_()
        function(x).sum().backward()
        check(x.grad, np.eye(3))


def test_what_has_no_gradient_says_so(rng):
    q, _ = L.qr(tensor(rng.standard_normal((3, 2))).requires_grad_(), "complete")
    with pytest.raises(AutogradError, match="reduced"):
        q.sum().backward()


def test_bad_matrices_are_named():
    good, bad = np.eye(2), np.ones((2, 2))
    pair = tensor(np.stack([good, bad]))
    for call in (
        lambda: L.lu_factor(pair).LU,
        lambda: L.solve(pair, pair),
        lambda: L.inv(pair),
        lambda: L.solve_triangular(pair * flow.tensor([0.0, 1.0]), pair, upper=True),
    ):
        with pytest.raises(LinAlgError, match=r"matrix \d of the batch is singular"):
            call().numpy()
    with pytest.raises(LinAlgError, match="matrix 1 of the batch is not positive definite"):
        L.cholesky(tensor(np.stack([good, -good]))).numpy()
    assert L.inv_ex(pair).info.tolist() == [0, 2]
    assert L.lu_factor_ex(pair).info.tolist() == [0, 2]
    assert L.cholesky_ex(tensor(np.stack([good, -good]))).info.tolist() == [0, 1]
    with pytest.raises(LinAlgError, match="matrix 1"):
        L.inv_ex(pair, check_errors=True)
    assert L.cond(pair, 1).tolist() == [1.0, float("inf")]


def test_calls_that_cannot_be():
    ones = flow.ones(2, 3)
    with pytest.raises(ShapeError, match="square"):
        L.eigh(ones)
    with pytest.raises(ShapeError, match=r"\(\*, m, n\)"):
        L.svd(flow.ones(3))
    with pytest.raises(DTypeError, match="int64"):
        L.qr(flow.ones(2, 2, dtype=flow.int64))
    with pytest.raises(ArgumentError, match="mode"):
        L.qr(ones, "full")
    with pytest.raises(ArgumentError, match="UPLO"):
        L.eigh(flow.ones(2, 2), "X")
    with pytest.raises(ArgumentError, match="driver"):
        L.lstsq(ones, ones, driver="qr")
    with pytest.raises(ShapeError, match="does not fit"):
        L.solve_triangular(flow.ones(2, 2), flow.ones(3, 2), upper=True)


def test_out(rng):
    x = tensor(rng.standard_normal((3, 2)))
    q, r = flow.empty(3, 2, dtype=x.dtype), flow.empty(2, 2, dtype=x.dtype)
    result = L.qr(x, out=(q, r))
    assert result.Q is q
    check(q @ r, x.numpy())
    values = flow.empty(0, dtype=x.dtype)
    assert L.svdvals(x, out=values) is values
    assert tuple(values.shape) == (2,)
    with pytest.raises(DTypeError, match="cannot go into"):
        L.svdvals(x, out=flow.empty(2, dtype=flow.int64))
    with pytest.raises(AutogradError, match="out="):
        L.svdvals(x.requires_grad_(), out=flow.empty(2, dtype=x.dtype))


def test_results_do_not_depend_on_threads(rng):
    x = tensor(rng.standard_normal((40, 5, 5)))
    shared = L.svd(x).Vh.numpy()
    with flow.vm.sequential():
        alone = L.svd(x).Vh.numpy()
    np.testing.assert_array_equal(shared, alone)


@pytest.mark.parametrize(
    "pivots", [[0, 2, 3], [1, 2, 4], [1, 2, -3], [-2, 2, 3], [-1, -9, 3], [1 << 30] * 3]
)
def test_exchanges_that_are_none_are_refused(pivots):
    """LAPACK would go where they say."""
    a, b = tensor(np.diag([1.0, 2.0, 3.0])), flow.ones(3, 1, dtype=flow.float64)
    pivots = flow.tensor(pivots, dtype=flow.int32)
    with pytest.raises(IndexError, match="out of bounds"):
        L.ldl_solve(a, pivots, b).numpy()
    if not 0 < pivots.min().item() <= pivots.max().item() < 4:
        with pytest.raises(IndexError, match="out of bounds"):
            L.lu_solve(a, pivots, b).numpy()


def test_exchanges_are_int32():
    a, pivots = flow.eye(2), flow.tensor([1, 2])
    for solve in (L.ldl_solve, L.lu_solve):
        with pytest.raises(ArgumentError, match="int32"):
            solve(a, pivots, a)
