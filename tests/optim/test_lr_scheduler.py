"""Schedules against values worked out by hand and, where installed, torch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn, optim
from flowvm.optim import lr_scheduler


def optimizer(lib: Any = flow, lr: float = 0.4, momentum: float = 0.5) -> Any:
    params = [lib.nn.Parameter(lib.ones(1)) for _ in range(2)]
    groups = [{"params": [params[0]]}, {"params": [params[1]], "lr": 2 * lr}]
    return lib.optim.SGD(groups, lr=lr, momentum=momentum)


def rates(opt: Any, scheduler: Any, steps: int, others: tuple[Any, ...] = ()) -> list[list[float]]:
    rows = []
    for _ in range(steps):
        rows.append([float(g["lr"]) for g in opt.param_groups])
        opt.step()
        for one in (scheduler, *others):
            one.step()
    return rows


SCHEDULES: dict[str, Any] = {
    "step": lambda s, o: s.StepLR(o, 3, 0.5),
    "multistep": lambda s, o: s.MultiStepLR(o, [5, 2, 5], 0.5),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.9),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, 4),
    "linear": lambda s, o: s.LinearLR(o, 0.25, 0.75, 4),
    "polynomial": lambda s, o: s.PolynomialLR(o, 6, 1.5),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 6, 0.01),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    "lambda": lambda s, o: s.LambdaLR(o, lambda t: 1 / (1 + t)),
    "lambdas": lambda s, o: s.LambdaLR(o, [lambda t: 0.9**t, lambda t: 1.0]),
    "onecycle": lambda s, o: s.OneCycleLR(o, [1.0, 2.0], total_steps=12),
    "onecycle-3": lambda s, o: s.OneCycleLR(
        o, 1.0, epochs=3, steps_per_epoch=5, anneal_strategy="linear", three_phase=True
    ),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda t: 0.9 + 0.01 * t),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.1, 1.0, 3, 2, cycle_momentum=True),
    "cyclic-2": lambda s, o: s.CyclicLR(o, [0.1, 0.2], [1.0, 2.0], 2, mode="triangular2"),
    "cyclic-exp": lambda s, o: s.CyclicLR(
        o, 0.1, 1.0, 2, mode="exp_range", gamma=0.9, base_momentum=0.5, max_momentum=0.7
    ),
    "lambda-cyclic": lambda s, o: s.CyclicLR(
        o, 0.1, 1.0, 2, scale_fn=lambda x: 1 / x, scale_mode="cycle"
    ),
    "sequential-stepwise": lambda s, o: s.SequentialLR(
        o, [s.ConstantLR(o, 0.1, 3), s.MultiplicativeLR(o, lambda t: 0.9), s.StepLR(o, 2)], [3, 6]
    ),
    "chained-stepwise": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, 0.5, 3), s.MultiplicativeLR(o, lambda t: 0.9)]
    ),
    "sequential": lambda s, o: s.SequentialLR(
        o, [s.ConstantLR(o, 0.1, 3), s.ExponentialLR(o, 0.9)], [3]
    ),
    "sequential-3": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1.0, 3), s.CosineAnnealingLR(o, 4), s.ConstantLR(o, 0.5, 2)], [3, 7]
    ),
    "chained": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 3), s.ExponentialLR(o, 0.9)]),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_like_torch(case: str) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = optimizer(), optimizer(torch)
    mine = rates(ours, SCHEDULES[case](lr_scheduler, ours), 12)
    expected = rates(theirs, SCHEDULES[case](torch.optim.lr_scheduler, theirs), 12)
    for a, b in zip(mine, expected, strict=True):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)
    for a, b in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert a["momentum"] == pytest.approx(b["momentum"])
        assert a["lr"] == pytest.approx(b["lr"], rel=1e-9, abs=1e-12)  # behind the last step


@pytest.mark.parametrize("case", [c for c in SCHEDULES if not c.startswith("lambda")])
def test_state_dict_resumes(case: str) -> None:
    opt = optimizer()
    scheduler = SCHEDULES[case](lr_scheduler, opt)
    rates(opt, scheduler, 4)
    later = optimizer(lr=9.0)
    resumed = SCHEDULES[case](lr_scheduler, later)
    later.load_state_dict(opt.state_dict())
    resumed.load_state_dict(scheduler.state_dict())
    assert rates(later, resumed, 5) == rates(opt, scheduler, 5)


def first(opt: Any, scheduler: Any, steps: int) -> list[float]:
    return [group[0] for group in rates(opt, scheduler, steps)]


def test_by_hand() -> None:
    opt = optimizer(lr=1.0)
    assert first(opt, lr_scheduler.StepLR(opt, 2, 0.5), 5) == [1.0, 1.0, 0.5, 0.5, 0.25]
    opt = optimizer(lr=1.0)
    assert first(opt, lr_scheduler.LinearLR(opt, 0.5, 1.0, 2), 4) == [0.5, 0.75, 1.0, 1.0]
    opt = optimizer(lr=1.0)
    cosine = first(opt, lr_scheduler.CosineAnnealingLR(opt, 4), 5)
    assert cosine == pytest.approx([(1 + math.cos(math.pi * t / 4)) / 2 for t in range(5)])


def test_warmup_over_an_optimizer() -> None:
    opt = optimizer(lr=0.001)
    warmup = lr_scheduler.WarmupLR(opt, 0.5, 5, "linear")
    expected = [0.0005, 0.0006, 0.0007, 0.0008, 0.0009, 0.001, 0.001]
    assert first(opt, warmup, 7) == pytest.approx(expected)
    opt = optimizer(lr=0.001)
    warmup = lr_scheduler.WarmupLR(opt, 0.5, 2, "constant")
    assert first(opt, warmup, 4) == pytest.approx([0.0005, 0.0005, 0.001, 0.001])


@pytest.mark.parametrize("prefix", [False, True])
def test_warmup_over_a_schedule(prefix: bool) -> None:
    opt = optimizer(lr=1.0)
    warmup = lr_scheduler.WarmupLR(
        lr_scheduler.ExponentialLR(opt, 0.5), 0.2, 2, warmup_prefix=prefix
    )
    end = 1.0 if prefix else 0.25  # without prefix the schedule has run for two steps
    expected = [0.2, 0.2 + (end - 0.2) / 2, end, end / 2, end / 4]
    assert first(opt, warmup, 5) == pytest.approx(expected)


def test_schedules_side_by_side_multiply() -> None:
    opt = optimizer(lr=1.0)
    a, b = lr_scheduler.ExponentialLR(opt, 0.5), lr_scheduler.StepLR(opt, 2, 0.1)
    factors = [group[0] for group in rates(opt, a, 5, (b,))]
    assert factors == pytest.approx([1.0, 0.5, 0.025, 0.0125, 0.000625])


def test_a_rate_changed_by_hand_is_carried_on() -> None:
    opt = optimizer(lr=1.0)
    scheduler = lr_scheduler.ExponentialLR(opt, 0.5)
    scheduler.step()
    opt.param_groups[0]["lr"] *= 10
    scheduler.step()
    assert opt.param_groups[0]["lr"] == pytest.approx(2.5)
    assert scheduler.get_last_lr()[0] == pytest.approx(2.5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "max", "threshold_mode": "abs", "threshold": 0.1},
        {"cooldown": 2, "min_lr": 0.03},
        {"patience": 0, "factor": 0.9},
    ],
)
def test_plateau_like_torch(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    options = {"patience": 1, "factor": 0.5, **options}
    ours, theirs = optimizer(), optimizer(torch)
    mine = lr_scheduler.ReduceLROnPlateau(ours, **options)
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options)
    for metric in [5, 4, 4, 4, 4.05, 3, 3.5, 3.5, 3.5, 3.5, 3.5, 2.9999, 2.9999, 9, 9, 9]:
        mine.step(metric)
        other.step(metric)
        assert mine.get_last_lr() == pytest.approx(other.get_last_lr())
        assert mine.num_bad_epochs == other.num_bad_epochs


def test_a_plateau_resumes() -> None:
    rates = []
    for resumed in (False, True):
        opt = optimizer(lr=1.0)
        plateau = lr_scheduler.ReduceLROnPlateau(opt, patience=1)
        for epoch in range(6):
            if resumed and epoch == 3:
                state = plateau.state_dict()
                plateau = lr_scheduler.ReduceLROnPlateau(opt, patience=1)
                plateau.load_state_dict(state)
            plateau.step(1.0)
        rates.append([plateau.best, opt.param_groups[0]["lr"]])
    assert rates[0] == rates[1]
    assert rates[0] == pytest.approx([1.0, 0.01])


ANEW: dict[str, Callable[[Any, Any], Any]] = {
    "lambda": lambda s, o: s.LambdaLR(o, lambda t: 0.9**t),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3),
    "cycle": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    "once": lambda s, o: s.OneCycleLR(o, 0.1, 20, cycle_momentum=False),
    "step": lambda s, o: s.StepLR(o, 2),
    "behind": lambda s, o: s.ChainedScheduler([s.StepLR(o, 2), s.LambdaLR(o, lambda t: 0.9**t)]),
    "before": lambda s, o: s.ChainedScheduler([s.LambdaLR(o, lambda t: 0.9**t), s.StepLR(o, 2)]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ANEW)
def test_a_rate_that_somebody_else_sets(kind: str) -> None:
    """Schedules that compute from the base rates lose it; those of factors go on from it."""
    torch = pytest.importorskip("torch")
    rates: list[list[float]] = []
    for lib, opt in ((lr_scheduler, optimizer()), (torch.optim.lr_scheduler, optimizer(torch))):
        schedule = ANEW[kind](lib, opt)
        rates.append([])
        for epoch in range(9):
            if epoch == 4 and not isinstance(schedule, lib.ChainedScheduler):
                opt.param_groups[0]["lr"] = 0.33
            opt.step()
            schedule.step()
            rates[-1] += [float(group["lr"]) for group in opt.param_groups]
    assert rates[0] == pytest.approx(rates[1])


def test_plateau_by_hand() -> None:
    opt = optimizer(lr=1.0)
    plateau = lr_scheduler.ReduceLROnPlateau(opt, factor=0.1, patience=1)
    for metric in (3.0, 2.0, 2.0):
        plateau.step(flow.tensor(metric))
    assert opt.param_groups[0]["lr"] == 1.0
    plateau.step(2.0)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s, o: s.StepLR(o, 0), "step_size must be a positive int"),
        (lambda s, o: s.StepLR(nn.Linear(1, 1), 2), "Linear is not an Optimizer"),
        (lambda s, o: s.ConstantLR(o, 0.0), r"factor must be in \(0, 1\]"),
        (lambda s, o: s.LambdaLR(o, [abs]), "Expected 2 lr_lambdas, but got 1"),
        (lambda s, o: s.OneCycleLR(o, 1.0), "give total_steps"),
        (lambda s, o: s.SequentialLR(o, [s.ExponentialLR(o, 0.9)], [1]), "need 0 milestones"),
        (lambda s, o: s.SequentialLR(o, [s.ReduceLROnPlateau(o)], []), "ReduceLROnPlateau"),
        (lambda s, o: s.SequentialLR(o, [s.ExponentialLR(optimizer(), 0.9)], []), "one optimizer"),
        (lambda s, o: s.WarmupLR(o, warmup_method="cubic"), "'warmup_method'"),
        (lambda s, o: s.ExponentialLR(o, 0.9, last_epoch=3), "initial_lr"),
        (lambda s, o: s.ReduceLROnPlateau(o, factor=1.0), "factor must be below"),
    ],
)
def test_misuse_says_what_was_wrong(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError), match=message):
        make(lr_scheduler, optimizer())


def test_one_cycle_ends() -> None:
    opt = optim.SGD([nn.Parameter(flow.ones(1))], lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(opt, 1.0, total_steps=2)
    opt.step()
    for _ in range(2):  # as many as it was told
        scheduler.step()
    with pytest.raises(ValueError, match="number of total steps is 2"):
        scheduler.step()


def test_a_schedule_as_pytorchs_users_write_them() -> None:
    class Half(lr_scheduler._LRScheduler):
        def get_lr(self) -> list[float]:
            return [base / 2**self.last_epoch for base in self.base_lrs]

    opt = optimizer(lr=1.0)
    assert first(opt, Half(opt), 4) == [1.0, 0.5, 0.25, 0.125]


def test_oneflows_decays() -> None:
    opt = optimizer(lr=1.0)
    decay = lr_scheduler.CosineDecayLR(opt, 4, 0.1)
    cosine = [0.9 * (1 + math.cos(math.pi * t / 4)) / 2 + 0.1 for t in range(5)]
    assert first(opt, decay, 6) == pytest.approx([*cosine, 0.1])
    opt = optimizer(lr=1.0)
    ends = lr_scheduler.PolynomialLR(opt, steps=4, end_learning_rate=0.2)
    assert first(opt, ends, 6) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    opt = optimizer(lr=1.0)
    again = lr_scheduler.PolynomialLR(opt, decay_batch=4, end_learning_rate=0.2, cycle=True)
    assert first(opt, again, 6) == pytest.approx([0.8, 0.8, 0.6, 0.4, 0.2, 0.2 + 0.8 * 3 / 8])
    assert lr_scheduler.WarmUpLR is lr_scheduler.WarmupLR


class Factor:
    """A function that keeps something, which is saved."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, t: int) -> float:
        return self.by**t


def test_what_called_objects_keep_is_saved() -> None:
    opt = optimizer(lr=1.0)
    saved = lr_scheduler.LambdaLR(opt, [Factor(0.5), lambda t: 1.0]).state_dict()
    assert saved["lr_lambdas"] == [{"by": 0.5}, None]
    later = lr_scheduler.LambdaLR(optimizer(lr=1.0), [Factor(0.9), lambda t: 1.0])
    later.load_state_dict(saved)
    later.step()
    assert later.get_last_lr()[0] == pytest.approx(0.5)


def test_states_of_pytorchs_schedules_are_loaded() -> None:
    torch = pytest.importorskip("torch")
    for case in ("step", "exponential", "cosine", "linear"):
        ours, theirs = optimizer(), optimizer(torch)
        mine = SCHEDULES[case](lr_scheduler, ours)
        other = SCHEDULES[case](torch.optim.lr_scheduler, theirs)
        rates(theirs, other, 4)
        mine.load_state_dict(other.state_dict())
        ours.load_state_dict(theirs.state_dict())
        np.testing.assert_allclose(rates(ours, mine, 4), rates(theirs, other, 4), err_msg=case)
