"""roi_align against its definition: random regions, gradients, and regions that lie nowhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.planes import regions
from flowvm.ops.planes.cpu.region_kernels import _weigh

Call = tuple[float, int, int, int, bool]


def weights_of(start: float, each: float, bins: int, grid: int, size: int) -> Any:
    """Return (bins, size): the weight of each element in each bin, point by point."""
    matrix = np.zeros((bins, size))
    for k in range(bins):
        for i in range(grid):
            p = start + (k + (i + 0.5) / grid) * each
            if -1 <= p <= size:
                p = min(max(p, 0.0), size - 1)
                low = int(p)
                matrix[k, low] += (1 - (p - low)) / grid
                if p > low:
                    matrix[k, low + 1] += (p - low) / grid
    return matrix


def matrices(roi: Any, x: Any, call: Call) -> tuple[Any, Any]:
    """The weights of a region's rows and of its columns."""
    scale, ph, pw, ratio, aligned = call
    left, top, right, bottom = roi[1:] * scale - (0.5 if aligned else 0)
    sizes = [bottom - top, right - left]
    if not aligned:
        sizes = [max(size, 1.0) for size in sizes]
    matrices = []
    for start, size, bins, n in zip((top, left), sizes, (ph, pw), x.shape[2:], strict=True):
        grid = ratio if ratio > 0 else max(0, math.ceil(size / bins))
        matrices.append(weights_of(start, size / bins, bins, grid, n))
    return matrices[0], matrices[1]


def regions_of(rng: np.random.Generator, count: int, images: int, reach: float) -> Any:
    """Regions that lie inside, across the border, outside; some turned round."""
    corners = rng.uniform(-reach / 2, reach * 1.5, (count, 4))
    ordered = np.concatenate(
        [np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], 1
    )
    corners = np.where(rng.random((count, 1)) < 0.8, ordered, corners)
    return np.concatenate([rng.integers(0, images, (count, 1)), corners], 1)


CALLS: list[Call] = [
    (1.0, 3, 2, 2, True), (1.0, 2, 5, -1, True), (0.37, 4, 3, 0, False), (2.5, 7, 7, 3, False),
    (-1.0, 2, 2, 2, True), (0.0, 2, 2, 2, False),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_values_and_gradient(call: Call, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 11, 9, 13))  # channels of two of backward's blocks
    rois = regions_of(rng, 25, 3, 12 / (abs(call[0]) or 1))
    inputs = flow.tensor(x, requires_grad=True)
    out = flow.roi_align(inputs, flow.tensor(rois), *call)
    upstream = rng.standard_normal(tuple(out.shape))
    out.backward(flow.tensor(upstream))
    expected, gradient = np.zeros(upstream.shape), np.zeros(x.shape)
    for r, roi in enumerate(rois):
        down, along = matrices(roi, x, call)
        image = int(roi[0])
        expected[r] = down @ x[image] @ along.T
        gradient[image] += down.T @ upstream[r] @ along
    np.testing.assert_allclose(out.detach().numpy(), expected, 1e-10, 1e-11)
    np.testing.assert_allclose(inputs.grad.numpy(), gradient, 1e-10, 1e-11)


@pytest.mark.parametrize("call", CALLS[:3])
def test_gradients_by_differences(call: Call, rng: np.random.Generator) -> None:
    x = flow.tensor(rng.standard_normal((2, 2, 5, 4)), requires_grad=True)
    rois = flow.tensor(regions_of(rng, 4, 2, 6))
    for check in (flow.autograd.gradcheck, flow.autograd.gradgradcheck):
        assert check(lambda x: flow.roi_align(x, rois, *call), (x,))


def test_nothing_is_differentiated_by_regions() -> None:
    rois = flow.tensor([[0.0, 0.0, 0.0, 2.0, 2.0]], requires_grad=True)
    x = flow.ones(1, 1, 3, 3, requires_grad=True)
    flow.roi_align(x, rois, 1.0, 1, 1, 1, True).sum().backward()
    assert rois.grad is None
    assert x.grad is not None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_other_floats(dtype: str, rng: np.random.Generator) -> None:
    kind = getattr(flow, dtype)
    x = flow.tensor(rng.standard_normal((1, 2, 8, 8))).to(kind)
    rois = flow.tensor([[0.0, 0.5, 1.0, 6.5, 7.25], [0.0, -3.0, 2.0, 4.0, 9.0]]).to(kind)
    out = flow.roi_align(x, rois, 1.0, 3, 3, -1, True)
    assert out.dtype is kind
    wide = flow.roi_align(x.double(), rois.double(), 1.0, 3, 3, -1, True)
    close = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(out.double().numpy(), wide.numpy(), close, close)


def test_what_no_point_touches_does_not_count() -> None:
    x = flow.full((1, 1, 4, 4), np.nan)
    x[0, 0, :2, :2] = 1.0
    rois = flow.tensor([[0.0, 0.0, 0.0, 2.0, 2.0]])  # points in the middles of two by two
    assert flow.roi_align(x, rois, 1.0, 2, 2, 1, True).tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]
    far = flow.tensor([[0.0, 50.0, 50.0, 60.0, 60.0], [0.0, 0.0, 0.0, -1.0, 2.0]])
    assert flow.roi_align(x, far, 1.0, 1, 1, 0, True).tolist() == [[[[0.0]]], [[[0.0]]]]


@pytest.mark.parametrize("image", [-1.0, 2.0, 7.5])
def test_an_image_that_there_is_not(image: float) -> None:
    x = flow.ones(2, 1, 3, 3, requires_grad=True)
    rois = flow.tensor([[0.0, 0.0, 0.0, 1.0, 1.0], [image, 0.0, 0.0, 1.0, 1.0]])
    out = flow.roi_align(x, rois, 1.0, 1, 1, 1, True)
    with pytest.raises(IndexError, match=f"index {int(image)} .* size 2"):
        out.detach().numpy()
    inputs = regions.Regions(1.0, 1, 1)
    with pytest.raises(IndexError, match=f"index {int(image)} .* size 2"):
        regions._back(flow.ones(2, 1, 1, 1), rois, (2, 1, 3, 3), inputs).numpy()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("place", range(5))
def test_coordinates_that_lie_nowhere(value: float, place: int) -> None:
    rois = flow.zeros(2, 5)
    rois[1, place] = value
    with pytest.raises(ValueError, match=f"number {place} of region 1 is not finite"):
        flow.roi_align(flow.ones(1, 1, 3, 3), rois, 1.0, 1, 1, 1, True).numpy()


@pytest.mark.parametrize("aligned", [True, False])
def test_large_regions_take_no_longer(aligned: bool) -> None:
    """Only the points on the image are gone through."""
    rois = flow.tensor([[0.0, -1e9, -1e9, 1e9, 1e9], [0.0, -1e9, 0.0, 1e9, 4.0]]).double()
    out = flow.roi_align(flow.ones(1, 1, 4, 4).double(), rois, 1.0, 2, 2, 0, aligned).numpy()
    assert (0 <= out).all()
    assert (out < 1e-7).all()
    assert out[1].sum() > 0


def test_weights_stay_in_their_part(rng: np.random.Generator) -> None:
    """`size + 2 * bins` of them are enough, whatever the bins: see the kernels' first lines."""
    for _ in range(300):
        size, bins = (int(n) for n in rng.integers(1, 9, 2))
        start, each = rng.uniform(-9, 9), rng.uniform(-3, 3) * rng.choice([1e-9, 0.1, 1, 5])
        if rng.random() < 0.3:  # points on elements, and on the border
            start, each = round(start), round(each)
        grid = int(rng.integers(1, 6)) if rng.random() < 0.5 else max(0, math.ceil(each))
        spans, weights = np.full(2 * bins, -1), np.zeros(size + 2 * bins)
        _weigh(weights, spans, float(start), float(each), grid, size)
        matrix, at = np.zeros((bins, size)), 0
        for k, (low, high) in enumerate(spans.reshape(-1, 2)):
            assert 0 <= low <= high <= size
            matrix[k, low:high] = weights[at : at + high - low]
            at += high - low
        assert at <= size + 2 * bins
        np.testing.assert_allclose(matrix, weights_of(start, each, bins, grid, size), 1e-9, 1e-9)


def test_numbers_that_are_tensors_or_of_numpy_and_such_that_are_none() -> None:
    x, rois = flow.ones(1, 1, 4, 4), flow.tensor([[0.0, 0.0, 0.0, 2.0, 2.0]])
    for scale, count in ((np.float32(0.5), np.int64(2)), (flow.tensor(0.5), flow.tensor(2))):
        assert flow.roi_align(x, rois, scale, count, count, count, True).shape == (1, 1, 2, 2)
        boxes_left = flow.nms(rois[:, 1:], flow.ones(1), scale)
        assert boxes_left.tolist() == [0]
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="spatial_scale is finite"):
            flow.roi_align(x, rois, wrong, 1, 1, 1, True)
    with pytest.raises(ValueError, match="sampling_ratio is below"):
        flow.roi_align(x, rois, 1.0, 1, 1, 1 << 31, True)
    with pytest.raises(TypeError, match="spatial_scale: expected a number, got str"):
        flow.roi_align(x, rois, "1", 1, 1, 1, True)


def test_planes_without_room_for_their_weights() -> None:
    with pytest.raises(ValueError, match="cut the planes"):
        flow.roi_align(
            flow.ones(1, 1, 1, 1 << 20, device="meta"), flow.ones(1, 5, device="meta"),
            1.0, 1, 1, 1, True,
        )  # fmt: skip


def test_any_number_of_threads_gives_the_same_bits(rng: np.random.Generator) -> None:
    x, rois = rng.standard_normal((2, 40, 16, 16)), regions_of(rng, 60, 2, 16)
    outcomes, threads = [], flow.get_num_threads()
    try:
        for count in (1, 3):
            flow.set_num_threads(count)
            inputs = flow.tensor(x, dtype=flow.float32, requires_grad=True)
            out = flow.roi_align(inputs, flow.tensor(rois).float(), 1.0, 7, 7, 2, True)
            (out * out).sum().backward()
            outcomes.append((out.detach().numpy().tobytes(), inputs.grad.numpy().tobytes()))
    finally:
        flow.set_num_threads(threads)
    assert outcomes[0] == outcomes[1]


def test_in_a_graph(rng: np.random.Generator) -> None:
    rois = flow.tensor(regions_of(rng, 5, 2, 8)).float()

    def step(x: Any) -> Any:
        leaf = x.detach().requires_grad_()
        with flow.enable_grad():
            out = flow.roi_align(leaf, rois, 0.5, 2, 2, -1, False)
            return out, flow.autograd.grad(out.pow(2).sum(), leaf)[0]

    graph = flow.compile(step)
    for _ in range(2):
        x = flow.tensor(rng.standard_normal((2, 3, 6, 7))).float()
        for ours, eager in zip(graph(x), step(x), strict=True):
            assert ours.tolist() == eager.tolist()
