"""Passes over a traced graph, under torch.fx.passes' names: `shape_prop` notes each node's result.

Not here: passes over LogicalGraph (`graph/passes`).
"""

from typing import TYPE_CHECKING

from flowvm.fx.passes import shape_prop
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing

if TYPE_CHECKING:
    from flowvm.fx.passes import graph_drawer
else:
    graph_drawer = lazy("flowvm.fx.passes.graph_drawer")

__all__ = ["graph_drawer", "shape_prop"]
__dir__ = listing(globals())
