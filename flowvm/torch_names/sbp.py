"""`flow.sbp`: the layouts of global tensors on ranks, and the layout of a function's results.

flow.sbp.split(0)        dimension 0 is cut among the ranks
flow.sbp.broadcast       each has all of it
flow.sbp.partial_sum     each has a summand
flow.sbp.explain(f, x)   which signature each op of f(x) is called by, and what it moves
"""

from __future__ import annotations

from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.meta.placements import broadcast, partial_sum, sbp, split
from flowvm.ops.placed.explanation import explain

__all__ = ["broadcast", "explain", "partial_sum", "sbp", "split"]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
