"""The kernels of ctc_loss: a unit is a sample, gone through step by step.

The labels of a target of S stand between blanks: state s of 2 S + 1 is a blank where s is even,
else label s // 2.  alpha[t, s] is the logarithm of the probability of all ways to be in state s at
step t; beta the same from the end.  (Graves et al., Connectionist Temporal Classification, 2006;
the gradient is formula 16 there, by log-probabilities that come from a log_softmax.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flowvm.errors import Status
from flowvm.meta.arrays import Array

BAD = int(Status.INDEX_OUT_OF_RANGE)


class Labels(NamedTuple):
    """The number of the blank, whether targets stand one behind the other, whether infinite losses
    have no gradient.
    """

    blank: int
    joined: int
    zero_infinity: int


def _sum(a: float, b: float, c: float) -> float:
    """The logarithm of the sum of what a, b and c are logarithms of."""
    top = max(a, b, c)
    if top == -np.inf:
        return top
    total: float = top + math.log(math.exp(a - top) + math.exp(b - top) + math.exp(c - top))
    return total


def _first(targets: Array, lengths: Array, n: int, joined: int) -> int:
    """Return where the targets of sample n begin in the flattened targets."""
    if not joined:
        return n * (len(targets) // len(lengths))
    first = 0
    for i in range(n):
        first += lengths[i]
    return first


def _wrong(
    targets: Array, first: int, steps: int, count: int, most: tuple[int, int], classes: int,
    details: Array,
) -> bool:  # fmt: skip
    """Return True if a length or a label is out of range, and write it to `details`."""
    if steps < 0 or steps > most[0]:
        details[0], details[1], details[2] = steps, most[0] + 1, -1
        return True
    if count < 0 or count > most[1] or first < 0 or first + count > len(targets):
        details[0], details[1], details[2] = count, most[1] + 1, -1
        return True
    for i in range(first, first + count):
        if targets[i] < 0 or targets[i] >= classes:
            details[0], details[1], details[2] = targets[i], classes, -1
            return True
    return False


def ctc_body(
    loss: Array, alpha: Array, x: Array, targets: Array, steps: Array, counts: Array,
    t: Labels, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """The losses and alphas of samples."""
    blank, joined = t.blank, t.joined
    for n in range(lo, hi):
        last, count = steps[n], counts[n]
        first = _first(targets, counts, n, joined)
        most = (x.shape[0], alpha.shape[2] // 2)
        if _wrong(targets, first, last, count, most, x.shape[2], details):
            return BAD
        states = 2 * count + 1
        for step in range(alpha.shape[1]):
            for s in range(alpha.shape[2]):
                alpha[n, step, s] = -np.inf
        if last == 0:
            loss[n] = 0.0 if count == 0 else np.inf
            continue
        alpha[n, 0, 0] = x[0, n, blank]
        if count > 0:
            alpha[n, 0, 1] = x[0, n, targets[first]]
        for step in range(1, last):
            for s in range(states):
                label = targets[first + s // 2] if s % 2 == 1 else blank
                one = alpha[n, step - 1, s - 1] if s > 0 else -np.inf
                two = -np.inf
                if s > 1 and s % 2 == 1 and targets[first + s // 2 - 1] != label:
                    two = alpha[n, step - 1, s - 2]
                alpha[n, step, s] = _sum(alpha[n, step - 1, s], one, two) + x[step, n, label]
        before = alpha[n, last - 1, states - 2] if count > 0 else -np.inf
        loss[n] = -_sum(alpha[n, last - 1, states - 1], before, -np.inf)
    return 0


def ctc_back_body(
    out: Array, g: Array, x: Array, targets: Array, steps: Array, counts: Array, loss: Array,
    alpha: Array, t: Labels, scratch: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """The gradients of samples by their log-probabilities; each has its betas in scratch."""
    blank, joined, zero_infinity = t.blank, t.joined, t.zero_infinity
    classes, betas = x.shape[2], scratch.view(np.float64)
    for n in range(lo, hi):
        last, count = steps[n], counts[n]
        first = _first(targets, counts, n, joined)
        if _wrong(targets, first, last, count, (x.shape[0], alpha.shape[2] // 2), classes, details):
            return BAD
        states = 2 * count + 1
        silent = zero_infinity and loss[n] == np.inf
        for step in range(0 if silent else last, x.shape[0]):
            for c in range(classes):
                out[step, n, c] = 0.0
        if silent or last == 0:
            continue
        beta = betas[n * alpha.shape[2] : (n + 1) * alpha.shape[2]]
        for s in range(states):
            beta[s] = -np.inf
        for step in range(last - 1, -1, -1):
            for c in range(classes):
                out[step, n, c] = -np.inf
            for s in range(
                states
            ):  # upwards: beta[s + 1] and beta[s + 2] are still the later step's
                label = targets[first + s // 2] if s % 2 == 1 else blank
                if step == last - 1:
                    beta[s] = x[step, n, label] if s >= states - 2 else -np.inf
                else:
                    two = -np.inf
                    if s % 2 == 1 and s + 2 < states and targets[first + s // 2 + 1] != label:
                        two = beta[s + 2]
                    one = beta[s + 1] if s + 1 < states else -np.inf
                    beta[s] = _sum(beta[s], one, two) + x[step, n, label]
                ways = alpha[n, step, s] + beta[s]
                out[step, n, label] = _sum(out[step, n, label], ways, -np.inf)
            for c in range(classes):
                p = x[step, n, c]
                out[step, n, c] = g[n] * (math.exp(p) - math.exp(out[step, n, c] + loss[n] - p))
    return 0
