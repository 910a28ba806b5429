"""The rules that join elements, on plain numbers: kernels of both devices are made of them."""

import itertools
import math

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.rows.parts import exponential_sums, moment_rules
from flowvm.ops.rows.parts.orders import LARGEST, SMALLEST

NAN, INF = math.nan, math.inf


def moments(x):
    x = np.array(x)
    return (float(len(x)), x.mean(), ((x - x.mean()) ** 2).sum()) if len(x) else (0.0, 0.0, 0.0)


@pytest.mark.parametrize("cut", [0, 1, 4, 9])
def test_moments_of_two_sets_as_one(rng, cut):
    x = rng.standard_normal(9) + 1e6
    joined = moment_rules.joined(moments(x[:cut]), moments(x[cut:]))
    np.testing.assert_allclose(joined, moments(x), rtol=1e-9)


@pytest.mark.parametrize("at", [0, 150_000])
def test_a_long_vector_with_an_infinite_element_has_an_infinite_mean(at):
    x = np.ones(200_001, np.float32)
    x[at] = INF
    variance, mean = flow.var_mean(flow.tensor(x))
    assert math.isnan(variance.item())
    assert mean.item() == INF


def test_a_search_finds_the_first_of_the_best_and_nan_first():
    for order, best in ((LARGEST, 1), (SMALLEST, 3)):
        for x, want in (([2.0, 5.0, 5.0, 1.0, 1.0], best), ([2.0, NAN, 9.0, NAN, 0.0], 1)):
            for way in itertools.permutations(range(5)):  # parts may come in any order
                value, place = x[way[0]], way[0]
                for k in way[1:]:
                    if order.replaces(value, place, x[k], k):
                        value, place = x[k], k
                assert place == want


def test_a_running_extreme_is_the_last_of_the_best_and_every_nan():
    x = [1.0, 3.0, 3.0, 2.0, NAN, 9.0, NAN, 0.0]
    best, places = x[0], []
    for k, v in enumerate(x):
        if LARGEST.follows(best, v):
            best = v
            places.append(k)
    assert places == [0, 1, 2, 4, 6]
    for a, b in itertools.product([0.0, 1.0, NAN], repeat=2):
        for order in (LARGEST, SMALLEST):
            assert not (order.ahead(a, b) and order.follows(a, b))


@pytest.mark.parametrize(
    ("x", "want"),
    [
        ([], -INF), ([-INF, -INF], -INF), ([2.0], 2.0), ([-INF, 3.0], 3.0), ([1000.0] * 8, None),
        ([INF, 1.0], INF), ([1.0, INF, INF], INF), ([1.0, NAN], NAN), ([NAN, INF], NAN),
        ([-800.0, 0.0, 700.0, 1.0], None),
    ],
)  # fmt: skip
def test_the_logarithm_of_a_sum_of_exponentials(x, want):
    if want is None:
        want = max(x) + math.log(sum(math.exp(v - max(x)) for v in x))
    for cut in range(len(x) + 1):
        parts = []
        for part in (x[:cut], x[cut:]):
            state = exponential_sums.nothing()
            for v in part:
                state = exponential_sums.joined(state, exponential_sums.element_sum(v))
            parts.append(state)
        actual = exponential_sums.logarithm(exponential_sums.joined(*parts))
        np.testing.assert_allclose(actual, want, rtol=1e-14)
