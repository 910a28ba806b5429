"""Adding a gradient to the one that is there: backward issues this for every parameter.

The in-place form of `add` does the same for any dtypes, strides and broadcasting, and takes longer
to issue.
"""

from __future__ import annotations

from flowvm.ops.declare.update import update

accumulate_ = update(
    "accumulate_",
    "total!, g",
    each="total = total + g",
    linear=(0, 1),
    doc="Add `g` to `total` in place; both have one shape and dtype.  Not recorded.",
)
