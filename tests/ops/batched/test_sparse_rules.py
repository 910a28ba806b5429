"""Products of one sparse matrix with the dense ones of all examples, against NumPy's dense ones."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.batched import sparse_rules
from flowvm.ops.batched.levels import Level, entered, level_as_dim
from flowvm.ops.batched.plans import STEPS
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.sparse.products import row_product
from tests.ops.batched.levels import examples, of

COUNT = 4
DENSE = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, -3.0], [0.0, 4.0, 5.0]])


@pytest.fixture
def matrix():
    """Values, bounds of rows and columns of DENSE."""
    rows, cols = np.nonzero(DENSE)
    bounds = np.searchsorted(rows, np.arange(5))
    return [flow.tensor(a) for a in (DENSE[rows, cols], bounds, cols)]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_columns_of_all_examples_are_one_product(rng, matrix, at):
    x = rng.standard_normal((COUNT, 3, 2))
    one = Level(COUNT)
    out = row_product(*matrix, of(np.ascontiguousarray(np.moveaxis(x, 0, at)), one, at))
    np.testing.assert_allclose(examples(out, one), DENSE @ x, rtol=1e-13)


def test_levels_of_which_the_matrix_is_no_part_stay(rng, matrix):
    x = rng.standard_normal((COUNT, 5, 3, 2))
    outer, inner = Level(COUNT), Level(5)
    out = row_product(*matrix, entered(of(x, outer), inner, 0))

    both = level_as_dim(level_as_dim(out, inner, 0), outer, 0).numpy()
    np.testing.assert_allclose(both, DENSE @ x, rtol=1e-13)


def test_matrices_of_each_example_are_not_the_rules():
    values = of(np.ones((COUNT, 4)), Level(COUNT))
    op = operator_of(row_product)
    assert STEPS.of(op) is sparse_rules._product
    bounds, col, x = flow.tensor([0, 2, 4]), flow.tensor([0, 1, 0, 1]), flow.ones(2, 3)
    assert sparse_rules._product(op, (values, bounds, col, x), (), ()) is None
