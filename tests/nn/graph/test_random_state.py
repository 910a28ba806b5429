"""Random numbers in graphs: draws, seeds and kept states of generators.

They happen at each call, in the order of the code, so calls of a graph equal eager calls number for
number.
"""

from __future__ import annotations

from typing import Any

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, CaptureError
from tests.graph.helpers import arrays_in, same_bits

nn, F = flow.nn, flow.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")


def seeded(x: Any) -> Any:
    before = flow.rand(2)
    flow.manual_seed(3)
    return before, x + flow.rand(3), flow.randn(2)


def seeded_twice(x: Any) -> Any:
    flow.manual_seed(3)
    first = flow.rand(3)
    flow.manual_seed(9)
    return x + first, flow.rand(3)


def persistent(x: Any) -> Any:
    state = flow.get_rng_state()
    first = flow.rand(3)
    flow.set_rng_state(state)
    return x + first, flow.rand(3), flow.rand(1)


def forked(x: Any) -> Any:
    with flow.random.fork_rng():
        flow.manual_seed(1)
        inside = flow.rand(3)
    return x + inside, flow.rand(3)


def a_generator_of_its_own(x: Any) -> Any:
    own = flow.Generator()
    first = flow.rand(3, generator=own)
    other = flow.Generator().manual_seed(7)
    return x + first, flow.rand(3, generator=own), flow.randn(3, generator=other)


def initial(x: Any) -> Any:
    before = x * (flow.initial_seed() % 101)
    flow.manual_seed(12)
    return before, x * (flow.initial_seed() % 11) + flow.rand(3)


def mapped(x: Any) -> Any:
    same = flow.func.vmap(lambda t: t + flow.rand(()), randomness="same")(x)
    return same, flow.func.vmap(lambda t: t + flow.rand(()), randomness="different")(x)


def segments(x: Any) -> Any:
    state = flow.get_rng_state()
    rows = flow.nonzero(flow.rand(4) > 0.5).shape[0]
    flow.set_rng_state(state)
    again = flow.rand(4)
    flow.manual_seed(6)
    return x + rows, again, flow.nonzero(flow.rand(4) > 0.5), flow.rand(2)


def dropped(x: Any) -> Any:
    flow.manual_seed(4)
    return F.dropout(x, 0.5), F.dropout(x, 0.5), flow.rand(2)


def filled(x: Any) -> Any:
    flow.manual_seed(4)
    return (
        flow.zeros(4).normal_(),
        flow.zeros(3).uniform_(),
        flow.randperm(6),
        flow.bernoulli(x / 2),
    )


STEPS = (
    seeded, seeded_twice, persistent, forked, a_generator_of_its_own, initial, mapped, segments,
    dropped, filled,
)  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_calls_are_eager_calls(step: Any) -> None:
    results = []
    for call in (step, flow.compile(step)):
        flow.manual_seed(5)
        state, arrays = None, []
        for turn in range(5):
            if turn == 1:
                state = flow.get_rng_state()
            elif turn == 3:
                flow.set_rng_state(state)
            elif turn == 4:
                flow.manual_seed(99)
            arrays += arrays_in([call(flow.ones(3)), flow.rand(2)])
        results.append(arrays)
    same_bits(results[1], results[0], step.__name__)


def test_a_generator_that_is_an_attribute_or_an_argument_of_the_op() -> None:
    results = []
    for way in (lambda f: f, flow.compile):
        own = flow.Generator().manual_seed(2)

        def step(x: Any) -> Any:
            state = own.get_state()  # noqa: B023
            first = flow.rand(3, generator=own)  # noqa: B023
            own.set_state(state)  # noqa: B023
            return x + first, flow.normal(0.0, 1.0, (3,), generator=own)  # noqa: B023

        call = way(step)
        results.append(
            arrays_in([[call(flow.ones(3)), flow.rand(2, generator=own)] for _ in range(3)])
        )
    same_bits(results[1], results[0], "a generator")


def test_a_seed_that_changes_from_call_to_call() -> None:
    results = []
    for way in (lambda f: f, flow.compile):
        count = [0]

        def step(x: Any) -> Any:
            count[0] += 1  # noqa: B023
            flow.manual_seed(count[0])  # noqa: B023
            return x + flow.rand(3)

        call = way(step)
        results.append(arrays_in([call(flow.ones(3)) for _ in range(4)]))
    same_bits(results[1], results[0], "a counted seed")


def test_a_state_from_outside_is_that_of_the_call() -> None:
    outside = flow.Generator().manual_seed(77).get_state()

    def step(x: Any) -> Any:
        flow.set_rng_state(outside)
        return x + flow.rand(3)

    graph = flow.compile(step)
    for seed in (77, 78):
        outside.copy_(flow.Generator().manual_seed(seed).get_state())
        expected = step(flow.zeros(3)).tolist()
        assert [graph(flow.zeros(3)).tolist() for _ in range(2)] == [expected] * 2


def test_micro_batches_seed_in_turn() -> None:
    class Step(nn.Graph):
        def build(self, x: Any) -> Any:
            first = flow.rand(2)
            flow.manual_seed(3)
            return x + first + flow.rand(2)

    graph = Step()
    graph.config.set_gradient_accumulation_steps(2)
    flow.manual_seed(0)
    x = flow.zeros(4, 2)
    actual = arrays_in([graph(x), graph(x)])
    flow.manual_seed(0)
    eager = Step()
    expected = [flow.cat([eager.build(x[:2]), eager.build(x[2:])]) for _ in range(2)]
    same_bits(actual, arrays_in(expected), "micro-batches")


def test_a_training_step_with_a_checkpoint_that_seeds() -> None:
    results = []
    for way in (lambda f: f, flow.compile):
        flow.manual_seed(0)
        linear = nn.Linear(3, 3)

        def inner(t: Any) -> Any:
            flow.manual_seed(8)
            return F.dropout(linear(t), 0.5)  # noqa: B023

        def step(x: Any) -> Any:
            linear.weight.grad = None  # noqa: B023
            result = flow.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
            result.sum().backward()
            return linear.weight.grad * 1, flow.rand(2)  # noqa: B023

        call = way(step)
        results.append(arrays_in([call(flow.ones(2, 3)) for _ in range(3)]))
    same_bits(results[1], results[0], "a checkpoint")


def test_a_seed_of_the_operating_system_is_another_one_in_each_call() -> None:
    graph = flow.compile(lambda: (flow.seed(), flow.rand(2))[1])
    values = [graph().tolist() for _ in range(3)]
    assert len({tuple(m) for m in values}) == 3


def test_vmap_turns_down_draws_in_a_graph_too() -> None:
    function = flow.func.vmap(lambda t: t + flow.rand(()))
    with pytest.raises(ArgumentError, match="random numbers are drawn"):
        flow.compile(function)(flow.ones(3))


def test_a_kept_state_is_no_result() -> None:
    for step in (lambda x: flow.get_rng_state(), lambda x: x + flow.get_rng_state().sum()):
        with pytest.raises(CaptureError, match="state of a generator"):
            flow.compile(step)(flow.ones(2))
    assert flow.rand(2).shape == (2,)


def test_a_graph_that_seeds_is_not_saved(tmp_path: Any) -> None:
    class Step(nn.Graph):
        def build(self, x: Any) -> Any:
            flow.manual_seed(1)
            return x + flow.rand(2)

    graph = Step()
    graph(flow.ones(2))
    with pytest.raises(ArgumentError, match="seeds a generator"):
        graph.save(tmp_path / "graph")


def test_check_counts_what_a_call_does_to_the_generator() -> None:
    graph = flow.compile(lambda x: (flow.manual_seed(3), x + flow.rand(3))[1])
    graph.config.check(1)
    for _ in range(3):
        graph(flow.ones(3))
