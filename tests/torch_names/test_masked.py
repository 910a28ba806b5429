"""Reductions of what a mask has: PyTorch's values, dtypes and gradients, on its own samples."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm import masked

X = flow.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
MASK = flow.tensor([[True, False, True], [False, False, False]])
REDUCTIONS = ["amax", "amin", "argmax", "argmin", "logsumexp", "mean", "median", "prod", "std",
              "sum", "var"]  # fmt: skip
OF_ONE_SHAPE = ["cumprod", "cumsum", "log_softmax", "softmax", "softmin"]


@pytest.mark.parametrize("name", REDUCTIONS + OF_ONE_SHAPE)
@pytest.mark.parametrize("dtype", ["float64", "int64"])
@pytest.mark.parametrize("mask", [MASK, MASK[:1], None], ids=["mask", "row", "none"])
def test_as_pytorch(name, dtype, mask):
    torch = pytest.importorskip("torch")
    theirs = getattr(pytest.importorskip("torch.masked"), name)
    x = X.to(getattr(flow, dtype))
    target = dtype == "float64"
    leaf = x.clone().requires_grad_(target)
    other = torch.tensor(x.numpy(), requires_grad=target)
    other_mask = None if mask is None else torch.tensor(mask.numpy())
    try:
        expected = theirs(other, 1, mask=other_mask)
    except (RuntimeError, ValueError, TypeError):
        with pytest.raises(flow.FlowError):
            getattr(masked, name)(leaf, 1, mask=mask).numpy()
        return
    result = getattr(masked, name)(leaf, 1, mask=mask)
    assert str(result.dtype).split(".")[1] == str(expected.dtype).split(".")[1]
    np.testing.assert_allclose(result.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
    assert result.requires_grad == expected.requires_grad
    if expected.requires_grad:
        (result * result).nansum().backward()
        (expected * expected).nansum().backward()
        theirs_are = ~np.isnan(other.grad.numpy())  # of the variance of nothing they are NaN
        np.testing.assert_allclose(
            leaf.grad.numpy()[theirs_are], other.grad.numpy()[theirs_are], rtol=1e-10
        )


def test_norms():
    assert masked.norm(X, 2.0, 1, mask=MASK).tolist() == pytest.approx([10**0.5, 0.0])
    assert masked.norm(X, -float("inf"), 1, mask=MASK).tolist() == [1.0, float("inf")]
    scaled = masked.normalize(X, 1.0, 1, mask=MASK)
    assert scaled.tolist() == [[0.25, 0.0, 0.75], [0.0, 0.0, 0.0]]
    assert masked.logaddexp(X, X, input_mask=MASK, other_mask=MASK)[0, 1].item() == -float("inf")


def test_all_dimensions_and_kept_ones():
    assert masked.sum(X, mask=MASK).item() == 4.0
    assert masked.mean(X, (0, 1), keepdim=True, mask=MASK).shape == (1, 1)
    assert masked.sum(X.to(flow.int32)).dtype is flow.int64


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: masked.sum(X, mask=X), "mask is a bool tensor"),
        (lambda: masked.sum(X, mask=flow.ones(1, 2, 3, dtype=flow.bool)), "has 3 dimensions"),
        (lambda: masked.sum(3.0), "must be a Tensor, got float"),
        (lambda: masked.sum(X, (0, 0)), "twice"),
        (lambda: masked.var(X, 0, True, correction=1), "one argument"),
        (lambda: masked.median(X.to(flow.int64), 1, mask=MASK), "no element that counts"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(flow.FlowError, match=match):
        call()


def test_what_there_is_not():
    with pytest.raises(AttributeError, match="take the mask beside the tensor"):
        masked.masked_tensor  # noqa: B018
