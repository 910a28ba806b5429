"""Norms whose groups are rows, and the parts that norms by channel share with them.

Each place in a row has a weight and a bias of its own: layer and RMS norm, and the group norm of
(N, C).

    forward    out = (x - mean) * rstd * weight + bias
    backward   dx = rstd * (h - M(h) - xhat * M(h * xhat)), where h = g * weight and M averages

`heads` and `notes` are the rows' means, then their variances, in float64: the square of 1e30 is no
float32.  A plane has one weight and one bias;
its sums are put together for groups and channels by `norm_rules`.
"""

from __future__ import annotations

import functools

from flowvm.ops.rows.parts.row_program import Fold, RowProgram, Sweep

_ROOT = ("scale", "inverse_root(spread, eps)")
_FACTOR = (_ROOT, ("factor", "scale * weight"))
PLANE = RowProgram(
    ("x",),
    (),
    "(x - middle) * factor + bias",
    heads=("middle", "spread", "weight", "bias"),
    numbers=("eps",),
    begin=_FACTOR,
    wide=("spread",),
)
PLANE_SLOPES = RowProgram(
    ("g", "x"),
    (Sweep((Fold("plain", "sum", "g"), Fold("slanted", "sum", "g * (x - middle)"))),),
    heads=("middle",),
    notes=("plain", "slanted"),
)
PLANE_BACKWARD = RowProgram(  # base and slope are a group's, by `norm_rules.base_and_slope`
    ("g", "x"),
    (),
    "(g * factor - base) - (x - middle) * lift * slope",
    heads=("middle", "spread", "weight", "base", "slope"),
    numbers=("eps",),
    begin=(("lift", "lifting(spread, eps)"), *_FACTOR),
    wide=("spread",),
)


@functools.cache
def norm_forward(center: bool, weights: int) -> RowProgram:
    """With a weight, with a bias as well; `center`: the mean is taken away."""
    measure = Fold("middle", "moments", "x") if center else Fold("squares", "squares", "x")
    after = ("spread", "squares / count"), _ROOT
    value = ("apart" if center else "x") + " * scale" + " * weight" * (weights > 0)
    return RowProgram(
        ("x",),
        (Sweep((measure,), (), after),),
        value + " + bias" * (weights > 1),
        weights=("weight", "bias")[:weights],
        numbers=("eps",),
        notes=("middle" if center else "zero", "spread"),
        wide=("spread",),
    )


@functools.cache
def norm_backward(center: bool, weighted: bool) -> RowProgram:
    """dx; weighted also the gradients of weight and bias."""
    folds = (Fold("plain", "sum", "h"),) * center + (Fold("slanted", "sum", "h * d"),)
    base = (("base", "plain / count"),) * center
    maps = ("h", "g * weight" if weighted else "g"), ("d", "x - middle")
    return RowProgram(
        ("g", "x"),
        (Sweep(folds, maps, (*base, ("slope", "slanted / count * scale * scale"))),),
        f"scale * ({'(h - base)' if center else 'h'} - d * slope)",
        weights=("weight",) * weighted,
        heads=("middle", "spread"),
        numbers=("eps",),
        begin=(_ROOT,),
        wide=("spread",),
        down=(("dw", "g * (d * scale)"), ("db", "g")) if weighted else (),
    )
