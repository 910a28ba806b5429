"""The gradient of `as_strided`, read and written through, whatever lies in memory how."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import AutogradError, ShapeError

SIZES = ((), (3,), (2, 2), (3, 2), (4, 1), (0, 2))
STRIDES = ((), (2,), (3, 1), (1, 3), (1, 1), (2, 1))
OF = {
    "as it is": lambda x: x,
    "a base of columns": lambda x: x.t() * 1.0,
    "rows": lambda x: x[1:],
    "every other": lambda x: x[:, ::2],
    "transposed": lambda x: x.t(),
    "elements on each other": lambda x: x[:, :1].expand(3, 5),
}


def _overlaps(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    at = np.lib.stride_tricks.as_strided(np.arange(64), size, [8 * s for s in stride])
    return len(np.unique(at)) < at.size


def _gradient(lib: Any, of: str, size: Any, stride: Any, offset: int | None, way: str) -> Any:
    def numbers(seed: int, shape: Any) -> Any:
        return lib.from_numpy(np.random.default_rng(seed).uniform(-1, 1, tuple(shape)))

    leaf = numbers(0, (3, 4)).requires_grad_()
    x = OF[of](leaf * 1.0)
    shown = x.as_strided(size, stride, offset)
    factor = numbers(1, size)
    if way == "written":
        shown.mul_(0.5 * factor)
    loss = (shown * factor).sum() + (x * numbers(2, x.shape) * x).sum()
    loss.backward()
    return leaf.grad.numpy()


@pytest.mark.parametrize("way", ["read", "written"])
@pytest.mark.parametrize("of", OF)
def test_as_in_pytorch(of: str, way: str) -> None:
    torch = pytest.importorskip("torch")
    rng, compared = random.Random(of + way), 0
    for size, stride in zip(SIZES, STRIDES, strict=True):
        for offset in (None, 0, rng.randrange(1, 5)):
            if way == "written" and _overlaps(size, stride):
                continue  # which write is last is nobody's promise
            try:
                expected = _gradient(torch, of, size, stride, offset, way)
            except RuntimeError:  # beyond the memory
                continue
            actual = _gradient(flow, of, size, stride, offset, way)
            np.testing.assert_allclose(actual, expected, err_msg=f"{size} {stride} {offset}")
            compared += 1
    assert compared >= 8


def test_second_gradient() -> None:
    x = flow.randn(4, 3, dtype=flow.float64, requires_grad=True)
    assert flow.autograd.gradgradcheck(
        lambda t: (t.t() * t.t()).as_strided((2, 3), (3, 2), 1), (x,)
    )


def test_a_change_of_a_view_of_columns() -> None:
    x = flow.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    columns = x.t() * 1.0
    assert not columns.is_contiguous()
    columns[1].mul_(flow.tensor([5.0, 7.0]))
    columns.sum().backward()
    assert x.grad.tolist() == [[1.0, 5.0], [1.0, 7.0]]


WRITES = {
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(flow.ones(3, 4)),
    "copy_": lambda x: x.copy_(flow.ones(3, 4)),
    "normal_": lambda x: x.normal_(),
    "relu_": lambda x: x.relu_(),
    "out": lambda x: flow.add(flow.ones(3, 4), 1, out=x),
    "index_add_": lambda x: x.index_add_(0, flow.tensor([0]), flow.ones(1, 4)),
}


@pytest.mark.parametrize("write", WRITES)
def test_elements_on_each_other_are_not_written(write: str) -> None:
    x = flow.zeros(1, 4)
    with pytest.raises(ShapeError, match=r"strides \(0, 1\).*clone\(\)"):
        WRITES[write](x.expand(3, 4))
    assert x.tolist() == [[0.0] * 4]


def test_elements_on_each_other_may_all_become_one_number() -> None:
    x = flow.zeros(1, 4)
    assert x.expand(3, 4).fill_(2).tolist() == [[2.0] * 4] * 3
    assert x.expand(3, 4).zero_().tolist() == [[0.0] * 4] * 3


def test_a_recorded_change_of_elements_on_each_other() -> None:
    factor = flow.ones(2, requires_grad=True)
    memory = np.lib.stride_tricks.as_strided(np.ones(4), (3, 2), (8, 8))
    base = flow.from_dlpack(memory)
    with pytest.raises(AutogradError, match="lie on each other"):
        base[0].mul_(factor)
    base[0].mul_(2)  # without a gradient it is its own affair
    assert base.tolist() == [[2.0, 2.0], [2.0, 1.0], [1.0, 1.0]]
