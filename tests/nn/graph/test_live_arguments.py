"""Live numbers as arguments of every op that takes a number.

At the place of each number of a sample there is one that a graph computes anew for each replay.
Results are eager code's, also after the number has changed.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ops" / "helpers"))
import op_calls as calls

import flowvm as flow
from flowvm.errors import CaptureError, FlowError
from tests.graph.helpers import arrays_in, close, tensors_in

F = flow.nn.functional
pytestmark = [
    pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning"),
    pytest.mark.filterwarnings("ignore::flowvm.errors.CaptureWarning"),
]
NAMED = calls.all_samples()
MOST = 3  # numbers of a sample that are changed, one after the other


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def numbers_of(value: Any) -> list[Any]:
    """The numbers in a sample's arguments, in order."""
    if is_number(value):
        return [value]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in numbers_of(v)]
    return [n for v in value.values() for n in numbers_of(v)] if isinstance(value, dict) else []


def replaced(value: Any, numbers: Any) -> Any:
    """The arguments with these numbers, an iterator, for theirs."""
    if is_number(value):
        return next(numbers)
    if isinstance(value, (list, tuple)):
        items = [replaced(v, numbers) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return {k: replaced(v, numbers) for k, v in value.items()} if isinstance(value, dict) else value


class Numbers(flow.optim.Optimizer):
    """An optimizer whose options are numbers, which a graph takes for live; it steps nothing."""

    live_options = ("numbers",)

    def __init__(self, numbers: Any) -> None:
        super().__init__([flow.zeros(1, requires_grad=True)], {"numbers": tuple(numbers)})

    def _step_group(self, group: Any) -> None:
        pass


class WithNumbers(flow.nn.Graph):
    """A function of tensors and of live numbers as a graph."""

    def __init__(self, function: Any, numbers: Any) -> None:
        super().__init__()
        self.function, self.optimizer = function, Numbers(numbers)
        self.add_optimizer(self.optimizer)
        self._stepped = True  # there is no state for an eager step to make

    def build(self, *tensors: Any) -> Any:
        return self.function(self.optimizer.param_groups[0]["numbers"], *tensors)

    def set(self, numbers: Any) -> None:
        """Let these be the numbers from now on."""
        self.optimizer.param_groups[0]["numbers"] = tuple(numbers)


def outcome(function: Any) -> list[np.ndarray] | type:
    """Return the outcome of a call: arrays, or the class of its error."""
    try:
        return arrays_in(function())
    except (FlowError, IndexError, ValueError, TypeError) as error:
        if isinstance(error, CaptureError):
            raise
        return type(error)


def other_numbers(number: Any) -> list[Any]:
    return [number * 1.25 + 0.125] if type(number) is float else [number + 1, number - 1]


@pytest.mark.parametrize("op", [op for _, op in NAMED], ids=[name for name, _ in NAMED])
@pytest.mark.product(4)
def test_every_number_may_be_live(op: Any, seed: int) -> None:
    for sample in op.generate(np.random.default_rng(seed)):
        sample = calls.in_dtype(sample, op.floats[min(1, len(op.floats) - 1)])
        inputs = numbers_of((sample.args, sample.kwargs))
        if inputs:
            break
    else:
        return
    arrays = calls.arrays_of(sample)
    what = calls.shown(op, sample, seed)

    def function(numbers: Any, *tensors: Any) -> Any:
        args, kwargs = replaced((sample.args, sample.kwargs), iter(numbers))
        held = iter([t.clone() if op.name.endswith("_") else t for t in tensors])
        return tensors_in(calls.call(op.function, calls.Sample(args, kwargs), lambda _: next(held)))

    def called(call: Any) -> Any:
        flow.manual_seed(seed)
        return outcome(lambda: call(*map(calls.as_tensor, arrays)))

    graph = WithNumbers(function, inputs)
    ways = [inputs]
    for k in range(min(MOST, len(inputs))):
        ways += [[*inputs[:k], n, *inputs[k + 1 :]] for n in other_numbers(inputs[k])]
    for numbers in [*ways, inputs]:
        expected = called(lambda *tensors: function(numbers, *tensors))  # noqa: B023
        graph.set(numbers)
        try:
            actual = called(graph)
        except CaptureError as error:
            if "shape of its result depends on values" in str(error) or "has no value" in str(
                error
            ):
                return  # the op reads values of a tensor
            raise
        if isinstance(expected, type) or isinstance(actual, type):
            assert actual == expected, f"{numbers} of {what}"
        else:
            close(actual, expected, f"{numbers} of {what}")


# --- as optimizers are written --------------------------------------------------------------------

# forms that stay live: another rate is not another capture
LIVE = {
    "add_ alpha": lambda p, u, lr: p.add_(u, alpha=-lr),
    "sub_ alpha": lambda p, u, lr: p.sub_(u, alpha=lr),
    "add alpha": lambda p, u, lr: p.copy_(flow.add(p, u, alpha=-lr)),
    "rsub alpha": lambda p, u, lr: p.copy_(-flow.rsub(p, u * 0, alpha=1 + lr)),
    "data": lambda p, u, lr: p.data.add_(u, alpha=-lr),
    "foreach": lambda p, u, lr: flow._foreach_add_([p], [u], alpha=-lr),
    "addcmul_": lambda p, u, lr: p.addcmul_(u, u, value=-lr),
    "addcdiv_": lambda p, u, lr: p.addcdiv_(u, u.abs() + 1, value=-lr),
    "lerp_": lambda p, u, lr: p.lerp_(u, lr),
    "clamp_": lambda p, u, lr: p.clamp_(-lr, lr),
    "pow": lambda p, u, lr: p.sub_(u.abs() ** (1 + lr)),
    "a tensor": lambda p, u, lr: p.add_(flow.tensor(-lr) * u),
    "full": lambda p, u, lr: p.sub_(flow.full(p.shape, lr)),
    "full_like": lambda p, u, lr: p.sub_(flow.full_like(p, lr * 2)),
    "fill_": lambda p, u, lr: p.sub_(flow.empty_like(p).fill_(lr)),
    "where": lambda p, u, lr: p.sub_(flow.where(u > 0, lr, u)),
    "masked_fill": lambda p, u, lr: p.sub_(u.masked_fill(u > 0, lr)),
    "least": lambda p, u, lr: p.sub_(u * min(lr, 0.7)),
    "abs and round": lambda p, u, lr: p.sub_(u * round(abs(-lr), 2)),
    "arithmetic": lambda p, u, lr: p.sub_(u * (1 - 0.9**lr) / (lr + 1)),
}
# forms in which Python needs a plain number: another rate is captured again
PLAIN = {
    "float": lambda p, u, lr: p.add_(u, alpha=-float(lr)),
    "sqrt": lambda p, u, lr: p.sub_(u * math.sqrt(lr)),
    "numpy": lambda p, u, lr: p.sub_(u * float(np.exp(lr))),
    "a list": lambda p, u, lr: p.sub_(flow.tensor([lr, 2 * lr])),
    "a size": lambda p, u, lr: p.sub_(flow.ones(1 + int(lr * 4)).sum()),
    "dropout": lambda p, u, lr: p.sub_(F.dropout(u, lr)),
}


@pytest.mark.parametrize("name", [*LIVE, *PLAIN])
def test_forms_of_an_optimizer(name: str) -> None:
    form, weights = {**LIVE, **PLAIN}[name], []

    class Formed(flow.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.25})

        @flow.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        form(p, p.grad, group["lr"])

    for by_graph in (False, True):
        flow.manual_seed(0)
        w = flow.nn.Parameter(flow.tensor([0.5, -1.5]))
        optimizer = Formed([w])

        class Step(flow.nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.w = w  # noqa: B023
                self.add_optimizer(optimizer)  # noqa: B023

            def build(self, x: Any) -> Any:
                loss = (self.w * x).square().sum()
                loss.backward()
                return loss

        graph, x = Step(), flow.tensor([1.0, 2.0])
        for lr in (0.25, 0.25, 0.5, 0.125):
            optimizer.param_groups[0]["lr"] = lr
            if by_graph:
                graph(x)
            else:
                optimizer.zero_grad()
                (w * x).square().sum().backward()
                optimizer.step()
            weights.append(w.detach().numpy().copy())
    close(weights[4:], weights[:4], name)
    assert (len(graph.plans) == 1) == (name in LIVE)
