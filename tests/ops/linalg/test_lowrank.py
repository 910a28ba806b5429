"""Factorizations by random vectors, against whole factorizations by NumPy and SciPy."""

import numpy as np
import pytest
import scipy.linalg

import flowvm as flow


@pytest.fixture(autouse=True)
def seeded():
    flow.manual_seed(0)


@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("shape", [(30, 20), (20, 30)])
def test_a_matrix_of_low_rank_is_found_again(batch, shape):
    rng = np.random.default_rng(0)
    m, n = shape
    x = rng.standard_normal((*batch, m, 4)) @ rng.standard_normal((*batch, 4, n))
    mean = rng.standard_normal((*batch, 1, n))
    for left, values, right, expected in (
        (*flow.svd_lowrank(flow.tensor(x), 5), x),
        (*flow.svd_lowrank(flow.tensor(x + mean), 4, M=flow.tensor(mean)), x),
        (*flow.pca_lowrank(flow.tensor(x), 4), x - x.mean(-2, keepdims=True)),
        (*flow.pca_lowrank(flow.tensor(x), 4, center=False), x),
    ):
        k = values.shape[-1]
        assert left.shape == (*batch, m, k)
        assert right.shape == (*batch, n, k)
        again = (left * values.unsqueeze(-2) @ right.mT).numpy()
        np.testing.assert_allclose(again, expected, atol=1e-12)
        np.testing.assert_allclose(
            values.numpy()[..., :4], np.linalg.svd(expected)[1][..., :4], atol=1e-12
        )


def test_as_many_values_as_there_are():
    assert flow.svd_lowrank(flow.ones(3, 4))[1].shape == (3,)
    assert flow.pca_lowrank(flow.randn(9, 4))[2].shape == (4, 4)
    for wrong in (
        lambda: flow.svd_lowrank(flow.ones(3, 3), 0),
        lambda: flow.svd_lowrank(flow.ones(3, 3), 2, -1),
        lambda: flow.pca_lowrank(flow.ones(3, 3), 4),
    ):
        with pytest.raises(ValueError, match="got"):
            wrong()


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("general", [True, False])
def test_eigenvalues_of_one_end(largest, general):
    rng = np.random.default_rng(1)
    a, c = rng.standard_normal((2, 24, 24)), rng.standard_normal((24, 24))
    a = a + np.swapaxes(a, 1, 2)
    b = c @ c.T + 24 * np.eye(24) if general else np.eye(24)
    values, vectors = flow.lobpcg(
        flow.tensor(a), 2, B=flow.tensor(b) if general else None, largest=largest, tol=1e-10
    )
    for one, singular, v in zip(a, values.numpy(), vectors.numpy(), strict=True):
        all_of_them = scipy.linalg.eigh(one, b)[0]
        np.testing.assert_allclose(singular, all_of_them[::-1][:2] if largest else all_of_them[:2])
        np.testing.assert_allclose(one @ v, b @ v * singular, atol=1e-7)


def test_the_gradient_of_eigenvalues():
    x = flow.randn(9, 9, dtype=flow.float64)
    x = (x + x.T).requires_grad_()
    values, _ = flow.lobpcg(x, 2, tol=1e-12)
    (values * flow.tensor([1.0, 2.0])).sum().backward()
    ours, x.grad = x.grad, None
    (flow.linalg.eigh(x).eigenvalues.flip(0)[:2] * flow.tensor([1.0, 2.0])).sum().backward()
    np.testing.assert_allclose(ours.numpy(), x.grad.numpy(), atol=1e-9)


def test_a_preconditioner_and_a_start_save_steps():
    wide = flow.arange(1.0, 401.0, dtype=flow.float64)
    start = flow.ones(400, 1, dtype=flow.float64) / wide.unsqueeze(1)
    values, _ = flow.lobpcg(wide.diag(), 1, X=start, iK=(1 / wide).diag(), niter=12, largest=False)
    assert values.item() == pytest.approx(1.0, abs=1e-6)
    plain, _ = flow.lobpcg(wide.diag(), 1, X=start, niter=12, largest=False)
    assert plain.item() > values.item()


def test_small_matrices_are_turned_down():
    for wrong in (
        lambda: flow.lobpcg(flow.eye(5), 2),
        lambda: flow.lobpcg(flow.ones(5, 6), 1),
        lambda: flow.lobpcg(flow.eye(9), 1, method="qr"),
    ):
        with pytest.raises(ValueError, match="lobpcg"):
            wrong()
