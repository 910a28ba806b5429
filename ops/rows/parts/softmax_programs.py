"""softmax, log_softmax and their gradients, and what a loss needs of a row of logits.

A row of -inf alone, or with NaN or +inf in it, gives NaN, as in PyTorch.
"""

from __future__ import annotations

from flowvm.ops.rows.parts.row_program import Definitions, Fold, RowProgram, Sweep


def _exponentials(*after: tuple[str, str]) -> tuple[Sweep, ...]:
    total = Fold("total", "sum", "e", moved="decay(top - to)")
    maps: Definitions = (("s", "x - top"), ("e", "decay(s)"))
    return Sweep((Fold("top", "largest", "x"),)), Sweep((total,), maps, after)


SOFTMAX = RowProgram(("x",), _exponentials(("scale", "one / total")), "e * scale", absent="-inf")
LOG_SOFTMAX = RowProgram(("x",), _exponentials(("level", "log(total)")), "s - level", absent="-inf")
# the maximum and the logarithm apart: their sum would lose the logarithm to a large maximum
LEVELS = LOG_SOFTMAX._replace(result="", notes=("top", "level"))
SOFTMAX_BACKWARD = RowProgram(
    ("g", "y"), (Sweep((Fold("total", "sum", "g * y"),)),), "(g - total) * y"
)
LOG_SOFTMAX_BACKWARD = RowProgram(
    ("g", "y"), (Sweep((Fold("total", "sum", "g"),)),), "g - decay(y) * total"
)
# how far below the maximum all logits are, for label smoothing
APART = RowProgram(
    ("x",), (Sweep((Fold("off", "sum", "x - top"),)),), heads=("top",), notes=("off",)
)
WEIGHTED_APART = APART._replace(
    sweeps=(Sweep((Fold("off", "sum", "weight * (x - top)"),)),), weights=("weight",)
)
