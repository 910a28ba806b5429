"""Structures of tensors made global and local."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.utils.global_view import to_global, to_local

HERE = flow.placement("cpu", [0])


def test_structures():
    options = {"x": [flow.ones(2), 3], "y": (flow.zeros(4, 2), None)}
    result = to_global(options, HERE, flow.sbp.broadcast)
    assert result["x"][0].is_global
    assert result["y"][0].placement == HERE
    assert (result["x"][1], result["y"][1]) == (3, None)
    back = to_local(result)
    assert not back["x"][0].is_global
    np.testing.assert_array_equal(back["y"][0].numpy(), np.zeros((4, 2)))
    assert not options["x"][0].is_global


def test_a_function_says_how_each_is_held():
    results = to_global(
        (flow.ones(2), flow.ones(2, 2)), HERE,
        lambda t: flow.sbp.split(0) if t.ndim == 2 else flow.sbp.broadcast,
    )  # fmt: skip
    assert [t.sbp for t in results] == [(flow.sbp.broadcast,), (flow.sbp.split(0),)]


def test_locals_stay():
    x = flow.ones(2)
    assert to_local(x) is x
    assert to_local(x, copy=True) is not x
    with pytest.raises(TypeError, match="needs both placement and sbp"):
        to_global([x], HERE)
