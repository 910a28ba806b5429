"""PyTorch's functions under their inner names, against PyTorch."""

import warnings

import numpy as np
import pytest

import flowvm as flow
from flowvm import natives

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(7)
X, W = RNG.normal(size=(2, 4, 6)), RNG.normal(size=6)
IMAGE, GRID = RNG.normal(size=(1, 2, 4, 5)), RNG.uniform(-1.2, 1.2, (1, 3, 3, 2))
CALLS = [
    *(("grid_sampler", (IMAGE, GRID, mode, pad, True)) for mode in (0, 1, 2) for pad in (0, 1, 2)),
    ("constant_pad_nd", (X, [1, 2, -1, 0], 3.0)),
    ("constant_pad_nd", (X, [1, 2])),
    ("max_pool1d_with_indices", (X, 2)),
    ("frobenius_norm", (X, [1])),
    ("frobenius_norm", (X, [0, 2], True)),
    ("nuclear_norm", (X[0],)),
    ("nuclear_norm", (X[0], True)),
    ("nuclear_norm", (X, [0, 2])),
    ("nuclear_norm", (X, [1, 2], True)),
    *(("norm_except_dim", (X, power, dim)) for power in (1, 2, 3) for dim in (-1, 0, 1, 2)),
    ("native_layer_norm", (X, [6], W, None, 1e-5)),
    ("native_layer_norm", (X, [4, 6], None, None, 1e-2)),
    ("native_group_norm", (X, W[:4], W[:4], 2, 4, 6, 2, 1e-5)),
    ("conv_tbc", (X, RNG.normal(size=(2, 6, 3)), RNG.normal(size=3), 1)),
    ("rrelu", (X, 0.1, 0.3)),
    ("alpha_dropout", (X, 0.5, False)),
    ("feature_alpha_dropout", (X, 0.5, False)),
    ("feature_dropout", (X, 0.5, False)),
    ("feature_dropout", (X, 1.0, True)),
]


def of(library, values):
    return [library.tensor(v) if isinstance(v, np.ndarray) else v for v in values]


@pytest.mark.parametrize(("name", "value"), CALLS)
def test_as_pytorch(name, value):
    ours = getattr(flow, name)(*of(flow, value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = getattr(torch, name)(*of(torch, value))
    if not isinstance(theirs, tuple):
        ours, theirs = (ours,), (theirs,)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-9, 1e-12)
        assert str(a.dtype).split(".")[-1] == str(b.dtype).split(".")[-1]


def test_embedding_renorm():
    table, at = RNG.normal(size=(5, 3)) * 4, np.array([[0, 3], [3, 1]])
    ours, theirs = flow.tensor(table), torch.tensor(table)
    assert flow.embedding_renorm_(ours, flow.tensor(at), 2.0, 2.0) is ours
    torch.embedding_renorm_(theirs, torch.tensor(at), 2.0, 2.0)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-9)
    with pytest.raises(ValueError, match="matrix"):
        flow.embedding_renorm_(flow.ones(3), flow.tensor([0]), 1.0, 2.0)


def test_draws():
    x = -flow.ones(200)
    slopes = flow.rrelu(x, 0.25, 0.5, True, flow.Generator().manual_seed(2))
    assert flow.equal(slopes, flow.rrelu(x, 0.25, 0.5, True, flow.Generator().manual_seed(2)))
    assert -0.5 <= slopes.min().item() < -0.4
    assert -0.3 < slopes.max().item() <= -0.25
    result = flow.feature_dropout(flow.ones(1, 64, 3), 0.5, True)
    assert set(result.sum(2).flatten().tolist()) == {0.0, 6.0}


def test_capsules():
    x = flow.zeros(3)
    assert flow.from_dlpack(flow.to_dlpack(x)).data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: natives.grid_sampler(flow.ones(1), flow.ones(1), 3, 0, True), "0, 1 or 2, got 3"),
        (lambda: flow.nuclear_norm(flow.ones(2, 2, 2)), "give dim"),
        (
            lambda: flow.native_group_norm(flow.ones(2, 4, 3), None, None, 2, 4, 4, 2, 1e-5),
            r"not \(2, 4\) of 4",
        ),
    ],
)
def test_misuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()
