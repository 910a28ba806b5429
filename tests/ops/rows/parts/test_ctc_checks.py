"""Rules for calls of CTC's loss: which operands and attributes a saved graph may give."""

from types import SimpleNamespace

import pytest

import flowvm as flow
from flowvm.meta.meta import TensorMeta
from flowvm.ops.rows.parts import ctc_checks

T, N, C, S = 7, 2, 5, 3


def meta(*shape, dtype=flow.float32):
    return TensorMeta.of(shape, dtype)


def ints(*shape):
    return meta(*shape, dtype=flow.int64)


def labels(**changed):
    return SimpleNamespace(**{"blank": 0, "joined": 0, "zero_infinity": 0} | changed)


GOOD = (meta(T, N, C), ints(N, S), ints(N), ints(N))


def test_losses_of_labels_by_row_and_joined():
    values = {"labels": labels(), "longest": S}
    assert ctc_checks.ctc_loss(GOOD, values)
    assert ctc_checks.ctc_loss(
        (GOOD[0], ints(9), *GOOD[2:]), {"labels": labels(joined=1), "longest": 6}
    )


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (0, meta(T, C)), (0, ints(T, N, C)), (1, meta(N, S)), (1, ints(S)), (1, ints(N + 1, S)),
        (2, ints(N + 1)), (2, ints(N, 1)), (3, ints()), (3, meta(N)),
    ],
)  # fmt: skip
def test_other_operands_are_refused(place, other):
    metas = (*GOOD[:place], other, *GOOD[place + 1 :])
    assert not ctc_checks.ctc_loss(metas, {"labels": labels(), "longest": S})


@pytest.mark.parametrize(
    "changed", [{"blank": C}, {"blank": -1}, {"joined": 2}, {"joined": 1}, {"zero_infinity": 3}]
)
def test_other_labels_are_refused(changed):
    assert not ctc_checks.ctc_loss(GOOD, {"labels": labels(**changed), "longest": S})


@pytest.mark.parametrize("longest", [-1, ctc_checks.MOST])
def test_the_longest_sequence_is_bounded(longest):
    assert not ctc_checks.ctc_loss(GOOD, {"labels": labels(), "longest": longest})


BACK = (meta(N), *GOOD, meta(N), meta(N, T, 2 * S + 1))


def test_gradients_are_of_such_a_loss():
    values = {"labels": labels(), "longest": S}
    assert ctc_checks.ctc_loss_backward(BACK, values)
    for place, other in (
        (0, meta(N + 1)), (5, meta(N, 1)), (5, ints(N)), (6, meta(N, T, 2 * S)),
        (6, meta(T, N, 2 * S + 1)), (6, meta(N, T)), (1, meta(T, N)),
    ):  # fmt: skip
        assert not ctc_checks.ctc_loss_backward((*BACK[:place], other, *BACK[place + 1 :]), values)
