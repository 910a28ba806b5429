"""ctc_loss: its gradient is right through a log_softmax, and samples that no way leads through."""

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.nn import functional as F
from flowvm.ops.rows.cpu.ctc_kernels import Labels
from flowvm.ops.rows.ctc_loss import _ctc, _ctc_back


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


def test_a_length_below_zero_takes_no_label_in_front() -> None:
    x = F.log_softmax(flow.ones(4, 2, 3), -1)
    for lengths in ([-2, 2], [-1, 1]):
        with pytest.raises(IndexError):
            F.ctc_loss(x, flow.tensor([1, 2]), (4, 4), flow.tensor(lengths)).numpy()


def test_the_gradient_looks_at_its_labels_itself() -> None:
    """Labels may differ from the forward call's: a saved graph says which ones it uses."""
    x = F.log_softmax(flow.ones(4, 1, 3), -1)
    targets, steps, counts = flow.tensor([[1, 2]]), flow.tensor([4]), flow.tensor([2])
    labels = Labels(0, 0, 0)
    loss, alpha = _ctc(x, targets, steps, counts, labels, 2)

    def gradient(goals: Any, lengths: Any) -> Any:
        return _ctc_back(flow.ones(1), x, goals, steps, lengths, loss, alpha, labels).numpy()

    assert np.isfinite(gradient(targets, counts)).all()
    for goals, lengths in (([[1, 3]], [2]), ([[-1, 2]], [2]), ([[1, 2]], [3]), ([[1, 2]], [-1])):
        with pytest.raises(IndexError):
            gradient(flow.tensor(goals), flow.tensor(lengths))


def test_a_second_derivative_is_an_error() -> None:
    x = flow.ones(4, 1, 3, requires_grad=True)
    loss = F.ctc_loss(F.log_softmax(x, -1), flow.tensor([[1, 2]]), (4,), (2,))
    (g,) = flow.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="this is the second"):
        g.pow(2).sum().backward()
