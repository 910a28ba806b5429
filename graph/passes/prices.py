"""The price of a node: the seconds that its kernel takes by operations and bytes.

Passes and the search for placements (`flowvm.nn.graph.parallel`) weigh work against memory and
exchanges by it.  The rates are the caller's: measured ones, or fixed ones where the result must
follow from the graph alone.
"""

from __future__ import annotations

from flowvm.graph.logical.nodes import OpNode
from flowvm.vm.watch.work import flops_of

TASK = 2e-7  # seconds that a task takes without its kernel


def kernel_price(node: OpNode, flops: float, memory: float) -> float:
    """Seconds of a kernel: the longer of its operations and its traffic, at rates a second."""
    metas = [o.meta for o in (*node.outputs, *node.inputs)]
    traffic = sum(meta.nbytes for meta in metas) / memory
    return TASK + max(flops_of(node.operator.name, metas) / flops, traffic)
