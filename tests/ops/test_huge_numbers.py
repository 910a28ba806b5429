"""Numbers of the caller that say how often something is done: calls end, whatever they are."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError

POLYNOMIALS = [name for name in flow.special.__all__ if "_polynomial_" in name]
HUGE = (2**63 - 1, 10**12, 2**31, float("inf"))


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_orders_of_polynomials(name):
    function = getattr(flow.special, name)
    empty, x = flow.ones(0, dtype=flow.float64), flow.tensor([0.25, -1.0], dtype=flow.float64)
    for n in (*HUGE, -(2**63), float("nan")):
        assert function(empty, n).shape == (0,)
        assert function(empty, flow.full((2, 1), float(n))).shape == (2, 0)
    for n in HUGE:
        with pytest.raises(flow.errors.ArgumentError, match=f"^{name}: the degree is at most"):
            function(x, n)
        with pytest.raises(flow.errors.ArgumentError, match=f"^{name}: the degree is at most"):
            function(x, flow.tensor([1.0, float(n)]))
    assert function(x, float("nan")).tolist() == function(x, -(2**63)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_degrees_that_are_no_numbers(name):
    torch = pytest.importorskip("torch")
    x, n = [0.25, -0.5, 0.75, 0.5], [3.0, float("nan"), -2.0, 5.0]
    inputs = flow.tensor(x, dtype=flow.float64), flow.tensor(n, dtype=flow.float64)
    theirs = torch.tensor(x, dtype=torch.float64), torch.tensor(n, dtype=torch.float64)
    expected = getattr(torch.special, name)(*theirs).numpy()
    result = getattr(flow.special, name)(*inputs).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_order_of_polygamma():
    x = flow.tensor([0.5, 3.0], dtype=flow.float64)
    for n in (200, 202, 10**9, 2**52):
        assert flow.polygamma(n, x).tolist()[0] == -float("inf")
        assert flow.polygamma(n + 1, x[:1]).tolist() == [float("inf")]
    assert flow.polygamma(2**63 - 1, x[:0]).shape == (0,)


def test_pieces_of_nothing():
    assert len(flow.chunk(flow.ones(0), 3)) == 3
    with pytest.raises(flow.errors.ArgumentError, match="chunk: at most"):
        flow.chunk(flow.ones(0), 2**62)


def test_steps_of_a_schedule():
    optimizer = flow.optim.SGD([flow.ones(1, requires_grad=True)], lr=1.0)
    schedule = flow.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)
    schedule.step(10**15 + 5)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "rows",
    [
        lambda most: flow.bincount(flow.tensor([most])),
        lambda most: flow.bincount(flow.tensor([1]), minlength=most),
        lambda most: flow.bincount(flow.tensor([1, most]), flow.ones(2)),
        lambda most: flow.repeat_interleave(flow.tensor([most] * 4)),
        lambda most: flow.repeat_interleave(flow.ones(2), flow.tensor([most, most])),
    ],
)
@pytest.mark.parametrize("most", [2**63 - 1, 2**62, 2**61 + 1])
def test_more_rows_than_bytes_can_be_counted(rows, most):
    with pytest.raises((MemoryError, ArgumentError)):
        rows(most).tolist()
    assert flow.bincount(flow.tensor([1, 3])).tolist() == [0, 1, 0, 1]
