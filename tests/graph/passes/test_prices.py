"""Prices of nodes: the longer of operations and bytes."""

from __future__ import annotations

import numpy as np

import flowvm as flow
from flowvm.graph.capture.capture import capturing
from flowvm.graph.passes.prices import TASK, kernel_price


def test_kernels_are_priced_by_the_longer_of_operations_and_bytes():
    a, b = flow.ones(100, 100), flow.ones(100, 100)
    with capturing("priced") as capture:
        capture.output(a @ b)
        capture.output(a + b)
    product, added = (kernel_price(node, 1e9, 1e9) for node in capture.graph.nodes)
    np.testing.assert_allclose(product, TASK + 2 * 100**3 / 1e9)
    np.testing.assert_allclose(added, TASK + 3 * 40000 / 1e9)
