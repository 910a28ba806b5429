"""Complex matrices against PyTorch and NumPy: values, dtypes, gradients, empty batches, errors.

A case is a function of a library (flowvm or PyTorch) that gives a tensor or several, and matrices.
What is unique only up to the angles of vectors is multiplied again, or taken without them.
"""

import numpy as np
import pytest

import flowvm as flow
from flowvm import autograd
from flowvm.errors import LinAlgError

torch = pytest.importorskip("torch")

_numbers = np.random.default_rng(7)


def c(*shape):
    return _numbers.standard_normal(shape) + 1j * _numbers.standard_normal(shape)


def apart(*shape):
    """Matrices whose singular values lie apart."""
    u, _, vh = np.linalg.svd(c(*shape), full_matrices=False)
    return (u * np.arange(1, min(shape[-2:]) + 1)) @ vh


S, B, T, W = apart(2, 4, 4), c(2, 4, 3), apart(2, 5, 3), apart(2, 3, 5)
V, ROW = c(2, 4), c(2, 3, 4)


def hermitian(a):
    return a + a.mH


def positive(t, a):
    return a @ a.mH + t.eye(a.shape[-1], dtype=a.dtype)


def sizes(*tensors):
    return tuple(x.abs() for x in tensors)


def lu_solved(t, a, b, **how):
    return t.linalg.lu_solve(*t.linalg.lu_factor(a), b, **how)


def reflected(t, a, other, left, transpose):
    tau = a[..., 0, :] * 0.1
    return t.ormqr(a, tau, other, left, transpose)


def real_diagonal(t, a):
    """Return the Hermitian matrix that LAPACK takes for `a`: with a real diagonal."""
    return a + (a.conj() - a) / 2 * t.eye(a.shape[-1], dtype=a.dtype)


CASES = {
    "solve": (lambda t, a, b: t.linalg.solve(a, b), S, B),
    "solve vectors": (lambda t, a, b: t.linalg.solve(a, b), S, V),
    "solve right": (lambda t, a, b: t.linalg.solve(a, b, left=False), S, ROW),
    "solve broadcast": (lambda t, a, b: t.linalg.solve(a[0], b), S, B),
    "solve_ex": (lambda t, a, b: t.linalg.solve_ex(a, b).result, S, B),
    "solve_ex right": (lambda t, a, b: t.linalg.solve_ex(a, b, left=False).result, S, ROW),
    "inv": (lambda t, a: t.linalg.inv(a), S),
    "inv_ex": (lambda t, a: t.linalg.inv_ex(a).inverse, S),
    "inverse": (lambda t, a: a.inverse(), S),
    "det": (lambda t, a: t.linalg.det(a), S),
    "slogdet": (lambda t, a: tuple(t.linalg.slogdet(a)), S),
    "the sign": (lambda t, a: t.linalg.slogdet(a)[0], S),
    "logabsdet": (lambda t, a: t.linalg.slogdet(a)[1], S),
    "logdet": (lambda t, a: t.logdet(a), S),
    "lu": (lambda t, a: tuple(t.linalg.lu(a))[1:], S),
    "tall lu": (lambda t, a: tuple(t.linalg.lu(a))[1:], T),
    "wide lu": (lambda t, a: tuple(t.linalg.lu(a))[1:], W),
    "lu_factor": (lambda t, a: t.linalg.lu_factor(a).LU, S),
    "lu_solve": (lu_solved, S, B),
    "lu_solve adjoint": (lambda t, a, b: lu_solved(t, a, b, adjoint=True), S, B),
    "lu_solve right": (lambda t, a, b: lu_solved(t, a, b, left=False), S, ROW),
    "lu_solve both": (lambda t, a, b: lu_solved(t, a, b, left=False, adjoint=True), S, ROW),
    "cholesky": (lambda t, a: t.linalg.cholesky(positive(t, a)), S),
    "upper cholesky": (lambda t, a: t.linalg.cholesky(positive(t, a), upper=True), S),
    "cholesky_ex": (lambda t, a: t.linalg.cholesky_ex(positive(t, a)).L, S),
    "upper cholesky_ex": (lambda t, a: t.linalg.cholesky_ex(positive(t, a), upper=True).L, S),
    "cholesky_solve": (lambda t, a, b: t.cholesky_solve(b, a.tril()), S, B),
    "upper cholesky_solve": (lambda t, a, b: t.cholesky_solve(b, a.triu(), upper=True), S, B),
    "cholesky_inverse": (lambda t, a: t.cholesky_inverse(real_diagonal(t, a).tril()), S),
    "upper cholesky_inverse": (
        lambda t, a: t.cholesky_inverse(real_diagonal(t, a).triu(), upper=True), S,
    ),
    "qr": (lambda t, a: tuple(t.linalg.qr(a)), S),
    "tall qr": (lambda t, a: tuple(t.linalg.qr(a)), T),
    "wide qr": (lambda t, a: tuple(t.linalg.qr(a)), W),
    "r of qr": (lambda t, a: t.linalg.qr(a, mode="reduced").R, T),
    "svd": (lambda t, a: sizes(*t.linalg.svd(a)), S),
    "tall svd": (lambda t, a: sizes(*t.linalg.svd(a, full_matrices=False)), T),
    "wide svd": (lambda t, a: sizes(*t.linalg.svd(a, full_matrices=False)), W),
    "both of svd": (lambda t, a: (lambda u, s, vh: u @ vh)(*t.linalg.svd(a, False)), T),
    "polar of svd": (lambda t, a: (lambda u, s, vh: vh.mH @ u.mH)(*t.linalg.svd(a, False)), W),
    "older svd": (lambda t, a: (lambda u, s, v: u @ v.mH)(*t.svd(a)), T),
    "svdvals": (lambda t, a: t.linalg.svdvals(a), T),
    "eigh": (lambda t, a: sizes(*t.linalg.eigh(hermitian(a))), S),
    "upper eigh": (lambda t, a: sizes(*t.linalg.eigh(hermitian(a), UPLO="U")), S),
    "function by eigh": (
        lambda t, a: (lambda w, v: v * w.exp().unsqueeze(-2) @ v.mH)(*t.linalg.eigh(hermitian(a))),
        S / 4,
    ),
    "eigvalsh": (lambda t, a: t.linalg.eigvalsh(hermitian(a)), S),
    "pinv": (lambda t, a: t.linalg.pinv(a), T),
    "hermitian pinv": (lambda t, a: t.linalg.pinv(hermitian(a), hermitian=True), S),
    "matrix_norm nuc": (lambda t, a: t.linalg.matrix_norm(a, "nuc"), T),
    "matrix_norm 2": (lambda t, a: t.linalg.matrix_norm(a, 2), T),
    "matrix_norm -2": (lambda t, a: t.linalg.matrix_norm(a, -2), T),
    "matrix_norm 1": (lambda t, a: t.linalg.matrix_norm(a, 1), T),
    "norm": (lambda t, a: t.linalg.norm(a), T),
    "vector_norm": (lambda t, a: t.linalg.vector_norm(a, 3, dim=-1), T),
    "nuclear norm": (lambda t, a: t.norm(a[0], "nuc"), T),
    "cond": (lambda t, a: t.linalg.cond(a), T),
    "matrix_power": (lambda t, a: t.linalg.matrix_power(a, 3), S),
    "matrix_power -2": (lambda t, a: t.linalg.matrix_power(a, -2), S),
    "matrix_exp": (lambda t, a: t.linalg.matrix_exp(a), S),
    "matrix_exp scaled": (lambda t, a: t.linalg.matrix_exp(a), S * 3),
    "multi_dot": (lambda t, a, b: t.linalg.multi_dot([a[0], b[0], b[1].mH]), S, B),
    "lstsq": (lambda t, a, b: t.linalg.lstsq(a, b).solution, T, c(2, 5, 2)),
    "solve_triangular": (lambda t, a, b: t.linalg.solve_triangular(a, b, upper=True), S, B),
    "unit triangular": (
        lambda t, a, b: t.linalg.solve_triangular(
            a, b, upper=False, left=False, unitriangular=True
        ), S, ROW,
    ),
    "triangular_solve": (lambda t, a, b: t.triangular_solve(b, a, True, True)[0], S, B),
    "householder_product": (
        lambda t, a: t.linalg.householder_product(a, a[..., 0, :] * 0.1), T,
    ),
    "ormqr": (lambda t, a, b: reflected(t, a, b, True, False), T, c(2, 5, 2)),
    "ormqr right adjoint": (lambda t, a, b: reflected(t, a, b, False, True), T, c(2, 2, 5)),
    "tensorinv": (lambda t, a: t.linalg.tensorinv(a.reshape(2, 3, 6)), apart(6, 6)),
    "tensorsolve": (
        lambda t, a, b: t.linalg.tensorsolve(a.reshape(2, 3, 6), b), apart(6, 6), c(2, 3),
    ),
    "vander": (lambda t, a: t.linalg.vander(a), V),
    "cross": (lambda t, a, b: t.linalg.cross(a, b, dim=-2), ROW, c(2, 3, 4)),
    "vecdot": (lambda t, a, b: t.linalg.vecdot(a, b), V, c(2, 4)),
    "outer": (lambda t, a, b: t.outer(a[0], b[0]), V, c(2, 3)),
}  # fmt: skip


def listed(out):
    return list(out) if isinstance(out, (tuple, list)) else [out]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.product(4)
def test_it_is_pytorchs(name, dtype):
    function, *arrays = CASES[name]
    arrays = [a.astype(dtype) for a in arrays]
    close = 2e-3 if dtype == "complex64" else 1e-9
    xs = [torch.tensor(a, requires_grad=True) for a in arrays]
    ys = [flow.tensor(a).requires_grad_() for a in arrays]
    want, actual = listed(function(torch, *xs)), listed(function(flow, *ys))
    total, loss = 0, 0
    rng = np.random.default_rng(3)
    for w, g in zip(want, actual, strict=True):
        assert str(w.dtype)[6:] == g.dtype.name
        np.testing.assert_allclose(
            g.detach().numpy(), w.detach().resolve_conj().numpy(), rtol=close, atol=close
        )
        k = np.array(rng.standard_normal(tuple(w.shape)))
        total = total + (torch.tensor(k) * (w.abs() + w.real if w.is_complex() else w)).sum()
        loss = loss + (flow.tensor(k) * (g.abs() + g.real if g.dtype.is_complex else g)).sum()
    total.backward()
    loss.backward()
    for x, y in zip(xs, ys, strict=True):
        assert y.grad.dtype.name == dtype
        size = max(1.0, float(x.grad.abs().max()))
        np.testing.assert_allclose(
            y.grad.numpy(), x.grad.resolve_conj().numpy(), rtol=20 * close, atol=20 * close * size
        )


GRADIENTS = ("solve", "inv", "slogdet", "wide lu", "cholesky", "wide qr", "both of svd",
             "function by eigh", "pinv", "lstsq", "unit triangular", "matrix_exp")  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    function, *arrays = CASES[name]
    inputs = tuple(flow.tensor(a[:1]).requires_grad_() for a in arrays)
    assert autograd.gradcheck(lambda *ts: function(flow, *ts), inputs)


@pytest.mark.parametrize("name", ["solve", "slogdet", "cholesky", "svdvals", "eigvalsh"])
def test_second_gradients(name):
    function, *arrays = CASES[name]
    inputs = tuple(flow.tensor(a[:1]).requires_grad_() for a in arrays)
    assert autograd.gradgradcheck(lambda *ts: function(flow, *ts), inputs, atol=1e-4)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5), (0, 3), (3, 0), (0, 2, 2), (40, 30)])
def test_factors_multiply_to_the_matrix(shape, full):
    a = c(*shape)
    x, k = flow.tensor(a), min(shape[-2:])
    u, s, vh = flow.linalg.svd(x, full)
    product = u[..., :k] * s.unsqueeze(-2) @ vh[..., :k, :]
    np.testing.assert_allclose(product.numpy(), a, atol=1e-10)
    q, r = flow.linalg.qr(x, "complete" if full else "reduced")
    np.testing.assert_allclose((q @ r).numpy(), a, atol=1e-10)
    p, lower, upper = flow.linalg.lu(x)
    np.testing.assert_allclose((p @ lower @ upper).numpy(), a, atol=1e-10)
    for unitary in (u, vh, q):
        eye = np.broadcast_to(np.eye(unitary.shape[-1]), (unitary.mH @ unitary).shape)
        if unitary.shape[-1] <= unitary.shape[-2]:
            np.testing.assert_allclose((unitary.mH @ unitary).numpy(), eye, atol=1e-10)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (60, 40), (40, 60)], ids=str)
def test_least_squares(shape, driver):
    a, b = c(2, *shape), c(2, shape[0], 2)
    actual = flow.linalg.lstsq(flow.tensor(a), flow.tensor(b), driver=driver)
    want = torch.linalg.lstsq(torch.tensor(a), torch.tensor(b), driver=driver)
    for g, w in zip(actual, want, strict=True):
        assert g.dtype.name == str(w.dtype)[6:]
        np.testing.assert_allclose(g.numpy(), w.numpy(), atol=1e-9)
    np.testing.assert_allclose(actual.solution.numpy(), np.linalg.pinv(a) @ b, atol=1e-9)


@pytest.mark.parametrize("hermitian", [True, False])
def test_indefinite_systems(hermitian):
    a, b = S + (np.swapaxes(S, -1, -2).conj() if hermitian else np.swapaxes(S, -1, -2)), B
    factors, pivots = flow.linalg.ldl_factor(flow.tensor(a), hermitian=hermitian)
    want = torch.linalg.ldl_factor(torch.tensor(a), hermitian=hermitian)
    np.testing.assert_allclose(factors.numpy(), want.LD.tril().numpy(), atol=1e-10)
    np.testing.assert_array_equal(pivots.numpy(), want.pivots.numpy())
    x = flow.linalg.ldl_solve(factors, pivots, flow.tensor(b), hermitian=hermitian)
    np.testing.assert_allclose(x.numpy(), np.linalg.solve(a, b), atol=1e-9)


EIGEN = {
    "complex": S,
    "real": np.array([[[0.0, -2, 1, 0], [1, 0.5, 0, 0.3], [0, 0.2, 2, -1], [0.1, 0, 3, 1]]]),
    "real values": np.array([[[1.0, 2, 0, 1], [1, 3, 1, 0], [2, 0.5, 6, 1], [1, 1, 0, 9]]]),
}
OF_EIGEN = {
    "values": lambda t, a: t.linalg.eig(a)[0],
    "values alone": lambda t, a: t.linalg.eigvals(a),
    "sizes": lambda t, a: t.linalg.eig(a)[1].abs(),
    "both": lambda t, a: sizes(*t.linalg.eig(a)),
    "spaces": lambda t, a: (lambda w, v: v * w.exp().unsqueeze(-2) @ v.mH)(*t.linalg.eig(a)),
}


@pytest.mark.parametrize("what", OF_EIGEN)
@pytest.mark.parametrize("name", EIGEN)
def test_eigenvalues_of_any_matrices(name, what):
    a = EIGEN[name] / 4
    x = torch.tensor(a, requires_grad=True)
    y = flow.tensor(a).requires_grad_()
    total, loss = 0, 0
    for w, g in zip(listed(OF_EIGEN[what](torch, x)), listed(OF_EIGEN[what](flow, y)), strict=True):
        assert g.dtype.name == str(w.dtype)[6:]
        np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), atol=1e-10)
        k = np.random.default_rng(3).standard_normal(tuple(w.shape))
        total = total + (torch.tensor(k) * (w.abs() + w.real)).sum()
        loss = loss + (flow.tensor(k) * (g.abs() + g.real)).sum()
    total.backward()
    loss.backward()
    assert y.grad.dtype is y.dtype
    np.testing.assert_allclose(y.grad.numpy(), x.grad.resolve_conj().numpy(), atol=1e-8)
    again = OF_EIGEN[what](flow, y.detach())
    for g, h in zip(listed(again), listed(OF_EIGEN[what](flow, y)), strict=True):
        np.testing.assert_allclose(g.numpy(), h.detach().numpy(), atol=1e-12)
    assert autograd.gradcheck(lambda t: OF_EIGEN[what](flow, t), (y,))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(40, 40), (3, 5, 5), (1, 1), (0, 3, 3), (2, 0, 0)], ids=str)
def test_eigenvectors(shape, dtype):
    a = c(*shape) if dtype.startswith("c") else _numbers.standard_normal(shape)
    x = flow.tensor(a.astype(dtype))
    values, vectors = flow.linalg.eig(x)
    assert values.dtype is vectors.dtype is (flow.complex128 if "64" in x.numpy().real.dtype.name
                                             else flow.complex64)  # fmt: skip
    left, right = x.to(values.dtype) @ vectors, vectors * values.unsqueeze(-2)
    close = 1e-10 if values.dtype is flow.complex128 else 1e-3
    np.testing.assert_allclose(left.numpy(), right.numpy(), atol=close)
    alone = flow.linalg.eigvals(x)
    np.testing.assert_allclose(
        np.sort_complex(alone.numpy().round(3)), np.sort_complex(values.numpy().round(3)), atol=2e-3
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_matrices_that_are_not_finite_have_no_eigenvalues(dtype, bad):
    for at in ((0, 0), (0, 1), (1, 0), (2, 2)):  # 3 by 3: the last one has half a word of 4 bytes
        x = np.stack([np.eye(3), np.full((3, 3), np.finfo("float32").max)]).astype(dtype)
        x[1][at] = bad
        for function in (flow.linalg.eigvals, lambda a: flow.linalg.eig(a)[1]):
            with pytest.raises(LinAlgError, match="matrix 1 of the batch"):
                function(flow.tensor(x)).numpy()
    assert flow.linalg.eigvals(flow.tensor(x[:1])).tolist() == [[1, 1, 1]]


def test_one_triangle_is_read():
    whole = S + np.swapaxes(S, -1, -2).conj()
    for uplo, half in (("L", np.tril(whole)), ("U", np.triu(whole))):
        values, vectors = flow.linalg.eigh(flow.tensor(half), uplo)
        again = vectors * values.unsqueeze(-2) @ vectors.mH
        np.testing.assert_allclose(again.numpy(), whole, atol=1e-10)
        np.testing.assert_allclose(
            flow.linalg.eigvalsh(flow.tensor(half), uplo).numpy(), np.linalg.eigvalsh(whole)
        )


def test_ranks_and_empty_batches():
    low = c(3, 4, 2) @ c(3, 2, 5)
    assert flow.linalg.matrix_rank(flow.tensor(low)).tolist() == [2, 2, 2]
    square = low @ np.swapaxes(low, -1, -2).conj()
    assert flow.linalg.matrix_rank(flow.tensor(square), hermitian=True).tolist() == [2, 2, 2]
    none = flow.zeros(0, 3, 3, dtype=flow.complex128)
    one = flow.zeros(2, 0, 0, dtype=flow.complex128)
    assert flow.linalg.det(one).tolist() == [1, 1]
    for function in (flow.linalg.inv, flow.linalg.cholesky, lambda x: flow.linalg.solve(x, x),
                     lambda x: flow.linalg.eigh(x)[1], flow.linalg.pinv):  # fmt: skip
        assert function(none).shape == (0, 3, 3)
        assert function(one).shape == (2, 0, 0)
        assert function(none).dtype is flow.complex128


def test_bad_matrices_are_named():
    good, bad = np.eye(2) + 0j, np.full((2, 2), 1j)
    pair, minus = flow.tensor(np.stack([good, bad])), flow.tensor(np.stack([good, -good]))
    L = flow.linalg
    for call in (
        lambda: L.lu_factor(pair).LU,
        lambda: L.solve(pair, pair),
        lambda: L.inv(pair),
        lambda: L.solve_triangular(minus + flow.eye(2), pair, upper=True),
    ):
        with pytest.raises(LinAlgError, match="matrix 1 of the batch is singular"):
            call().numpy()
    with pytest.raises(LinAlgError, match="matrix 1 of the batch is not positive definite"):
        L.cholesky(minus).numpy()
    assert L.inv_ex(pair).info.tolist() == [0, 2]
    assert L.cholesky_ex(minus).info.tolist() == [0, 1]
    assert L.det(pair).tolist() == [1, 0]
    assert [x.tolist() for x in L.slogdet(pair)] == [[1, 0], [0.0, -np.inf]]
    assert L.cond(pair, 1).tolist() == [1.0, np.inf]
    np.testing.assert_allclose(L.cond(flow.tensor(S), "fro").numpy(), np.linalg.cond(S, "fro"))


def test_graphs_and_threads_change_nothing():
    x = flow.tensor(c(40, 5, 5))

    def parts_of(a):
        return flow.linalg.svd(a).Vh, flow.linalg.inv(a), flow.linalg.slogdet(a)[0]

    shared = [t.numpy() for t in parts_of(x)]
    with flow.vm.sequential():
        alone = [t.numpy() for t in parts_of(x)]
    compiled = [t.numpy() for t in flow.compile(parts_of)(x)]
    for a, b, d in zip(shared, alone, compiled, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, d)
