"""Boxes that are kept where several show the same thing: `nms`.

What is kept is decided box after box, the best first: one kernel that marks them, and a
`masked_select` of the marks, so asking for the shape waits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import DTypeError, ShapeError
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import bool_
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.places.gather import index_select
from flowvm.ops.places.masks import masked_select
from flowvm.ops.places.sort import argsort
from flowvm.ops.shapes.ranges import number_of


def _suppress_body(is_best: Array, corners: Array, threshold: float, lo: int, hi: int) -> None:
    """Marks the boxes that no better one which is kept overlaps.  The corners lie side by side,
    (4, n), so that a box is compared with vectors of others.
    """
    n = len(is_best)
    left, top, right, bottom = corners[0], corners[1], corners[2], corners[3]
    for i in range(n):
        is_best[i] = True
    for i in range(n):
        if not is_best[i]:
            continue
        x0, y0, x1, y1 = left[i], top[i], right[i], bottom[i]
        area = (x1 - x0) * (y1 - y0)
        zero = x0 - x0
        marks, lefts, tops = is_best[i + 1 :], left[i + 1 :], top[i + 1 :]
        rights, bottoms = right[i + 1 :], bottom[i + 1 :]
        for j in range(len(marks)):
            width = max(min(x1, rights[j]) - max(x0, lefts[j]), zero)
            height = max(min(y1, bottoms[j]) - max(y0, tops[j]), zero)
            shared = width * height
            other = (rights[j] - lefts[j]) * (bottoms[j] - tops[j])
            marks[j] &= not (shared / (area + other - shared) > threshold)


@op("corners -> kept", name="nms", letters=unsplit)
def _suppress(corners: TensorMeta, threshold: float) -> Launch:
    is_best = corners.with_shape((corners.shape[1],), bool_)
    return Launch((is_best,), _suppress_body, consts=(threshold,))


# public: flow (late)
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Non-maximum suppression: which boxes are left when each, from the best score down, has
    removed all worse ones that it overlaps by more than `iou_threshold`.

    boxes          (n, 4): left, top, right and bottom, left <= right and top <= bottom, floats
    scores         (n), of the same dtype; of equal ones the box that comes first counts as better
    iou_threshold  of the area that two boxes share and the area that they cover together

    The result is int64 positions, the best first, (kept): how many is known when it has been
    computed.  No gradients.  On CUDA one thread goes through the boxes.

    >>> boxes = flow.tensor([[0.0, 0, 10, 10], [1, 0, 10, 10], [20, 0, 30, 10]])
    >>> flow.nms(boxes, flow.tensor([0.5, 0.9, 0.7]), 0.5)  # the second removes the first
    tensor([1, 2])
    """
    b = need_tensor("nms", "boxes", boxes)._meta
    s = need_tensor("nms", "scores", scores)._meta
    if b.ndim != 2 or b.shape[1] != 4 or tuple(s.shape) != (b.shape[0],):
        raise ShapeError(
            f"nms: boxes are (n, 4) and scores (n), got {tuple(b.shape)} and {tuple(s.shape)}"
        )
    if not b.dtype.is_floating_point or s.dtype is not b.dtype:
        raise DTypeError(
            f"nms: boxes and scores have one floating point dtype, got {b.dtype.name} and "
            f"{s.dtype.name}"
        )
    threshold = float(number_of("nms: iou_threshold", iou_threshold))
    order = argsort(scores, 0, True)
    corners = index_select(boxes.detach(), 0, order).t().contiguous()
    out: Tensor = masked_select(order, _suppress(corners, threshold))
    return out


# --- samples ------------------------------------------------------------------------------------


def _reference(boxes: Array, scores: Array, iou_threshold: float) -> Array:
    def area(b: Array) -> Any:
        return (b[2] - b[0]) * (b[3] - b[1])

    best: list[int] = []
    for i in sorted(range(len(scores)), key=lambda k: (-scores[k], k)):
        for k in best:
            low, high = np.maximum(boxes[i], boxes[k])[:2], np.minimum(boxes[i], boxes[k])[2:]
            shared = np.prod(np.maximum(high - low, 0))
            if shared > iou_threshold * (area(boxes[i]) + area(boxes[k]) - shared):
                break
        else:
            best.append(i)
    return np.array(best, np.int64)


def _boxes(rng: np.random.Generator, n: int) -> Array:
    """Whole corners, exact in every dtype; each box has an area."""
    low = rng.integers(0, 12, (n, 2))
    return np.concatenate([low, low + rng.integers(1, 9, (n, 2))], 1).astype(np.float64)


samples(
    nms,
    lambda rng: [
        Sample((_boxes(rng, 12), rng.permutation(12) / 8, 0.3017)),  # of no two boxes of integers
        Sample((_boxes(rng, 40), rng.integers(0, 3, 40) / 2, 0.51)),
        Sample((_boxes(rng, 3), rng.permutation(3) / 8, 0)),
        Sample((np.zeros((0, 4)), np.zeros(0), 0.5)),
    ],
    _reference,
    grad=False,
    errors=(
        (lambda flow: flow.nms(flow.ones(3, 5), flow.ones(3), 0.5), RuntimeError),
        (lambda flow: flow.nms(flow.ones(3, 4), flow.ones(2), 0.5), RuntimeError),
        (lambda flow: flow.nms(flow.ones(3, 4), flow.ones(3).double(), 0.5), TypeError),
        (lambda flow: flow.nms(flow.ones(3, 4).long(), flow.ones(3).long(), 0.5), TypeError),
        (lambda flow: flow.nms(flow.ones(3, 4), flow.ones(3), "0.5"), TypeError),
    ),
)
