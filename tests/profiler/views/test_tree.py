"""Modules as a tree: sums over the modules below, and a model's shapes and parameters."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentTypeError
from flowvm.profiler import profile


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.drop(self.norm(self.second(self.first(x).relu())))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 3)

    def forward(self, x: flow.Tensor) -> tuple[flow.Tensor, None]:
        return self.head(self.blocks(x)), None


def test_a_model_is_one_tree_whoever_else_is_alive() -> None:
    """Recorded as `Net(2)`, or below a larger model that was called before."""
    larger, another = flow.nn.Sequential(Net()), Net()
    with flow.profiler.profile(level=2):
        another(flow.ones(4, 8)), larger(flow.ones(4, 8))
    for model in (Net(), larger[0]):
        view = flow.summary(model, flow.ones(4, 8))
        assert [b.path for b in view.branches if b.depth == 0] == ["Net"]
        assert view.branches[0].flops > 0
        assert view.branches[0].kind == "Net"


def test_a_model() -> None:
    flow.manual_seed(0)
    model, x = Net(), flow.ones(4, 8)
    model.blocks[1].eval()
    before = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    drawn = flow.get_rng_state().tolist()
    view = flow.summary(model, x)
    rows = {b.path: b for b in view.branches}
    assert list(rows)[:4] == ["Net", "Net.blocks", "Net.blocks.0", "Net.blocks.0.first"]
    assert [(b.kind, b.shape) for b in view.branches[:4]] == [
        ("Net", "[4, 3], None"), ("Sequential", "[4, 8]"), ("Block", "[4, 8]"),
        ("Linear", "[4, 16]"),
    ]  # fmt: skip
    assert rows["Net"].parameters == sum(p.numel() for p in model.parameters())
    assert rows["Net.blocks.0.first"].parameters == 8 * 16 + 16
    # of products: 2 m n k each
    assert rows["Net.blocks.0.first"].flops == 2 * 4 * 8 * 16
    assert rows["Net.blocks"].flops == 4 * 2 * 4 * 8 * 16
    assert rows["Net"].flops == rows["Net.blocks"].flops + 2 * 4 * 8 * 3
    for name in ("run", "nbytes"):
        assert getattr(rows["Net"], name) >= sum(
            getattr(rows[p], name) for p in ("Net.blocks", "Net.head")
        )
    assert rows["Net.blocks.0.drop"].run == 0
    for k, v in model.state_dict().items():
        np.testing.assert_array_equal(v.numpy(), before[k])
    assert flow.get_rng_state().tolist() == drawn
    assert model.training
    assert model.blocks[0].training
    assert not model.blocks[1].training
    assert not any(m._forward_hooks for m in model.modules())
    assert view.to_dict()["branches"][0]["path"] == "Net"


@pytest.mark.parametrize("width", [80, 100, 160])
def test_its_screen(width: int) -> None:
    text = flow.summary(Net(), flow.ones(4, 8)).screen(width).plain(ascii_only=True)
    assert text.isascii()
    assert max(map(len, text.split("\n"))) <= width
    assert "  blocks" in text
    assert "params" in text


def test_a_run_with_backward() -> None:
    model, x = Net(), flow.ones(4, 8)
    with profile() as p:
        forward = model(x)[0]
        (forward * 2).sum().backward()
    view = p.tree()
    rows = {b.path: b for b in view.branches}
    assert view.outside > 0
    assert rows["Net"].run + view.outside == view.total
    assert rows["Net.head"].flops == 3 * 2 * 4 * 8 * 3  # forward, and both gradients
    assert "outside of modules" in str(view)
    assert "params" not in str(view)


def test_what_raises_leaves_the_model_as_it_was() -> None:
    model = Net()
    with pytest.raises(RuntimeError):
        flow.summary(model, flow.ones(4, 9))
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())
    with pytest.raises(ArgumentTypeError, match="Module"):
        flow.summary(len, flow.ones(1))
    with profile() as p:
        flow.ones(2) + 1
    assert "no module ran" in str(p.tree())
