"""The formulas of losses against class indices for one row, said once for every device.

A row of n logits has a target t, which names a class, or is the one that is ignored: then the row
counts nothing.  It weighs w = weight[t], 1 without weights.  With s for label_smoothing and
spread = s / n, the row's cross entropy is

    (1 - s) w (log(sum) - x[t]) + spread sum(weight (log(sum) - x))

A row's `top` is its largest logit and `level` the logarithm of the sum of exp(x - top): apart they
are exact where their sum would lose the logarithm to a large maximum.  The gradient of a logit is
`ENTROPY_BACKWARD`, less `target_gradient` at the target; `scale` is what the row's loss is
multiplied by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.ops.rows.parts.row_program import RowProgram, Sweep

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

INLINE_ALWAYS = True  # for flowvm.compiler.native: they stand in loops over rows

ENTROPY_BACKWARD = RowProgram(
    ("x",),
    (Sweep((), (("s", "(x - top) - level"), ("e", "decay(s)"))),),
    "e * factor - off",
    heads=("top", "level", "factor", "off"),
)
WEIGHTED_ENTROPY_BACKWARD = ENTROPY_BACKWARD._replace(
    result="e * factor - off * weight", weights=("weight",)
)


def is_class(target: Number, n: int) -> Number:
    """Return True if a target that is not ignored is a valid class."""
    return 0 <= target < n


def entropy_of(x: Number, top: Number, level: Number, w: Number, keep: Number) -> Number:
    """Return the cross entropy of a row whose target has the logit x; `keep` is 1 - s."""
    return keep * w * (level - (x - top))


def smoothing_of(level: Number, apart: Number, whole: Number, spread: Number) -> Number:
    """Return the smoothing's part: `whole` sums the weights, `apart` weight * (x - top)."""
    return spread * (whole * level - apart)


def factor_and_off(
    scale: Number, w: Number, whole: Number, keep: Number, spread: Number
) -> tuple[Number, Number]:
    """The row's numbers that `ENTROPY_BACKWARD` needs."""
    return scale * (keep * w + spread * whole), scale * spread


def target_gradient(scale: Number, w: Number, keep: Number) -> Number:
    """Return the amount to subtract from the gradient of the target's logit."""
    return keep * w * scale


def likelihood_of(x: Number, w: Number) -> Number:
    """The negative log likelihood of a row whose target has the log probability x."""
    return -(x * w)


def likelihood_gradient(scale: Number, w: Number) -> Number:
    """Return the gradient of the target's log probability; the other classes have none."""
    return -(scale * w)


def reduced_loss(total: float, weights: float, mean: bool) -> tuple[float, float]:
    """Return the loss of all rows, from the sums of losses and of weights, and its divisor."""
    divisor = weights if mean else 1.0
    return total / divisor, divisor
