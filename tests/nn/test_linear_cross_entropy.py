"""linear_cross_entropy: PyTorch's results, whole and in chunks, and the calls that it refuses."""

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn import functional as F

N, FEATURES, CLASSES = 7, 3, 5


def arrays(rng: np.random.Generator, further: tuple[int, ...] = ()) -> dict[str, Any]:
    target = rng.integers(0, CLASSES, (N, *further))
    target.flat[2] = 1
    return {
        "input": rng.normal(size=(N, FEATURES)),
        "linear_weight": rng.normal(size=(CLASSES, *further, FEATURES)),
        "target": target,
        "linear_bias": rng.normal(size=(CLASSES, *further)),
        "weight": rng.uniform(0.5, 2, CLASSES),
    }


def both(value: dict[str, Any], **options: Any) -> list[list[np.ndarray]]:
    """Loss and gradients, here and in PyTorch."""
    torch = pytest.importorskip("torch")
    results = []
    for lib in (flow, torch):
        tensors = {}
        for name, array in value.items():
            tensors[name] = lib.tensor(array)
            if name in ("input", "linear_weight", "linear_bias"):
                tensors[name].requires_grad_()
        chunks = {}
        if "options" in options:
            chunks["options"] = lib.nn.LinearCrossEntropyOptions(**options["options"])
        rest = {k: v for k, v in options.items() if k != "options"}
        loss = lib.nn.functional.linear_cross_entropy(**tensors, **rest, **chunks)
        (loss * loss).sum().backward()
        grads = [t.grad for t in tensors.values() if t.requires_grad]
        results.append([np.array(t.detach().numpy()) for t in (loss, *grads)])
    return results


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("form", ["whole", "smooth", "further", "soft", "chunks", "plain", "one"])
def test_loss_and_gradients(form: str, reduction: str, rng: np.random.Generator) -> None:
    inputs = arrays(rng, (2, 2) if form == "further" else ())
    options: dict[str, Any] = {"reduction": reduction}
    if form == "smooth":
        options["label_smoothing"] = 0.2
    if form == "soft":
        inputs["target"] = rng.dirichlet(np.ones(CLASSES), N)
    else:
        options["ignore_index"] = 1
    if form == "chunks":
        options["options"] = {"batch_chunk_size": 3}
    if form == "plain":
        options["options"] = {"chunking_method": "aspect_ratio:2"}
        del inputs["weight"], inputs["linear_bias"], options["ignore_index"]
    if form == "one":
        inputs["input"], inputs["target"] = inputs["input"][0], np.array(3)
        options["options"] = {}
    mine, theirs = both(inputs, **options)
    for ours, expected in zip(mine, theirs, strict=True):
        assert ours.shape == expected.shape
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)


def test_rows_of_a_chunk_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    for inputs in ({}, {"batch_chunk_size": 3}, {"chunking_method": "aspect_ratio:4"},
                  {"chunking_method": None}):  # fmt: skip
        mine = nn.LinearCrossEntropyOptions(**inputs)
        theirs = torch.nn.LinearCrossEntropyOptions(**inputs)
        for sizes in ((7, 3, 5), (100, 8, 1000), (64, 64, 32), (1, 1, 1)):
            expected = theirs._adjust(*sizes, torch.float32).batch_chunk_size
            assert mine.rows(*sizes) == expected


def test_the_module(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    weight = rng.uniform(0.5, 2, CLASSES)
    results = []
    for lib in (flow, torch):
        loss = lib.nn.LinearCrossEntropyLoss(
            FEATURES, CLASSES, out_features=(2,), bias=True, dtype=lib.float64,
            weight=lib.tensor(weight), label_smoothing=0.1,
        )  # fmt: skip
        results.append(loss)
    mine, theirs = results
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert repr(mine) == repr(theirs)
    mine.load_state_dict({k: t.numpy().copy() for k, t in theirs.state_dict().items()})
    x, y = rng.normal(size=(N, FEATURES)), rng.integers(0, CLASSES, (N, 2))
    losses = [m(lib.tensor(x), lib.tensor(y)) for m, lib in ((mine, flow), (theirs, torch))]
    np.testing.assert_allclose(losses[0].item(), losses[1].item(), rtol=1e-12)


def test_what_cannot_be_says_so() -> None:
    x, w, y = flow.ones(2, 3), flow.ones(4, 3), flow.tensor([0, 1])
    loss = F.linear_cross_entropy
    for args, options, message in (
        ((flow.ones(1, 2, 3), w, y), {}, r"input is \(N, features\)"),
        ((x, flow.ones(3), y), {}, "linear_weight is"),
        ((x, flow.ones(4, 2), y), {}, "input has 3 features and linear_weight 2"),
        ((x, w, y), {"linear_bias": flow.ones(3)}, r"linear_bias is \(4,\), got \(3,\)"),
        ((x[0], flow.ones(4, 2, 3), y), {}, "needs a batch"),
        ((x, w, flow.ones(2, 4)), {"ignore_index": 0}, "ignore_index is for"),
    ):
        with pytest.raises(RuntimeError, match=message):
            loss(*args, **options)
    with pytest.warns(UserWarning, match="options are not used"):
        loss(x, w, y, label_smoothing=0.1, options=nn.LinearCrossEntropyOptions())
    both_ways = nn.LinearCrossEntropyOptions(batch_chunk_size=2, chunking_method="aspect_ratio")
    with pytest.raises(ValueError, match="disagree"):
        loss(x, w, y, options=both_ways)
    for wrong in (
        {"acc_policy": "best"}, {"chunking_method": "aspect_ratio:0"}, {"batch_chunk_size": 0},
        {"acc_dtype": flow.int64},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(wrong))):
            nn.LinearCrossEntropyOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"weight is \(4,\), got \(3,\)"):
        nn.LinearCrossEntropyLoss(3, 4, weight=flow.ones(3))
    with pytest.raises(RuntimeError, match="label_smoothing is from 0 to 1, got 2"):
        nn.LinearCrossEntropyLoss(3, 4, label_smoothing=2)
