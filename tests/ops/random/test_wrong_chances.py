"""Invalid probabilities and weights are errors, as in PyTorch."""

from __future__ import annotations

import math

import pytest

import flowvm as flow
from flowvm.errors import InvalidValueError

WEIGHTS = {
    "negative": ([[1.0, 2.0], [0.5, -0.1]], "weight 1 of row 1"),
    "NaN": ([[math.nan, 2.0], [1.0, 1.0]], "weight 0 of row 0"),
    "infinite": ([[1.0, math.inf], [1.0, 1.0]], "weight 1 of row 0"),
    "all zero": ([[1.0, 2.0], [0.0, 0.0]], "row 1 has no weight"),
}


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str, replacement: bool) -> None:
    weights, text = WEIGHTS[name]
    with pytest.raises(InvalidValueError, match=text):
        flow.multinomial(flow.tensor(weights), 1, replacement).tolist()
    with pytest.raises(InvalidValueError, match=text):  # columns in memory
        flow.multinomial(flow.tensor(weights).t().contiguous().t(), 1, replacement).tolist()
    assert flow.multinomial(flow.tensor([0.0, 2.0]), 3, True).tolist() == [1, 1, 1]


@pytest.mark.parametrize("p", [-0.5, 1.5, math.nan, math.inf])
def test_chances(p: float) -> None:
    chances = flow.full((3000,), 0.5)
    chances[2047] = p
    with pytest.raises(InvalidValueError, match="element 2047 is no probability"):
        flow.bernoulli(chances).tolist()
    with pytest.raises(InvalidValueError, match="element 2047"):
        flow.empty(3000).bernoulli_(chances).tolist()
    assert flow.bernoulli(flow.tensor([0.0, 1.0])).tolist() == [0.0, 1.0]
