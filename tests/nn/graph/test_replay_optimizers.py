"""Steps of every optimizer with every option and every schedule, by a graph and eagerly:
parameters, the optimizer's state and the rates, bit for bit where the kernels are the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from tests.graph.helpers import Trained, arrays_in, close, exact, same_bits

nn, optim = flow.nn, flow.optim
SCHED = optim.lr_scheduler
STEPS = 4

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD-decay-maximize": ("SGD", {"lr": 0.1, "weight_decay": 0.2, "maximize": True}),
    "SGD-momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "SGD-dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1}),
    "SGD-nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "SGD-nesterov-decay": (
        "SGD",
        {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.02},
    ),
    "Adam": ("Adam", {"lr": 0.1}),
    "Adam-eps": ("Adam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.2}),
    "Adam-amsgrad": ("Adam", {"lr": 0.1, "amsgrad": True, "maximize": True}),
    "Adam-uncorrected": ("Adam", {"lr": 0.1, "do_bias_correction": False}),
    "AdamW-uncorrected": ("AdamW", {"lr": 0.1, "do_bias_correction": False}),
    "AdamW": ("AdamW", {"lr": 0.1}),
    "AdamW-amsgrad": ("AdamW", {"lr": 0.1, "weight_decay": 0.3, "amsgrad": True}),
    "AdamW-maximize": ("AdamW", {"lr": 0.1, "betas": (0.7, 0.8), "eps": 1e-6, "maximize": True}),
    "Adam-decoupled": ("Adam", {"lr": 0.1, "weight_decay": 0.2, "decoupled_weight_decay": True}),
    "Adadelta": ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
    "Adadelta-maximize": ("Adadelta", {"maximize": True}),
    "Adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-6}),
    "Adagrad-maximize": ("Adagrad", {"initial_accumulator_value": 0.3, "maximize": True}),
    "RMSprop": ("RMSprop", {"lr": 0.05, "alpha": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
    "RMSprop-centered": ("RMSprop", {"momentum": 0.7, "centered": True, "maximize": True}),
    "Adamax": ("Adamax", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1}),
    "Adamax-maximize": ("Adamax", {"maximize": True}),
    "NAdam": ("NAdam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1}),
    "NAdam-decoupled": (
        "NAdam",
        {
            "momentum_decay": 0.01,
            "weight_decay": 0.1,
            "decoupled_weight_decay": True,
            "maximize": True,
        },
    ),
    "RAdam": ("RAdam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1}),
    "RAdam-decoupled": (
        "RAdam",
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
    ),
    "LAMB": ("LAMB", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1}),
    "LAMB-plain": (
        "LAMB",
        {
            "adam_w_mode": False,
            "do_bias_correction": False,
            "amsgrad": False,  # OneFlow's has no other
            "weight_decay": 0.1,
            "maximize": True,
        },
    ),
    "Adafactor": ("Adafactor", {"lr": 0.1, "beta2_decay": -0.6, "eps": (1e-12, 1e-2), "d": 1.5}),
    "Adafactor-maximize": ("Adafactor", {"weight_decay": 0.1, "maximize": True}),
    "Muon": ("Muon", {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.8, "nesterov": False}),
    "Muon-adjusted": (
        "Muon",
        {
            "ns_coefficients": (3.4, -4.7, 2.0),
            "eps": 1e-6,
            "ns_steps": 3,
            "adjust_lr_fn": "match_rms_adamw",
        },
    ),
    "ASGD": ("ASGD", {"lr": 0.1, "lambd": 0.01, "alpha": 0.7, "t0": 2, "weight_decay": 0.1}),
    "ASGD-maximize": ("ASGD", {"maximize": True}),
    "Rprop": ("Rprop", {"lr": 0.1, "etas": (0.4, 1.3), "step_sizes": (1e-5, 5.0)}),
    "Rprop-maximize": ("Rprop", {"maximize": True}),
}
PLANS = {
    "Adagrad": 2,  # the state is there before a gradient is: what is not used stays at step 0
    "Adagrad-maximize": 2,
    "ASGD": 2,  # averaging begins at step t0
}
WITHOUT_MEANING = {"foreach", "capturable", "differentiable", "fused", "contiguous_params"}
# one calls a closure as often as it likes, the other takes sparse gradients
NO_GRAPHS = {"LBFGS", "SparseAdam"}

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: SCHED.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: SCHED.MultiStepLR(o, [1, 3], 0.3),
    "ConstantLR": lambda o: SCHED.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: SCHED.LinearLR(o, 0.2, 1.0, 3),
    "ExponentialLR": lambda o: SCHED.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: SCHED.PolynomialLR(o, 5, 2.0),
    "CosineAnnealingLR": lambda o: SCHED.CosineAnnealingLR(o, 3, 0.01),
    "CosineAnnealingWarmRestarts": lambda o: SCHED.CosineAnnealingWarmRestarts(o, 2),
    "LambdaLR": lambda o: SCHED.LambdaLR(o, lambda k: 1.0 / (1 + k)),
    "OneCycleLR": lambda o: SCHED.OneCycleLR(o, 0.3, total_steps=STEPS + 2),
    "SequentialLR": lambda o: SCHED.SequentialLR(
        o, [SCHED.ConstantLR(o, 0.1, 1), SCHED.ExponentialLR(o, 0.5)], [2]
    ),
    "ChainedScheduler": lambda o: SCHED.ChainedScheduler(
        [SCHED.ConstantLR(o, 0.1, 2), SCHED.ExponentialLR(o, 0.9)]
    ),
    "MultiplicativeLR": lambda o: SCHED.MultiplicativeLR(o, lambda k: 0.9),
    "CyclicLR": lambda o: SCHED.CyclicLR(o, 0.01, 0.2, 2),
    "CosineDecayLR": lambda o: SCHED.CosineDecayLR(o, 3, 0.1),
    "WarmupLR": lambda o: SCHED.WarmupLR(o, warmup_factor=0.1, warmup_iters=3),
}


class _Model(nn.Module):
    """Parameters of several shapes: large, 0-d, empty, one that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 40), nn.Linear(40, 3)
        self.scale = nn.Parameter(flow.tensor(1.5))
        self.nothing = nn.Parameter(flow.zeros(0, 3))
        self.unused = nn.Parameter(flow.ones(4))

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).tanh()) * self.scale + self.nothing.sum()


def batches() -> list[tuple[Any, ...]]:
    return [(flow.randn(5, 6), flow.randn(5, 3)) for _ in range(STEPS)]


def mse(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")
@pytest.mark.product(2)
def test_steps_with_every_option(name: str, seed: int) -> None:
    kind, options = OPTIONS[name]

    def make() -> tuple[Any, Any]:
        model = _Model()
        matrices = (p for p in model.parameters() if p.ndim == 2)
        chosen = matrices if kind == "Muon" else model.parameters()
        return model, getattr(optim, kind)(chosen, **options)

    training = Trained(make, batches, mse, seed)
    expected = training.eagerly()
    same_bits(training.by_graph(exact), expected, f"{name}, seed {seed}")
    close(training.by_graph(), expected, f"{name}, all passes, seed {seed}", scale=200)
    assert len(training.graph.plans) == PLANS.get(name, 1)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_groups_with_options_of_their_own(kind: str, seed: int) -> None:
    def make() -> tuple[Any, Any]:
        model = _Model()
        groups = [
            {"params": model.first.parameters(), "weight_decay": 0.3},
            {"params": [*model.second.parameters(), model.scale], "lr": 0.02},
        ]
        return model, getattr(optim, kind)(groups, lr=0.1)

    training = Trained(make, batches, mse, seed)
    expected = training.eagerly()
    same_bits(training.by_graph(exact), expected, f"seed {seed}")
    close(training.by_graph(), expected, f"all passes, seed {seed}", scale=200)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_float16(kind: str, seed: int) -> None:
    def make() -> tuple[Any, Any]:
        model = nn.Linear(6, 3).half()
        return model, getattr(optim, kind)(model.parameters(), lr=0.1)

    def halves() -> list[tuple[Any, ...]]:
        return [(x.half(), y.half()) for x, y in batches()]

    training = Trained(make, halves, mse, seed)
    same_bits(training.by_graph(exact), training.eagerly(), f"seed {seed}")


class Step(nn.Graph):
    """A training step of some modules, one after the other, with some optimizers."""

    def __init__(self, modules: list[Any], optimizers: list[Any], schedule: Any = None) -> None:
        super().__init__()
        self.model = nn.Sequential(*modules)
        for optimizer in optimizers:
            self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x: Any, y: Any) -> Any:
        loss = mse(self.model, x, y)
        loss.backward()
        return loss

    def eagerly(self, x: Any, y: Any) -> None:
        """Take the step without a graph."""
        for optimizer, _ in self._optimizers:
            optimizer.zero_grad()
        mse(self.model, x, y).backward()
        for optimizer, schedule in self._optimizers:
            optimizer.step()
            if schedule is not None:
                schedule.step()


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "SGD") for name in SCHEDULES), ("OneCycleLR", "AdamW")]
)
def test_every_schedule(name: str, kind: str, seed: int) -> None:
    results = []
    for captured in (False, True):
        flow.manual_seed(seed)
        model = nn.Linear(6, 3)
        options = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(optim, kind)(model.parameters(), lr=0.1, **options)
        graph = exact(Step([model], [optimizer], SCHEDULES[name](optimizer)))
        step, rates = (graph if captured else graph.eagerly), []
        for x, y in batches():
            step(x, y)
            (group,) = optimizer.param_groups
            rates.append((group["lr"], *np.atleast_1d(group.get("momentum", group.get("betas")))))
        results.append([np.array(rates), *arrays_in(dict(model.state_dict()))])
    same_bits(results[1], results[0], f"{name}, seed {seed}")
    assert len(graph.plans) == 1


def test_two_optimizers_in_one_graph(seed: int) -> None:
    results = []
    for captured in (False, True):
        flow.manual_seed(seed)
        first, second = nn.Linear(6, 4), nn.Linear(4, 3)
        optimizers = [
            optim.SGD(first.parameters(), lr=0.1, momentum=0.9),
            optim.AdamW(second.parameters(), lr=0.01),
        ]
        graph = exact(Step([first, second], optimizers))
        for x, y in batches():
            (graph if captured else graph.eagerly)(x, y)
        results.append(arrays_in([*first.parameters(), *second.parameters()]))
    same_bits(results[1], results[0], f"seed {seed}")


def test_every_optimizer_option_and_schedule_is_here() -> None:
    for name, value in vars(optim).items():
        if not (inspect.isclass(value) and issubclass(value, optim.Optimizer)):
            continue
        if value is optim.Optimizer or name in NO_GRAPHS:
            continue
        known = set(inspect.signature(value).parameters) - {"params"} - WITHOUT_MEANING
        tried = {option for kind, inputs in OPTIONS.values() if kind == name for option in inputs}
        assert known <= tried, f"{name}: no case sets {known - tried}"
    public = set(SCHED.__all__) - {"LRScheduler", "ReduceLROnPlateau"}  # the latter takes a metric
    public -= {"_LRScheduler", "WarmUpLR"}  # older names
    assert public == set(SCHEDULES)
