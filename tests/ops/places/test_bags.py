"""embedding_bag against PyTorch: random bags in every mode, and changes of table or gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowvm as flow


def both(arguments: dict[str, Any], **options: Any) -> None:
    """Check that both libraries give the same result, table afterwards and gradients."""
    torch = pytest.importorskip("torch")
    results = []
    for lib in (flow, torch):
        values = {k: lib.tensor(v) for k, v in arguments.items()}
        leaves = [t for t in values.values() if t.dtype in (lib.float64, lib.float32)]
        for leaf in leaves:
            leaf.requires_grad_(True)
        out = lib.nn.functional.embedding_bag(**values, **options)
        weight = np.cos(np.arange(out.numel())).reshape(tuple(out.shape))
        (out * lib.tensor(weight)).sum().backward()
        results.append([t.detach().numpy() for t in (out, *leaves, *(x.grad for x in leaves))])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-12, 1e-12)


def arguments(rng: np.random.Generator, n: int = 200) -> dict[str, Any]:
    offsets = np.sort(rng.integers(0, n, 30))
    offsets[0] = 0
    table = rng.standard_normal((20, 7))
    return {"input": rng.integers(0, 20, n), "weight": table, "offsets": offsets}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_random_bags(rng, mode, padding_idx):
    both(arguments(rng), mode=mode, padding_idx=padding_idx)


def test_factors_and_their_gradient(rng):
    options = {**arguments(rng), "per_sample_weights": rng.standard_normal(200)}
    both(options, mode="sum")
    both(options, mode="sum", padding_idx=5)


def test_gradients_divided_by_frequency():
    # PyTorch 2.13 divides row 3 by 3 here, which is what row 1 should be divided by
    table = flow.ones(5, 2, dtype=flow.float64, requires_grad=True)
    index, offsets = flow.tensor([0, 1, 1, 2, 1, 2, 3]), flow.tensor([0, 3])
    out = flow.nn.functional.embedding_bag(
        index, table, offsets, mode="sum", scale_grad_by_freq=True
    )
    out[0].sum().backward()
    np.testing.assert_allclose(table.grad.numpy()[:, 0], [1, 2 / 3, 0, 0, 0])


def test_rows_scaled_down_to_a_norm(rng):
    table = flow.tensor(rng.standard_normal((20, 7)))
    inputs = arguments(rng)
    offsets = flow.tensor(inputs["offsets"])
    flow.nn.functional.embedding_bag(flow.tensor(inputs["input"]), table, offsets, max_norm=1.0)
    norms = np.linalg.norm(table.numpy(), axis=1)
    assert (norms[np.unique(inputs["input"])] <= 1 + 1e-9).all()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_same_bits_with_1_and_3_workers(rng, mode):
    table = flow.tensor(rng.standard_normal((500, 64)).astype(np.float32))
    index = flow.tensor(rng.integers(0, 500, (4000, 9)))
    results = []
    for workers in (1, 3):
        with flow.config(workers=workers):
            leaf = table.clone().requires_grad_(True)
            out = flow.nn.functional.embedding_bag(index, leaf, mode=mode)
            out.sum().backward()
            results.append((out.detach().numpy().tobytes(), leaf.grad.numpy().tobytes()))
    assert results[0] == results[1]
