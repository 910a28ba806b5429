"""Reductions as states: joined in any grouping, they give what all elements give at once."""

import math

import numpy as np
import pytest

from flowvm.ops.rows.parts import fold_programs
from flowvm.ops.rows.parts.fold_programs import DEVIATION, MOMENTS, place_of, total_of
from flowvm.ops.rows.parts.fold_rules import Rule
from flowvm.ops.rows.parts.orders import LARGEST, SMALLEST

NAN, INF = math.nan, math.inf


def folded(reduced, states):
    """The states joined in pairs, as segments are."""
    while len(states) > 1:
        pairs = [states[k : k + 2] for k in range(0, len(states), 2)]
        states = [reduced.join(*pair) if len(pair) > 1 else pair[0] for pair in pairs]
    return states[0]


class Sum:
    """A rule with what `total_of` asks of one."""

    keep = staticmethod(lambda a, b: a + b)
    wide = "float64"


def test_totals_are_kept_wide_and_divided():
    mean = total_of(Sum, np.float32, True)
    assert mean.kinds == (np.float64,)
    assert mean.results(folded(mean, [(x,) for x in (1.0, 2.0, 4.0)]), 2.0) == (3.5,)
    whole = total_of(Sum, np.float32, False)
    assert whole.results((7.0,), 2.0) == (7.0,)
    assert total_of(Sum, np.float32, True) is mean
    assert issubclass(Rule, tuple)


@pytest.mark.parametrize(
    ("order", "values", "place"),
    [
        (LARGEST, [3.0, 7.0, 7.0, 1.0, 0.0], 1),
        (SMALLEST, [3.0, 1.0, 7.0, 1.0, 2.0], 1),
        (LARGEST, [3.0, NAN, 9.0, NAN], 1),
        (SMALLEST, [NAN, -INF, NAN], 0),
        (LARGEST, [-INF, -INF], 0),
        (SMALLEST, [0.0, -0.0], 0),
    ],
)
def test_places_are_of_the_first_best(order, values, place):
    reduced = place_of(order, np.float64)
    states = [(v, k) for k, v in enumerate(values)]
    for turned in (states, states[::-1]):  # whichever segment is done first
        value, at = reduced.results(folded(reduced, turned), 0.0)
        assert at == place
        np.testing.assert_equal(value, values[place])
    assert reduced.outputs == len(reduced.kinds) == 2


@pytest.mark.parametrize(("shift", "tol"), [(0.0, 1e-12), (1e8, 1e-7)])
def test_moments_are_those_of_all(rng, shift, tol):
    """Far from 0 the mean has 8 digits behind the point; squares of values would have none."""
    values = rng.standard_normal(37) + shift
    state = folded(MOMENTS, [(1.0, v, 0.0) for v in values])
    variance, mean = MOMENTS.results(state, 36.0)
    np.testing.assert_allclose([variance, mean], [values.var(ddof=1), values.mean()], rtol=tol)
    deviation, mean = DEVIATION.results(state, 37.0)
    np.testing.assert_allclose(deviation, values.std(), rtol=tol)
    assert state[0] == 37


def test_moments_of_nothing_change_nothing():
    none, some = (0.0, 0.0, 0.0), (3.0, 1.5, 0.25)
    assert MOMENTS.join(none, some) == MOMENTS.join(some, none) == some
    assert MOMENTS.join((1.0, INF, 0.0), some)[1] == INF
    assert fold_programs._THREE == MOMENTS.kinds
