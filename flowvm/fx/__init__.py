"""`flow.fx`: a program as a graph of nodes that can be walked, changed and run again, with
torch.fx's names.

`node`, `graph`, `code` and `graph_module` are the graph and what is made of it; `proxy`,
`recording` and `tracer` make one of code (`symbolic_trace`), `capture` of a call on examples
(`make_fx`); `interpreter` runs it node by node, `subgraph_rewriter` replaces parts of it, `passes`
notes what nodes give.  Not here: LogicalGraph, its passes, and what replays fast (`flow.compile`).
"""

from flowvm.fx import passes as passes
from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.fx.capture import make_fx
from flowvm.fx.graph import Graph
from flowvm.fx.graph_module import GraphModule
from flowvm.fx.interpreter import Interpreter, Transformer
from flowvm.fx.node import Node
from flowvm.fx.proxy import Proxy
from flowvm.fx.recorder import wrap
from flowvm.fx.subgraph_rewriter import replace_pattern
from flowvm.fx.tracer import GraphAppendingTracer, Tracer, symbolic_trace

__all__ = [
    "Graph", "GraphAppendingTracer", "GraphModule", "Interpreter", "Node", "Proxy", "Tracer",
    "Transformer", "make_fx", "passes", "replace_pattern", "symbolic_trace", "wrap",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
