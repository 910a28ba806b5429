"""SGD, Adam and AdamW against NumPy written out and, where installed, torch; groups and state."""

import math
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn, optim
from flowvm.optim import optimizer
from flowvm.optim.optimizer import required

STEPS = 6
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.2, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.1}),
    ("Adam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.2}),
    ("Adam", {"lr": 0.1, "amsgrad": True, "maximize": True}),
    ("AdamW", {"lr": 0.1}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.3, "amsgrad": True}),
]


def run(
    lib: Any, name: str, options: dict[str, Any], start: np.ndarray, grads: list[np.ndarray]
) -> np.ndarray:
    param = lib.nn.Parameter(lib.tensor(start))
    opt = getattr(lib.optim, name)([param], **options)
    for grad in grads:
        param.grad = lib.tensor(grad)
        opt.step()
    return np.array(param.detach().numpy())


def sgd(p: np.ndarray, grads: list[np.ndarray], o: dict[str, Any]) -> np.ndarray:
    buffer = None
    for g in grads:
        d = (-g if o.get("maximize") else g) + o.get("weight_decay", 0) * p
        if momentum := o.get("momentum", 0):
            share = 1 - o.get("dampening", 0)
            buffer = d if buffer is None else momentum * buffer + share * d
            d = d + momentum * buffer if o.get("nesterov") else buffer
        p = p - o["lr"] * d
    return p


def adam(p: np.ndarray, grads: list[np.ndarray], o: dict[str, Any], decay: float) -> np.ndarray:
    (b1, b2), eps = o.get("betas", (0.9, 0.999)), o.get("eps", 1e-8)
    m = v = top = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        d = -g if o.get("maximize") else g
        if decay:
            p = p * (1 - o["lr"] * decay)
        else:
            d = d + o.get("weight_decay", 0) * p
        m, v = b1 * m + (1 - b1) * d, b2 * v + (1 - b2) * d * d
        top = np.maximum(top, v)
        second = top if o.get("amsgrad") else v
        one, two = (1 - b1**t, 1 - b2**t) if o.get("do_bias_correction", True) else (1, 1)
        p = p - o["lr"] / one * m / (np.sqrt(second / two) + eps)
    return p


def reference(
    name: str, options: dict[str, Any], start: np.ndarray, grads: list[np.ndarray]
) -> np.ndarray:
    if name == "SGD":
        return sgd(start, grads, options)
    decay = options.get("weight_decay", 0.01) if name == "AdamW" else 0.0
    return adam(start, grads, options, decay)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("oracle", ["numpy", "torch"])
def test_steps(
    name: str, options: dict[str, Any], dtype: str, oracle: str, rng: np.random.Generator
) -> None:
    start, *grads = (rng.normal(size=(5, 7)).astype(dtype) for _ in range(STEPS + 1))
    ours = run(flow, name, options, start, grads)
    if oracle == "numpy":
        theirs = reference(name, options, start, grads)
    else:
        theirs = run(pytest.importorskip("torch"), name, options, start, grads)
    tolerance = 1e-12 if dtype == "float64" else 2e-6
    np.testing.assert_allclose(ours, theirs, tolerance, tolerance)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_large_parameter_and_a_strided_gradient(name: str, rng: np.random.Generator) -> None:
    start, grad = rng.normal(size=(300, 200)), rng.normal(size=(200, 300))
    param = nn.Parameter(flow.tensor(start))
    param.grad = flow.tensor(grad).t()
    getattr(optim, name)([param], lr=0.1).step()
    expected = reference(name, {"lr": 0.1}, start, [grad.T])
    np.testing.assert_allclose(param.detach().numpy(), expected, 1e-10)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_empty_and_0d_parameters(name: str) -> None:
    params = [nn.Parameter(flow.zeros(0, 3)), nn.Parameter(flow.tensor(1.0))]
    for param in params:
        param.grad = flow.ones(tuple(param.shape))
    getattr(optim, name)(params, lr=0.5).step()
    assert float(params[1]) == pytest.approx(0.5)


@pytest.mark.parametrize(("name", "options"), [OPTIONS[2], OPTIONS[5]])
def test_float16(name: str, options: dict[str, Any], rng: np.random.Generator) -> None:
    start, *grads = (rng.normal(size=8).astype(np.float16) for _ in range(3))
    ours = run(flow, name, options, start, grads)
    assert ours.dtype == np.float16
    wide = [g.astype(np.float64) for g in grads]
    expected = reference(name, options, start.astype(np.float64), wide)
    np.testing.assert_allclose(ours, expected, atol=4e-3)


def test_training_lowers_the_loss(rng: np.random.Generator) -> None:
    x = flow.tensor(rng.normal(size=(64, 5)).astype(np.float32))
    y = x @ flow.tensor(rng.normal(size=(5, 1)).astype(np.float32))
    for make in (
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: optim.Adam(p, lr=0.05),
        lambda p: optim.AdamW(p, lr=0.05),
    ):
        layer = nn.Linear(5, 1)
        opt = make(layer.parameters())
        losses = []
        for _ in range(80):
            opt.zero_grad()
            loss = ((layer(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < 0.05 * losses[0]


def test_groups_have_their_own_options() -> None:
    a, b = nn.Parameter(flow.ones(2)), nn.Parameter(flow.ones(2))
    opt = optim.SGD([{"params": [a]}, {"params": b, "lr": 0.5}], lr=0.1)
    a.grad, b.grad = flow.ones(2), flow.ones(2)
    opt.step()
    np.testing.assert_allclose(a.detach().numpy(), [0.9, 0.9], rtol=1e-6)
    np.testing.assert_allclose(b.detach().numpy(), [0.5, 0.5], rtol=1e-6)
    c = nn.Parameter(flow.ones(1))
    opt.add_param_group({"params": [c], "momentum": 0.9})
    assert [g["momentum"] for g in opt.param_groups] == [0.0, 0.0, 0.9]
    assert "Parameter Group 2" in repr(opt)


def test_parameters_without_gradient_are_left_alone() -> None:
    a, b = nn.Parameter(flow.ones(2)), nn.Parameter(flow.ones(2))
    opt = optim.Adam([a, b], lr=0.1)
    a.grad = flow.ones(2)
    opt.step()
    assert list(opt.state) == [a]
    np.testing.assert_array_equal(b.detach().numpy(), [1, 1])
    opt.zero_grad()
    assert a.grad is None
    a.grad = flow.ones(2)
    opt.zero_grad(set_to_none=False)
    np.testing.assert_array_equal(a.grad.numpy(), [0, 0])


def test_closure_runs_first_with_autograd() -> None:
    a = nn.Parameter(flow.ones(1))
    opt = optim.SGD([a], lr=1.0)

    def closure() -> flow.Tensor:
        loss = (a * 3).sum()
        loss.backward()
        return loss

    with flow.no_grad():
        assert float(opt.step(closure)) == 3.0
    assert float(a) == -2.0


@pytest.mark.parametrize(("name", "options"), [OPTIONS[3], OPTIONS[7]])
def test_state_dict_resumes_exactly(
    name: str, options: dict[str, Any], rng: np.random.Generator
) -> None:
    start, *grads = (rng.normal(size=4) for _ in range(STEPS + 1))
    whole = run(flow, name, options, start, grads)
    first = nn.Parameter(flow.tensor(start))
    opt = getattr(optim, name)([first], **options)
    for grad in grads[:3]:
        first.grad = flow.tensor(grad)
        opt.step()
    second = nn.Parameter(first.detach().clone())
    resumed = getattr(optim, name)([second], lr=99.0)
    resumed.load_state_dict(opt.state_dict())
    assert resumed.param_groups[0]["lr"] == 0.1
    for grad in grads[3:]:
        first.grad = second.grad = flow.tensor(grad)
        opt.step()
        resumed.step()
    np.testing.assert_array_equal(first.detach().numpy(), whole)
    np.testing.assert_array_equal(second.detach().numpy(), whole)


def test_state_dict_has_torchs_shape(rng: np.random.Generator) -> None:
    param = nn.Parameter(flow.tensor(rng.normal(size=3)))
    param.grad = flow.ones(3).double()
    opt = optim.Adam([param], lr=0.1)
    opt.step()
    state = opt.state_dict()
    assert set(state) == {"state", "param_groups"}
    assert state["param_groups"][0]["params"] == [0]
    assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}


def test_torchs_state_dict_loads() -> None:
    torch = pytest.importorskip("torch")
    param = nn.Parameter(flow.ones(3).double())
    opt = optim.Adam([param], lr=0.1)
    theirs = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    theirs.param_groups[0]["params"][0].grad = torch.ones(3)
    theirs.step()
    inputs = theirs.state_dict()
    entry = {k: flow.tensor(v.numpy()) for k, v in inputs["state"][0].items()}
    opt.load_state_dict({**inputs, "state": {0: entry}})
    assert opt.state[param]["step"] == 1
    assert opt.state[param]["exp_avg"].dtype == flow.float64


def p() -> list[nn.Parameter]:
    return [nn.Parameter(flow.ones(2))]


@pytest.mark.parametrize(
    ("do", "error", "message"),
    [
        (lambda: optim.SGD([]), ValueError, "empty parameter list"),
        (lambda: optim.SGD(p()[0]), TypeError, "wrap it in a list"),
        (lambda: optim.SGD([3.0]), TypeError, "can only optimize Tensors, got float"),
        (lambda: optim.SGD([p()[0] * 2]), ValueError, "non-leaf"),
        (lambda: optim.SGD(p(), lr=-1.0), ValueError, "Invalid lr: -1.0"),
        (lambda: optim.SGD(p(), lr=math.nan), ValueError, "Invalid lr: nan"),
        (lambda: optim.SGD(p(), lr="fast"), TypeError, "lr must be a number"),
        (lambda: optim.SGD(p(), nesterov=True), ValueError, "Nesterov"),
        (lambda: optim.Adam(p(), betas=(1.0, 0.9)), ValueError, "index 0: 1.0"),
        (lambda: optim.Adam(p(), differentiable=True), ValueError, "not recorded for autograd"),
        (lambda: optim.Adam(p(), foreach=True, fused=True), RuntimeError, "cannot be `True`"),
        (lambda: optim.SGD(p(), lr=flow.tensor([0.1, 0.2])), ValueError, "1-element"),
        (lambda: optim.SGD([{"params": set(p())}]), TypeError, "an order that stays"),
        (lambda: optim.SGD([("a", *p()), *p()]), ValueError, "must have names, or none"),
        (lambda: optim.RMSprop(p(), alpha=-0.1), ValueError, "Invalid alpha: -0.1"),
        (lambda: optim.Adadelta(p(), rho=1.5), ValueError, "Invalid rho value: 1.5"),
        (lambda: optim.Rprop(p(), etas=(1.5, 2.0)), ValueError, "Invalid eta values: 1.5, 2.0"),
        (lambda: optim.NAdam(p(), momentum_decay=-1.0), ValueError, "momentum_decay: -1.0"),
        (lambda: optim.Adafactor(p(), beta2_decay=0.1), ValueError, "beta2_decay should be <= 0"),
        (lambda: optim.Adafactor(p(), d=0.5), ValueError, "Invalid d: 0.5"),
        (lambda: optim.LAMB(p(), amsgrad=True), RuntimeError, "AMSGrad"),
        (lambda: optim.Muon(p()), ValueError, r"2D parameters .* size: \(2,\)"),
        (lambda: optim.LBFGS([{"params": p()}, {"params": p()}]), ValueError, "per-parameter"),
        (lambda: optim.LBFGS(p()).step(), TypeError, "needs a closure"),
        (lambda: optim.SparseAdam(p(), lr=0.0), ValueError, "lr: 0.0, must be more than 0"),
        (lambda: optim.Optimizer(p(), {"lr": required}), ValueError, "required .* parameter lr"),
        (lambda: optim.SGD([{"lr": 1}]), TypeError, "'params'"),
        (lambda: optim.SGD([{"params": q} for q in 2 * [p()]]), ValueError, "more than one"),
    ],
)
def test_misuse_says_what_was_wrong(do: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        do()


def test_a_parameter_twice_in_a_group_is_updated_twice() -> None:
    param = nn.Parameter(flow.ones(1))
    with pytest.warns(UserWarning, match="1 of the 2 parameters of a group") as warnings:
        opt = optim.SGD([param, param], lr=0.25)
    assert warnings[0].filename == __file__
    param.grad = flow.ones(1)
    opt.step()
    assert param.tolist() == [0.5]
    assert opt.state_dict()["param_groups"][0]["params"] == [1, 1]


def test_other_keys_of_a_group_are_kept() -> None:
    opt = optim.SGD([{"params": p(), "name": "head", "lr_mult": 0.1}], lr=0.1)
    assert opt.param_groups[0]["name"] == "head"
    assert opt.state_dict()["param_groups"][0]["lr_mult"] == 0.1


def test_named_parameters_keep_their_names() -> None:
    layer = nn.Linear(2, 2)
    opt = optim.SGD(layer.named_parameters(), lr=0.1)
    assert opt.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="all parameter groups must name"):
        opt.add_param_group({"params": p()})


def test_a_rate_that_is_a_tensor_is_read_by_each_step() -> None:
    (param,) = p()
    rate = flow.tensor(0.5)
    opt = optim.SGD([param], lr=rate)
    schedule = optim.lr_scheduler.ExponentialLR(opt, 0.5)
    param.grad = flow.ones(2)
    opt.step()
    assert param.tolist() == [0.5, 0.5]
    schedule.step()
    assert opt.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25
    opt.step()
    assert param.tolist() == [0.25, 0.25]


class Signs(optim.Optimizer):
    """An optimizer as PyTorch's users write them."""

    def __init__(self, params: Any, lr: Any = required) -> None:
        super().__init__(params, {"lr": lr})

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    @flow.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if len(state) == 0:
                    state["step"] = 0
                state["step"] += 1
                param.add_(param.grad.sign(), alpha=-group["lr"])


def test_a_step_of_ones_own_has_hooks() -> None:
    (param,) = p()
    opt = Signs([param], lr=0.25)
    calls: list[str] = []
    opt.register_step_pre_hook(lambda o, a, k: calls.append("before"))
    opt.register_step_post_hook(lambda o, a, k: calls.append("after"))
    everyone = optimizer.register_optimizer_step_pre_hook(lambda o, a, k: calls.append("all"))
    param.grad = flow.tensor([2.0, -3.0])
    opt.step()
    everyone.remove()
    assert param.tolist() == [0.75, 1.25]
    assert calls == ["all", "before", "after"]
    opt.load_state_dict(opt.state_dict())
    assert opt.state[param] == {"step": 1}
    assert opt.param_groups[0]["nesterov"] is False


def test_a_step_that_calls_its_parents_is_one_step() -> None:
    class Counted(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    (param,) = p()
    opt = Counted([param], lr=0.25)
    calls: list[int] = []
    opt.register_step_post_hook(lambda o, a, k: calls.append(1))
    param.grad = flow.ones(2)
    opt.step()
    assert calls == [1]
    assert param.tolist() == [0.75, 0.75]


def test_hooks_of_saved_states() -> None:
    (param,) = p()
    opt = optim.SGD([param], lr=0.25)
    calls: list[str] = []
    opt.register_state_dict_pre_hook(lambda o: calls.append("before"))
    opt.register_state_dict_post_hook(lambda o, d: {**d, "extra": 1})
    opt.register_load_state_dict_pre_hook(lambda o, d: calls.append(f"load {d['extra']}"))
    opt.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))
    opt.load_state_dict(opt.state_dict())
    assert calls == ["before", "load 1", "loaded"]


def lamb(p: np.ndarray, grads: list[np.ndarray], decay: float) -> np.ndarray:
    m = v = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        d = m / (1 - 0.9**t) / (np.sqrt(v) / np.sqrt(1 - 0.999**t) + 1e-8)
        trust = np.linalg.norm(p) / np.linalg.norm(d)
        p = p - 0.1 * trust * (d + decay * p)
    return p


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_moments_as_they_are(name: str, amsgrad: bool, rng: np.random.Generator) -> None:
    start, *grads = (rng.normal(size=(5, 7)) for _ in range(STEPS + 1))
    options = {"lr": 0.1, "amsgrad": amsgrad, "do_bias_correction": False}
    ours = run(flow, name, options, start, grads)
    np.testing.assert_allclose(ours, reference(name, options, start, grads), 1e-12, 1e-12)
    corrected = run(flow, name, {**options, "do_bias_correction": True}, start, grads)
    assert np.abs(ours - corrected).max() > 0.1


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "AdamW", "LAMB"])
def test_contiguous_params_choose_nothing(name: str, rng: np.random.Generator) -> None:
    start, *grads = (rng.normal(size=(5, 7)) for _ in range(3))
    plain, contiguous = (
        run(flow, name, {"lr": 0.1, **more}, start, grads)
        for more in ({}, {"contiguous_params": True})
    )
    np.testing.assert_array_equal(plain, contiguous)


def test_lamb_by_hand(rng: np.random.Generator) -> None:
    start, *grads = (rng.normal(size=(5, 7)) for _ in range(STEPS + 1))
    ours = run(flow, "LAMB", {"lr": 0.1, "weight_decay": 0.2}, start, grads)
    np.testing.assert_allclose(ours, lamb(start, grads, 0.2), 1e-12)
    ours = run(
        flow, "LAMB", {"lr": 0.1, "weight_decay": 0.2, "adam_w_mode": False}, np.zeros(3),
        [np.ones(3)],
    )  # fmt: skip
    np.testing.assert_allclose(ours, -0.1 * np.ones(3), 1e-6)  # no norm, no trust: Adam's step


def test_gradients_are_clipped_by_group() -> None:
    a, b = nn.Parameter(flow.ones(2)), nn.Parameter(flow.ones(2))
    opt = optim.SGD([{"params": [a], "clip_grad_max_norm": 1.0}, {"params": [b]}], lr=1.0)
    a.grad, b.grad = flow.tensor([3.0, 4.0]), flow.tensor([3.0, 4.0])
    opt.clip_grad()
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0.8], 1e-5)
    assert b.grad.tolist() == [3.0, 4.0]


def test_loading_state_of_other_groups_is_refused() -> None:
    state = optim.SGD(p(), lr=0.1).state_dict()
    two = optim.SGD([nn.Parameter(flow.ones(1)), nn.Parameter(flow.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="don't match"):
        two.load_state_dict(state)


def test_kernel_refuses_operands_that_do_not_agree() -> None:
    param = nn.Parameter(flow.ones(2))
    with flow.no_grad(), pytest.raises(RuntimeError, match="grad has shape"):
        flow.ops.sgd_step_(param, flow.ones(3), False, 0.1, 0.0)
    with flow.no_grad(), pytest.raises(RuntimeError, match="grad has dtype"):
        flow.ops.sgd_step_(param, flow.ones(2).double(), False, 0.1, 0.0)
