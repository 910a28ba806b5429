"""deform_conv2d: more windows and channels than the kernels take at a time, offsets that lead to
elements, out of the plane, and nowhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import AutogradError
from flowvm.ops.planes.deform_conv import _reference

F = flow.nn.functional


def arguments(rng: np.random.Generator, groups: int, apart: int, kernel: int) -> dict[str, Any]:
    """Return arguments of 17 x 17 windows and 10 channels in each group."""
    c, taps, space = 10 * groups, kernel * kernel, (17, 17)
    planes, between = 17 + kernel - 1, (2, 2 * groups * taps, *space)
    return {
        "input": rng.standard_normal((2, c, planes, planes)),
        # between pixels: at one a value has two slopes
        "offset": rng.integers(-3, 3, between) + rng.uniform(0.01, 0.99, between),
        "weight": rng.standard_normal((2 * apart, c // apart, kernel, kernel)),
        "bias": rng.standard_normal(2 * apart),
        "mask": rng.uniform(-1, 1, (2, groups * taps, *space)),
    }


@pytest.mark.parametrize(("groups", "apart", "kernel"), [(1, 2, 1), (2, 1, 1), (1, 1, 2)])
def test_values_and_gradients(
    groups: int, apart: int, kernel: int, rng: np.random.Generator
) -> None:
    inputs = arguments(rng, groups, apart, kernel)
    tensors = {k: flow.tensor(v, requires_grad=True) for k, v in inputs.items()}
    out = F.deform_conv2d(**tensors)
    upstream = rng.standard_normal(tuple(out.shape))
    out.backward(flow.tensor(upstream))
    one = {k: v[:1] if k in ("input", "offset", "mask") else v for k, v in inputs.items()}
    np.testing.assert_allclose(
        out[:1].detach().numpy(), _reference(one.pop("input"), **one), 1e-9, 1e-10
    )
    with flow.no_grad():
        for name, value in inputs.items():
            way = rng.standard_normal(value.shape)
            ends = []
            for step in (1e-6, -1e-6):
                moved = {**tensors, name: flow.tensor(value + step * way)}
                ends.append((F.deform_conv2d(**moved).numpy() * upstream).sum())
            slope = (ends[0] - ends[1]) / 2e-6
            gradient = tensors[name].grad
            assert gradient is not None
            np.testing.assert_allclose((gradient.numpy() * way).sum(), slope, 2e-5, 1e-4, name)


@pytest.mark.parametrize("options", [(2, 1, 1), ((1, 2), (0, 2), (2, 1)), (3, 0, 1)])
def test_without_offsets_it_is_a_convolution(options: Any, rng: np.random.Generator) -> None:
    x = flow.tensor(rng.standard_normal((2, 4, 9, 8)))
    weight, bias = flow.tensor(rng.standard_normal((6, 2, 3, 2))), flow.tensor(rng.random(6))
    expected = F.conv2d(x, weight, bias, *options, groups=2)
    offset = flow.zeros(2, 12, *expected.shape[2:], dtype=flow.float64)
    out = F.deform_conv2d(x, offset, weight, bias, *options)
    np.testing.assert_allclose(out.numpy(), expected.numpy(), 1e-10, 1e-12)


def test_whole_offsets_and_places_outside() -> None:
    x = flow.arange(12.0).reshape(1, 1, 3, 4).requires_grad_()
    places = [(0.0, 1.0), (-1.0, 0.0), (2.5, 0.0), (3.0, 0.0), (0.0, -0.5), (0.0, 1e30)]
    for (down, along), value in zip(places, (1.0, 0.0, 4.0, 0.0, 0.0, 0.0), strict=True):
        offset = flow.tensor([down, along]).reshape(1, 2, 1, 1).requires_grad_()
        out = F.deform_conv2d(x, offset, flow.ones(1, 1, 1, 1), None, 4)
        assert out.item() == value, (down, along)
        out.backward()
        assert offset.grad is not None
        assert np.isfinite(offset.grad.numpy()).all()
    offset = flow.zeros(1, 2, 1, 1, requires_grad=True)  # on an element: of what lies behind it
    F.deform_conv2d(x, offset, flow.ones(1, 1, 1, 1), None, 4).backward()
    assert offset.grad is not None
    assert offset.grad.flatten().tolist() == [4.0, 1.0]


def test_an_offset_that_is_no_number_gives_none() -> None:
    offset = flow.zeros(1, 2, 2, 2)
    offset[0, 1, 0, 1] = np.nan
    out = F.deform_conv2d(flow.ones(1, 3, 2, 2), offset, flow.ones(1, 3, 1, 1))
    assert np.isnan(out.numpy()).reshape(-1).tolist() == [False, True, False, False]


def test_what_is_not_read_does_not_count() -> None:
    x = flow.tensor([[[[np.inf, 1.0, 2.0]]]])
    offset = flow.zeros(1, 2, 1, 1)
    offset[0, 1] = 1.5
    assert F.deform_conv2d(x, offset, flow.ones(1, 1, 1, 1), None, 3).item() == 1.5


def test_any_number_of_threads_gives_the_same_bits(rng: np.random.Generator) -> None:
    options = {k: v.astype(np.float32) for k, v in arguments(rng, 2, 1, 2).items()}
    outcomes, threads = [], flow.get_num_threads()
    try:
        for count in (1, 3):
            flow.set_num_threads(count)
            tensors = {k: flow.tensor(v, requires_grad=True) for k, v in options.items()}
            out = F.deform_conv2d(**tensors)
            out.pow(2).sum().backward()
            grads = [t.grad for t in tensors.values()]
            outcomes.append([t.detach().numpy().tobytes() for t in (out, *grads) if t is not None])
    finally:
        flow.set_num_threads(threads)
    assert len(outcomes[0]) == 6
    assert outcomes[0] == outcomes[1]


def test_second_derivatives(rng: np.random.Generator) -> None:
    x = flow.tensor(rng.standard_normal((1, 4, 3, 4)), requires_grad=True)
    weight = flow.tensor(rng.standard_normal((2, 2, 2, 2)), requires_grad=True)
    offset, mask = (flow.tensor(rng.uniform(0.1, 0.9, (1, n, 2, 3))) for n in (16, 8))
    assert flow.autograd.gradgradcheck(
        lambda x, weight: F.deform_conv2d(x, offset, weight, mask=mask), (x, weight)
    )
    # by x, and then by where it is read
    leaf = offset.clone().requires_grad_()
    assert flow.autograd.gradcheck(
        lambda at, factor: flow.autograd.grad(
            F.deform_conv2d(x, at, weight, mask=factor).sum(), x, create_graph=True
        )[0],
        (leaf, mask.clone().requires_grad_()),
    )
    out = F.deform_conv2d(x, leaf, weight).sum()
    (g,) = flow.autograd.grad(out, leaf, create_graph=True)
    with pytest.raises(AutogradError, match="offset and mask have no derivative"):
        g.sum().backward()
