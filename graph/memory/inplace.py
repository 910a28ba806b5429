"""In-place reuse: a node's result takes the memory of an input that nobody reads any more.

The nodes stay as they are: the pass permits it, and the memory plan asks the graph which buffers
are one block (`LogicalGraph.shared`), whose life is their lives together.
"""

from __future__ import annotations

from dataclasses import replace

from flowvm.graph.logical.logical import LogicalGraph


def reuse_memory(graph: LogicalGraph) -> LogicalGraph:
    """Permit that results lie where inputs lay that nobody reads any more."""
    return replace(graph, reuse=True)
