"""ctc_loss: its gradient is right through a log_softmax, and samples that no way leads through."""

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.nn import functional as F


@pytest.mark.parametrize("joined", [False, True])
def test_the_gradient_is_that_of_scores(joined: bool, rng: np.random.Generator) -> None:
    scores = flow.tensor(rng.normal(size=(6, 3, 4)), requires_grad=True)
    labels: Any = [1, 1, 2, 3, 0, 0, 1, 2, 3]
    if joined:
        labels = [label for label in labels if label]
    targets = flow.tensor(labels if joined else np.reshape(labels, (3, 3)))
    lengths = flow.tensor([6, 4, 5]), flow.tensor([3, 1, 3])

    def loss(x: flow.Tensor) -> flow.Tensor:
        return F.ctc_loss(F.log_softmax(x, -1), targets, *lengths, reduction="none")

    assert flow.autograd.gradcheck(loss, (scores,))


def test_a_sample_that_no_way_leads_through() -> None:
    x = F.log_softmax(flow.ones(2, 1, 3), -1).requires_grad_(True)
    targets, lengths = flow.tensor([[1, 1]]), ((2,), (2,))  # which need a blank between them
    assert F.ctc_loss(x, targets, *lengths).item() == np.inf
    loss = F.ctc_loss(x, targets, *lengths, zero_infinity=True)
    loss.backward()
    assert loss.item() == 0
    assert x.grad is not None
    assert not x.grad.numpy().any()
    empty = F.ctc_loss(x.detach(), targets, (0,), (0,), reduction="sum")
    assert empty.item() == 0
