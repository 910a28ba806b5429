"""Every optimizer against PyTorch: its own samples of options, from the same weights, 20 steps, and
saved states that go from one to the other.
"""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn, optim

torch = pytest.importorskip("torch")
common = pytest.importorskip("torch.testing._internal.common_optimizers")

STEPS = 20
SHAPES: dict[str, list[tuple[int, ...]]] = {"Muon": [(5, 4), (4, 3)], "LBFGS": [(5, 3), (3,)]}
SAMPLES = [
    pytest.param(info.optim_cls.__name__, sample.kwargs, id=f"{info.optim_cls.__name__}-{k}")
    for info in common.optim_db
    if info.optim_cls.__name__ != "SparseAdam"
    for k, sample in enumerate(info.optim_inputs_func("cpu"))
]


def of(lib: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Options in which tensors are a library's."""
    return {
        name: lib.tensor(value.item(), dtype=lib.float32)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in options.items()
    }


class Problem:
    """A small regression whose weights an optimizer changes."""

    def __init__(self, lib: Any, name: str, options: dict[str, Any], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lib = lib
        self.x = lib.tensor(rng.normal(size=(16, 5)))
        self.y = lib.tensor(rng.normal(size=(16, 3)))
        shapes = SHAPES.get(name, [(5, 4), (4,), (4, 3)])
        self.params = [lib.nn.Parameter(lib.tensor(rng.normal(size=s))) for s in shapes]
        self.opt = getattr(lib.optim, name)(self.params, **of(lib, options))

    def loss(self) -> Any:
        self.opt.zero_grad()
        if len(self.params[-1].shape) == 1:  # convex: a line search magnifies what differs
            matrix, offset = self.params
            output = self.x @ matrix + offset
        else:
            first, *bias, last = self.params
            output = self.lib.tanh(self.x @ first + (bias[0] if bias else 0.0)) @ last
        loss = ((output - self.y) ** 2).mean()
        loss.backward()
        return loss

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            if type(self.opt).__name__ == "LBFGS":
                self.opt.step(self.loss)
            else:
                self.loss()
                self.opt.step()

    def values(self) -> list[np.ndarray]:
        return [np.array(p.detach().numpy()) for p in self.params]


def tolerance(name: str, options: dict[str, Any]) -> float:
    if name == "Muon":  # bfloat16 inside
        return 2e-2
    return 1e-9 if name == "LBFGS" else 1e-12  # it divides by what is left of gradients


def alike(ours: Problem, theirs: Problem, tol: float) -> None:
    for a, b in zip(ours.values(), theirs.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize(("name", "options"), SAMPLES)
@pytest.mark.product(3)
def test_twenty_steps(name: str, options: dict[str, Any], rng: np.random.Generator) -> None:
    seed = int(rng.integers(1 << 31))
    ours, theirs = (Problem(lib, name, options, seed) for lib in (flow, torch))
    steps = 4 if name == "LBFGS" else STEPS  # of twenty evaluations and more
    ours.step(steps)
    theirs.step(steps)
    alike(ours, theirs, tolerance(name, options))


def to_flow(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return flow.tensor(tree.detach().numpy().copy())
    if isinstance(tree, dict):
        return {key: to_flow(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(to_flow(value) for value in tree)
    return tree


def to_torch(tree: Any) -> Any:
    if isinstance(tree, flow.Tensor):
        return torch.tensor(tree.detach().numpy().copy())
    if isinstance(tree, dict):
        return {key: to_torch(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(to_torch(value) for value in tree)
    return tree


NAMES = sorted({sample.values[0] for sample in SAMPLES} - {"Muon"})


@pytest.mark.parametrize("name", NAMES)
def test_states_go_both_ways(name: str, rng: np.random.Generator) -> None:
    seed = int(rng.integers(1 << 31))
    ours, theirs = (Problem(lib, name, {}, seed) for lib in (flow, torch))
    ours.step(3)
    theirs.step(3)
    assert set(ours.opt.state_dict()["param_groups"][0]) >= set(
        theirs.opt.state_dict()["param_groups"][0]
    )
    mine, other = ours.opt.state_dict(), theirs.opt.state_dict()
    for number, entry in other["state"].items():
        assert set(entry) - {"al"} == set(mine["state"][number]), number
    ours.opt.load_state_dict(to_flow(copy.deepcopy(other)))
    theirs.opt.load_state_dict(to_torch(copy.deepcopy(mine)))
    ours.step(3)
    theirs.step(3)
    alike(ours, theirs, 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_theirs(name: str) -> None:
    ours, theirs = (Problem(lib, name, {}, 0).opt.defaults for lib in (flow, torch))
    assert {k: v for k, v in ours.items() if k in theirs} == theirs


@pytest.mark.parametrize("name", [n for n in NAMES if n != "LBFGS"])
def test_a_graph_steps_alike(name: str, rng: np.random.Generator) -> None:
    seed = int(rng.integers(1 << 31))
    eager, other = (Problem(flow, name, {}, seed) for _ in range(2))

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.holder = nn.ParameterList(other.params)
            self.add_optimizer(other.opt)

        def build(self, x: Any, y: Any) -> Any:
            first, bias, last = other.params
            loss = ((flow.tanh(x @ first + bias) @ last - y) ** 2).mean()
            loss.backward()
            return loss

    train = Train()
    for _ in range(8):
        eager.step()
        train(other.x, other.y)
    for a, b in zip(eager.values(), other.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    assert len(train._plans) == 1


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_pickles_go_on(name: str) -> None:
    ours = Problem(flow, name, {}, 1)
    ours.step(2)
    params, opt = copy.deepcopy((ours.params, ours.opt))
    twin = copy.copy(ours)
    twin.params, twin.opt = params, opt
    ours.step(2)
    twin.step(2)
    alike(ours, twin, 1e-12)
    assert pickle.loads(pickle.dumps(opt.defaults)) == opt.defaults


def test_lbfgs_is_no_graphs() -> None:
    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.add_optimizer(optim.LBFGS([nn.Parameter(flow.ones(2))]))

    with pytest.raises(ValueError, match="LBFGS cannot be a graph's: it decides by losses"):
        Train()
