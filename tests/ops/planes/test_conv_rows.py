"""Rows of a convolution's layout, as Python: added, summed, taken at a step, gathered."""

import numpy as np
import pytest

from flowvm.ops.planes.cpu import conv_rows


def test_rows_are_copied_with_a_number_added(rng):
    x, to = rng.standard_normal(10), np.zeros(8)
    conv_rows._add_python(to, 2, x, 3, 4, 0.5)
    np.testing.assert_array_equal(to, [0, 0, *(x[3:7] + 0.5), 0, 0])
    conv_rows._add_python(to, 0, x, 0, 0, 9.0)
    assert to[0] == 0


def test_rows_are_summed(rng):
    x = rng.standard_normal(10)
    assert conv_rows._sum_python(x, 2, 5) == pytest.approx(x[2:7].sum())
    assert conv_rows._sum_python(x, 2, 0) == 0


@pytest.mark.parametrize("step", [1, 2, 3])
def test_elements_are_taken_at_a_step(step):
    x, to = np.arange(12.0), np.full(6, -1.0)
    conv_rows._take_python(to, 1, x, 2, 3, step)
    assert to.tolist() == [-1, 2, 2 + step, 2 + 2 * step, -1, -1]


def test_elements_are_gathered_and_zero_outside():
    x, to = np.arange(10.0) + 1, np.full(5, 7.0)
    table = np.array([9, 3, -1, 0, -5, 2])
    conv_rows._gather_python(to, 0, x, 1, table, 1, 5)
    assert to.tolist() == [x[4], 0, x[1], 0, x[3]]
