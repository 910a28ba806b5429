"""OneFlow's options of parameter groups: gradients that a graph clips, rates that it scales.

Eager code has a rule for them, and unknown names are errors.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import flowvm as flow

nn, optim = flow.nn, flow.optim
OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda groups: optim.SGD(groups, lr=0.1, momentum=0.9),
    "Adam": lambda groups: optim.Adam(groups, lr=0.1),
    "AdamW": lambda groups: optim.AdamW(groups, lr=0.1),
    "RMSprop": lambda groups: optim.RMSprop(groups, lr=0.1),
    "LAMB": lambda groups: optim.LAMB(groups, lr=0.1),
    "Adagrad": lambda groups: optim.Adagrad(groups, lr=0.1),
}
NORMS = (2.0, 1, 3.0, float("inf"), "inf")


class Scaled(nn.Module):
    """A loss whose gradients are far larger than the norms that they are clipped to."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(1)
        self.a, self.b, self.c = (
            nn.Parameter(flow.tensor(rng.standard_normal(n).astype(np.float32))) for n in (3, 4, 2)
        )

    def forward(self, x: Any) -> Any:
        return (x * 5 * self.a).sum() + (self.b * self.b).sum() * 3 + (self.c * x[0]).sum() / 99

    def copies(self) -> list[Any]:
        """Copies of the parameters."""
        return [p.detach().numpy().copy() for p in self.parameters()]


def groups_of(model: Scaled, options: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"params": [model.a, model.b], **options}, {"params": [model.c]}]


class Train(nn.Graph):
    def __init__(
        self, model: Any, optimizer: Any, schedule: Any = None, scaler: Any = None
    ) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=schedule)
        if scaler is not None:
            self.set_grad_scaler(scaler)

    def build(self, x: Any) -> Any:
        loss = self.model(x)
        loss.backward()
        return loss


def batches() -> list[Any]:
    return [flow.tensor([1.0, -2.0, 0.5]) * k for k in (1, 3, -2, 5)]


def by_hand(name: str, scale: float = 1.0, norm: Any = None, steps: int = 4) -> list[Any]:
    """The parameters after eager steps with the options done by hand."""
    model = Scaled()
    optimizer = OPTIMIZERS[name](groups_of(model, {"lr": 0.1 * scale}))
    for x in batches()[:steps]:
        optimizer.zero_grad()
        model(x).backward()
        if norm is not None:
            nn.utils.clip_grad_norm_([model.a, model.b], 1.5, norm)
        optimizer.step()
    return model.copies()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("norm", NORMS)
def test_a_graph_clips_by_group(name: str, norm: Any) -> None:
    expected, model = by_hand(name, norm=norm), Scaled()
    options = {"clip_grad_max_norm": 1.5, "clip_grad_norm_type": norm}
    graph = Train(model, OPTIMIZERS[name](groups_of(model, options)))
    for x in batches():
        graph(x)
    for ours, theirs in zip(model.copies(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 2e-5, 1e-6)
    assert not np.allclose(expected[0], by_hand(name)[0]) or name in ("Adam", "AdamW", "LAMB")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_graph_scales_rates_and_eager_code_does_not(name: str) -> None:
    for way, scale in (("graph", 0.25), ("eager", 1.0)):
        expected, model = by_hand(name, scale), Scaled()
        optimizer = OPTIMIZERS[name](groups_of(model, {"lr_scale": 0.25}))
        graph = Train(model, optimizer)
        for x in batches():
            if way == "graph":
                graph(x)
                continue
            optimizer.zero_grad()
            model(x).backward()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optimizer.step()
        for ours, theirs in zip(model.copies(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, 2e-5, 1e-6)
        assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]


def test_eager_code_clips_where_it_says_so() -> None:
    expected, model = by_hand("SGD", norm=2.0), Scaled()
    optimizer = OPTIMIZERS["SGD"](groups_of(model, {"clip_grad_max_norm": 1.5}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in batches():
            optimizer.zero_grad()
            model(x).backward()
            optimizer.clip_grad()
            optimizer.step()
    for ours, theirs in zip(model.copies(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_schedule_changes_a_scaled_rate() -> None:
    rates = []
    for scale in (None, 0.5):
        model = Scaled()
        options = {"lr": 0.05} if scale is None else {"lr": 0.1, "lr_scale": scale}
        optimizer = optim.SGD(groups_of(model, options), lr=0.1)
        schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        graph = Train(model, optimizer, schedule)
        for x in batches():
            graph(x)
        rates.append(model.copies())
        assert len(graph.plans) == 1
    for ours, theirs in zip(*rates, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-6)


@pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")
def test_options_that_change_between_calls() -> None:
    model = Scaled()
    optimizer = optim.SGD(
        [{"params": [model.a], "lr_scale": 1.0, "clip_grad_max_norm": 1.0}], lr=1.0
    )
    graph = Train(model, optimizer)
    for scale, largest in ((1.0, 1.0), (0.5, 1.0), (0.5, 3.0), (1.0, 1.0)):
        optimizer.param_groups[0].update(lr_scale=scale, clip_grad_max_norm=largest)
        before = model.a.detach().numpy().copy()
        graph(batches()[0])
        moved = float(np.linalg.norm(model.a.detach().numpy() - before))
        assert moved == pytest.approx(scale * largest, rel=1e-4)


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    expected, model = by_hand("SGD", norm=2.0), Scaled()
    optimizer = OPTIMIZERS["SGD"](groups_of(model, {"clip_grad_max_norm": 1.5}))
    graph = Train(model, optimizer, scaler=flow.amp.GradScaler(init_scale=2.0**10))
    for x in batches():
        graph(x)
    for ours, theirs in zip(model.copies(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 2e-5, 1e-6)


def test_an_eager_step_names_what_it_leaves_out_once() -> None:
    model = Scaled()
    optimizer = optim.SGD(groups_of(model, {"lr_scale": 0.5, "clip_grad_max_norm": 1.0}), lr=0.1)
    graph = Train(model, optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph(batches()[0])
        assert not caught
        for _ in range(2):
            optimizer.step()
    texts = [str(w.message) for w in caught]
    assert len(texts) == 2
    assert "clip_grad_max_norm: call clip_grad()" in texts[0]
    assert "lr_scale" in texts[1]


def test_names_that_are_no_option_are_named() -> None:
    for name, option in (
        ("weight_decy", "weight_decay"),
        ("clip_grad_max_norms", "clip_grad_max_norm"),
    ):
        with pytest.warns(UserWarning, match=f"no option '{name}'.*{option}"):
            optim.SGD([{"params": [nn.Parameter(flow.ones(1))], name: 0.5}], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = {"params": [nn.Parameter(flow.ones(1))], "name": "head", "layer_id": 3}
        assert optim.SGD([group], lr=0.1).param_groups[0]["layer_id"] == 3


@pytest.mark.parametrize(
    "options",
    [
        {"clip_grad_max_norm": -1.0}, {"clip_grad_max_norm": "much"}, {"clip_grad_norm_type": 2.0},
        {"clip_grad_max_norm": 1.0, "clip_grad_norm_type": "two"}, {"lr_scale": -2},
        {"lr_scale": None},
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        optim.SGD([{"params": [nn.Parameter(flow.ones(1))], **options}], lr=0.1)
