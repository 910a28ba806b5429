"""Rules for calls of CTC's loss: `takes=` of its ops."""

from __future__ import annotations

from flowvm.meta.dtype import int64
from flowvm.ops.declare.kinds import Metas, Values, computes

MOST = 1 << 31  # steps of a sequence


def _ctc(metas: Metas, values: Values) -> bool:
    x, targets, steps, counts = metas[:4]
    ints = all(m.dtype is int64 for m in (targets, steps, counts))
    if x.ndim != 3 or not ints or not computes(x):
        return False
    n, labels = x.shape[1], values["labels"]
    fits = tuple(steps.shape) == tuple(counts.shape) == (n,) and 0 <= labels.blank < x.shape[2]
    ways = labels.joined in (0, 1) and labels.zero_infinity in (0, 1)
    rows = targets.ndim == (1 if labels.joined else 2) and (labels.joined or targets.shape[0] == n)
    return fits and ways and bool(rows)


def ctc_loss(metas: Metas, values: Values) -> bool:
    """Tell whether labels and lengths are those of x."""
    return _ctc(metas, values) and 0 <= values["longest"] < MOST


def ctc_loss_backward(metas: Metas, values: Values) -> bool:
    """Tell whether g is the gradient of such a loss."""
    g, x, loss, alpha = metas[0], metas[1], metas[5], metas[6]
    if not _ctc(metas[1:5], values) or not computes(g, x, loss, alpha) or alpha.ndim != 3:
        return False
    t, n = x.shape[:2]
    states = alpha.shape[2]
    sizes = tuple(g.shape) == tuple(loss.shape) == (n,) and tuple(alpha.shape[:2]) == (n, t)
    return sizes and states % 2 == 1
