"""Live numbers as arguments: every op that takes a number takes one that a graph finds anew for
each replay, at the place of each number of a sample, and gives what eager code gives, also after
that number has changed.
"""

from __future__ import annotations

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
    """What a call gives: arrays, or the class of its error."""
    try:
        return arrays_in(function())
    except (FlowError, IndexError, ValueError, TypeError) as error:
        if isinstance(error, CaptureError):
            raise
        return type(error)


def other_numbers(number: Any) -> list[Any]:
    return [number * 1.25 + 0.125] if type(number) is float else [number + 1, number - 1]


@pytest.mark.parametrize("op", [op for _, op in NAMED], ids=[name for name, _ in NAMED])
def test_every_number_may_be_live(op: Any, seed: int) -> None:
    for sample in op.generate(np.random.default_rng(seed)):
        sample = calls.in_dtype(sample, op.floats[min(1, len(op.floats) - 1)])
        given = numbers_of((sample.args, sample.kwargs))
        if given:
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

    graph = WithNumbers(function, given)
    ways = [given]
    for k in range(min(MOST, len(given))):
        ways += [[*given[:k], n, *given[k + 1 :]] for n in other_numbers(given[k])]
    for numbers in [*ways, given]:
        expected = called(lambda *tensors: function(numbers, *tensors))  # noqa: B023
        graph.set(numbers)
        try:
            got = called(graph)
        except CaptureError as error:
            if "shape of its result depends on values" in str(error) or "has no value" in str(
                error
            ):
                return  # the op reads values of a tensor
            raise
        if isinstance(expected, type) or isinstance(got, type):
            assert got == expected, f"{numbers} of {what}"
        else:
            close(got, expected, f"{numbers} of {what}")
