"""Averages of weights: against PyTorch where it is installed, and by hand."""

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn, optim
from flowvm.optim import swa_utils


def averaged(lib: Any, utils: Any, values: list[np.ndarray], **options: Any) -> np.ndarray:
    layer = lib.nn.Linear(3, 2)
    model = utils.AveragedModel(layer, **options)
    for value in values:
        with lib.no_grad():
            layer.weight.copy_(lib.tensor(value))
        model.update_parameters(layer)
    assert int(model.n_averaged) == len(values)
    return np.array(model.module.weight.detach().numpy())


def test_equal_weights_by_hand(rng: np.random.Generator) -> None:
    values = [rng.normal(size=(2, 3)).astype(np.float32) for _ in range(4)]
    mean = np.mean(values, axis=0)
    np.testing.assert_allclose(averaged(flow, swa_utils, values), mean, rtol=1e-5)
    own = averaged(flow, swa_utils, values, avg_fn=swa_utils.get_swa_avg_fn())
    np.testing.assert_allclose(own, mean, rtol=1e-5)


@pytest.mark.parametrize("kind", ["multi_avg_fn", "avg_fn"])
def test_moving_average_like_torch(kind: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    theirs_utils = torch.optim.swa_utils
    name = f"get_ema_{kind}"
    values = [rng.normal(size=(2, 3)).astype(np.float32) for _ in range(4)]
    ours = averaged(flow, swa_utils, values, **{kind: getattr(swa_utils, name)(0.9)})
    theirs = averaged(torch, theirs_utils, values, **{kind: getattr(theirs_utils, name)(0.9)})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_buffers(use_buffers: bool) -> None:
    model = nn.BatchNorm1d(2)
    average = swa_utils.AveragedModel(model, use_buffers=use_buffers)
    average.update_parameters(model)
    model.running_mean.fill_(4.0)
    average.update_parameters(model)
    assert average.module.running_mean.tolist() == ([2.0, 2.0] if use_buffers else [4.0, 4.0])


def test_statistics_are_made_anew(rng: np.random.Generator) -> None:
    batches = [rng.normal(size=(8, 3)).astype(np.float32) for _ in range(3)]
    model = nn.Sequential(nn.BatchNorm1d(3))
    model.eval()
    swa_utils.update_bn([(flow.tensor(b), None) for b in batches], model)
    mean = np.mean([b.mean(0) for b in batches], axis=0)
    np.testing.assert_allclose(model[0].running_mean.numpy(), mean, rtol=1e-4, atol=1e-6)
    assert model[0].momentum == 0.1
    assert not model.training


@pytest.mark.parametrize("options", [{}, {"anneal_strategy": "linear", "anneal_epochs": 3},
                                     {"anneal_epochs": 0}])  # fmt: skip
def test_annealing_like_torch(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    results = []
    for lib in (flow, torch):
        opt = lib.optim.SGD([lib.nn.Parameter(lib.ones(1))], lr=1.0)
        before = lib.optim.lr_scheduler.ExponentialLR(opt, 0.9)
        schedule = lib.optim.swa_utils.SWALR(opt, 0.05, **options)
        rates = []
        for k in range(12):
            opt.step()
            (before if k < 3 else schedule).step()
            rates.append(opt.param_groups[0]["lr"])
        results.append(rates)
    assert results[0] == pytest.approx(results[1])


def test_misuse() -> None:
    opt = optim.SGD([nn.Parameter(flow.ones(1))], lr=1.0)
    with pytest.raises(ValueError, match="anneal_strategy must be one of"):
        swa_utils.SWALR(opt, 0.1, anneal_strategy="square")
    with pytest.raises(ValueError, match="Invalid decay value 2"):
        swa_utils.get_ema_avg_fn(2)
    with pytest.raises(ValueError, match="Only one of"):
        swa_utils.AveragedModel(
            nn.Linear(1, 1),
            avg_fn=swa_utils.get_swa_avg_fn(),
            multi_avg_fn=swa_utils.get_swa_multi_avg_fn(),
        )
