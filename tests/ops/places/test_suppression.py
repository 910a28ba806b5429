"""nms: many random boxes, ties, and boxes at the limit of suppression."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.places.suppression import _reference


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_many_boxes(threshold: float, rng: np.random.Generator) -> None:
    corners = rng.uniform(0, 10, (300, 2, 2))
    boxes = np.concatenate([corners.min(1), corners.max(1)], 1)
    scores = rng.integers(0, 40, 300) / 4
    boxes_left = flow.nms(flow.tensor(boxes), flow.tensor(scores), threshold)
    assert boxes_left.dtype is flow.int64
    assert boxes_left.tolist() == _reference(boxes, scores, threshold).tolist()


def test_an_overlap_equal_to_the_threshold_removes_nothing() -> None:
    boxes = flow.tensor([[0.0, 0, 2, 1], [1, 0, 3, 1], [0, 0, 1, 1]])  # 1/3 and 1/2 of the first
    assert flow.nms(boxes, flow.tensor([3.0, 2.0, 1.0]), 0.5).tolist() == [0, 1, 2]
    assert flow.nms(boxes, flow.tensor([3.0, 2.0, 1.0]), 0.49).tolist() == [0, 1]


def test_boxes_without_an_area_and_equal_scores() -> None:
    boxes = flow.tensor([[1.0, 1, 1, 1]] * 3 + [[0, 0, 4, 4]] * 2)
    assert flow.nms(boxes, flow.zeros(5), 0.5).tolist() == [0, 1, 2, 3]  # 0 / 0 is no overlap


def test_scores_that_are_no_numbers_come_first_and_nothing_is_differentiated() -> None:
    boxes = flow.tensor([[0.0, 0, 1, 1], [5, 5, 6, 6]], requires_grad=True)
    boxes_left = flow.nms(boxes, flow.tensor([1.0, np.nan]), 0.5)
    assert boxes_left.tolist() == [1, 0]
    assert not boxes_left.requires_grad


def test_in_a_graph(rng: np.random.Generator) -> None:
    def scored(boxes: flow.Tensor, scores: flow.Tensor) -> flow.Tensor:
        return scores[flow.nms(boxes, scores, 0.3)] * 2

    graph = flow.compile(scored)
    for _ in range(2):
        corners = rng.uniform(0, 4, (20, 2, 2))
        boxes = flow.tensor(np.concatenate([corners.min(1), corners.max(1)], 1))
        scores = flow.tensor(rng.random(20))
        assert graph(boxes, scores).tolist() == scored(boxes, scores).tolist()
