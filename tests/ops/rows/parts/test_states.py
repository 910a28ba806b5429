"""States of scans in arrays."""

import numpy as np
import pytest

from flowvm.ops.rows.parts.states import loaded_of, stored_of


@pytest.mark.parametrize("count", [1, 2, 3])
def test_states_are_loaded_as_they_were_stored(count):
    arrays = [np.zeros(4) for _ in range(count)]
    state = tuple(float(k + 1) for k in range(count))
    stored_of(count)(arrays, 2, state)
    assert loaded_of(count)(arrays, 2) == state
    assert all(array[[0, 1, 3]].sum() == 0 for array in arrays)
