"""Arguments that a graph writes: the caller's tensors have the values that eager code leaves.

This holds whatever else names their memory; they count their versions.
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
from flowvm.errors import AutogradError, CaptureError, FlowError
from tests.graph.helpers import arrays_in, exact, same_bits, tensors_in

nn, F = flow.nn, flow.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")
# ops that are methods in place, too
WRITING = [
    (name, op)
    for name, op in calls.all_samples()
    if hasattr(flow.Tensor, f"{op.name}_") and op.name not in ("t", "squeeze", "unsqueeze")
]

PROGRAMS = {
    "add_": lambda x: x.add_(1) * 2,
    "slice": lambda x: (x.__setitem__(0, 5.0), x * 1)[1],
    "rows": lambda x: (x[1:3].mul_(x[0:2]), x.sum())[1],
    "strided": lambda x: (x[::2].fill_(7), x)[1],
    "view": lambda x: (x.view(2, 2).t()[0].add_(10), x + 0)[1],
    "relu_": lambda x: F.relu_(x) + 1,
    "out": lambda x: flow.add(x, 1, out=x) * 1,
    "out of a slice": lambda x: flow.mul(x[:2], 3, out=x[2:]),
    "copy_": lambda x: x.copy_(x.flip(0)),
    "zero_": lambda x: (x * 3, x.zero_())[0],
    "nothing is returned": lambda x: (x.mul_(3), None)[1],
    "twice": lambda x: (x.add_(1), x.mul_(2), x.sub_(3))[2] * 1,
    "a mask": lambda x: (x.masked_fill_(x > 0, -1), x)[1],
    "index": lambda x: (x.__setitem__(flow.tensor([0, 2]), 9.0), x)[1],
    "index_add_": lambda x: x.index_add_(0, flow.tensor([1, 1]), flow.ones(2)),
    "scatter_": lambda x: x.scatter_(0, flow.tensor([3]), 8.0),
    "itself": lambda x: x.add_(x) + x,
    "detached": lambda x: (x.detach().add_(1), x * 2)[1],
    "data": lambda x: (x.data.add_(1), x * 2)[1],
    "read before": lambda x: (lambda before: (x.add_(1), before, before * x))(x.clone()),
    "dead": lambda x: (x + 1).add_(1),
    "foreach": lambda x: (flow._foreach_add_([x], [x * 2]), x)[1],
    "normal_": lambda x: (x.normal_(), x * 2)[1],
    "t_": lambda x: (x.unsqueeze_(1).t_(), x * 2)[1],
    "cumulated": lambda x: [x.add_(k) * 1 for k in range(4)],
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("passes", [True, False], ids=["passes", "plain"])
def test_what_is_written_is_in_the_callers_tensor(name: str, passes: bool) -> None:
    program = PROGRAMS[name]
    graph = flow.compile(lambda x: program(x))
    graph = graph if passes else exact(graph)
    for start in (-2.0, 5.0, 0.5):
        theirs, ours = (flow.arange(start, start + 4) for _ in range(2))
        flow.manual_seed(3)
        expected = arrays_in([program(theirs), theirs])
        flow.manual_seed(3)
        before = ours.version
        actual = arrays_in([graph(ours), ours])
        same_bits(actual, expected, name)
        assert name == "dead" or ours.version - before == theirs.version, name
    assert len(graph.plans) == 1


@pytest.mark.parametrize("op", [op for _, op in WRITING], ids=[name for name, _ in WRITING])
@pytest.mark.product(4)
def test_every_op_in_place_writes_an_argument(op: Any, seed: int) -> None:
    samples = [s for s in op.generate(np.random.default_rng(seed)) if _is_array(s.args[:1])]
    for sample in samples[:2]:
        sample = calls.in_dtype(sample, op.floats[min(1, len(op.floats) - 1)])
        arrays = calls.arrays_of(sample)

        def function(*tensors: Any) -> Any:
            held = iter(tensors)
            in_place = getattr(flow.Tensor, f"{op.name}_")
            return tensors_in(calls.call(in_place, sample, lambda _: next(held)))  # noqa: B023

        def run(call: Any) -> Any:
            flow.manual_seed(seed)
            tensors = [calls.as_tensor(a) for a in arrays]  # noqa: B023
            try:
                return arrays_in([call(*tensors), tensors])
            except CaptureError:
                raise
            except (FlowError, IndexError, ValueError, TypeError) as error:
                return type(error)

        expected = run(function)
        graph = exact(flow.compile(function))
        for _ in range(2):
            actual = run(graph)
            if isinstance(expected, type) or isinstance(actual, type):
                assert actual == expected
            else:
                same_bits(actual, expected, calls.shown(op, sample, seed))


def _is_array(args: Any) -> bool:
    return bool(args) and isinstance(args[0], np.ndarray)


# --- memory with two names ------------------------------------------------------------------------


def named(way: str, held: Any) -> tuple[Any, Any]:
    """Return two arguments, by the way they share memory with each other or with `held`."""
    base = flow.arange(8.0)
    return {
        "apart": lambda: (flow.arange(4.0), flow.arange(4.0)),
        "one tensor": lambda: (base[:4],) * 2,
        "equal views": lambda: (base[:4], base[:4]),
        "overlapping": lambda: (base[:4], base[2:6]),
        "beside": lambda: (base[:4], base[4:]),
        "stepped": lambda: (base[::2], base[1::2]),
        "turned": lambda: (base[:4], base.view(4, 2).t()[0]),
        "held first": lambda: (held, base[:4]),
        "held second": lambda: (base[:4], held),
        "part of what is held": lambda: (held.view(2, 2).t().reshape(4), held),
    }[way]()


WAYS = (
    "apart", "one tensor", "equal views", "overlapping", "beside", "stepped", "turned",
    "held first", "held second", "part of what is held",
)  # fmt: skip


def random_program(rng: np.random.Generator) -> Any:
    """Return a program that reads and writes x, y and w in a random order; it returns values."""
    steps = [
        (str(rng.choice(["x", "y", "w"])), str(rng.choice(["x", "y", "w"])), int(rng.integers(5)))
        for _ in range(6)
    ]

    def program(x: Any, y: Any, w: Any) -> list[Any]:
        tensors, results = {"x": x, "y": y, "w": w}, []
        for to, of, how in steps:
            a, b = tensors[to], tensors[of]
            if how == 0:
                a.add_(1)
            elif how == 1:
                a.copy_(b * 2 + 1)
            elif how == 2:
                a[1:3] = b[:2] - 1
            else:
                results.append(a * 3 - b)
        return [*results, x + 0, y + 0, w + 0]

    program.__doc__ = repr(steps)
    return program


@pytest.mark.parametrize("way", WAYS)
def test_memory_with_two_names(way: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(8):
        program = random_program(rng)
        theirs, ours = flow.arange(4.0) + 10, flow.arange(4.0) + 10
        graph = exact(flow.compile(lambda x, y: program(x, y, ours)))  # noqa: B023
        for turn, one in enumerate(("apart", way, way, "apart")):
            x, y = named(one, theirs)
            expected = arrays_in([program(x, y, theirs), x, y, theirs])
            x, y = named(one, ours)
            actual = arrays_in([graph(x, y), x, y, ours])
            same_bits(actual, expected, f"{program.__doc__}, {one}, call {turn}, seed {seed}")


@pytest.mark.parametrize("way", WAYS)
def test_a_saved_value_that_another_name_changes_is_told(way: str) -> None:
    held = flow.arange(4.0)
    w = flow.ones(4, requires_grad=True)

    def program(x: Any, y: Any, h: Any) -> Any:
        z = (x * w).sum()  # which saves x
        y.add_(1)
        h.add_(0)
        z.backward()
        return z

    def run(step: Any, h: Any) -> Any:
        w.grad = None
        try:
            step(*named(way, h))
        except AutogradError as error:
            return str(error).split(".")[0]
        return w.grad.tolist()

    expected = run(lambda x, y: program(x, y, held), held)
    other = flow.arange(4.0)
    graph = flow.compile(lambda x, y: program(x, y, other))
    for _ in range(2):
        assert run(graph, other) == expected
        other.copy_(flow.arange(4.0))


# --- gradients ------------------------------------------------------------------------------------


def test_a_leaf_that_requires_grad_is_not_written() -> None:
    graph = flow.compile(lambda x: x.add_(1))
    for step in (lambda x: x.add_(1), graph):
        x = flow.ones(3, requires_grad=True)
        with pytest.raises(AutogradError, match="a leaf tensor that requires grad"):
            step(x)
        assert x.tolist() == [1, 1, 1]
    with flow.no_grad():
        x = flow.ones(3, requires_grad=True)
        graph(x)
        assert x.tolist() == [2, 2, 2]


def test_a_gradient_that_would_go_on_from_an_argument_is_told() -> None:
    w = flow.full((3,), 2.0, requires_grad=True)
    graph = flow.compile(lambda x: (x.mul_(w), None)[1])
    for _ in range(2):
        x = flow.ones(3)
        graph(x)
        assert x.tolist() == [2, 2, 2]
        with pytest.raises(AutogradError, match="output of a graph"):
            x.sum().backward()


def test_a_compiled_module_that_writes_its_argument_has_gradients() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(flow.full((3,), 2.0))

        def forward(self, x: Any) -> Any:
            return x.mul_(self.w)

    module = flow.compile(Scaled())
    for _ in range(2):
        x = flow.ones(3)
        module(x).sum().backward()
        assert x.tolist() == [2, 2, 2]
    assert module.w.grad.tolist() == [2, 2, 2]


def test_other_memory_of_an_argument_is_told() -> None:
    def swapped(x: Any) -> Any:
        x.data = flow.zeros(3)
        return x + 1

    x = flow.ones(3)
    with pytest.raises(CaptureError, match="argument 0 other memory"):
        flow.compile(swapped)(x)
    assert x.tolist() == [1, 1, 1]


# --- graphs of other kinds ------------------------------------------------------------------------


def test_segments_write_arguments() -> None:
    def program(x: Any, y: Any) -> Any:
        x.add_(1)
        indices = flow.nonzero(x > 2)
        y.add_(indices.shape[0])
        return x[indices[:, 0]] * y.sum()

    graph = flow.compile(program)
    for start in (0.0, 1.0, 0.0, 2.0):
        theirs, ours = ([flow.arange(start, start + 4), flow.zeros(2)] for _ in range(2))
        expected = arrays_in([program(*theirs), theirs])
        same_bits(arrays_in([graph(*ours), ours]), expected, f"from {start}")
    both = flow.arange(4.0)
    expected = arrays_in([program(both[:2], both[1:3]), both])
    both = flow.arange(4.0)
    same_bits(arrays_in([graph(both[:2], both[1:3]), both]), expected, "two names")


def test_a_capture_that_fails_behind_a_segment_leaves_arguments_as_they_were() -> None:
    def program(x: Any) -> Any:
        x.add_(1)
        rows = flow.nonzero(x).shape[0]
        return float(x.sum()) + rows

    x = flow.ones(3)
    with pytest.raises(CaptureError):
        flow.compile(program)(x)
    assert x.tolist() == [1, 1, 1]


def test_micro_batches_write_their_parts() -> None:
    class Step(nn.Graph):
        def __init__(self, times: int) -> None:
            super().__init__()
            self.config.set_gradient_accumulation_steps(times)

        def build(self, x: Any) -> Any:
            x.mul_(2)
            x[0] += 1
            return x.sum()

    x = flow.arange(6.0).reshape(6, 1)
    graph = Step(3)
    for _ in range(2):
        x = flow.arange(6.0).reshape(6, 1)
        assert graph(x).tolist() == [3, 11, 19]
        assert x.flatten().tolist() == [1, 2, 5, 6, 9, 10]


def test_several_streams_write_an_argument() -> None:
    stream = flow.Stream()

    def program(x: Any) -> Any:
        x.add_(1)
        with flow.stream(stream):
            y = x * 2
        x.add_(y)
        return y

    graph = flow.compile(program)
    x, expected = flow.arange(4.0), np.arange(4.0, dtype=np.float32)
    for _ in range(5):
        out = graph(x)
        expected = (expected + 1) * 3
    assert x.tolist() == expected.tolist()
    assert out.tolist() == (expected / 3 * 2).tolist()


def test_launches_behind_each_other_write_in_order() -> None:
    graph = flow.compile(lambda x: (x.mul_(2), x.add_(1), None)[2])
    x, expected = flow.zeros(5), 0
    for _ in range(20):
        graph(x)
        x.sub_(1)
        expected = expected * 2
    assert x.tolist() == [expected] * 5


def test_check_compares_what_is_written() -> None:
    graph = flow.compile(lambda x: x.add_(1) * 2)
    graph.config.check(1)
    x = flow.ones(3)
    for _ in range(3):
        graph(x)
    assert x.tolist() == [4, 4, 4]


def test_a_saved_graph_writes_its_argument(tmp_path: Path) -> None:
    class Step(nn.Graph):
        def build(self, x: Any) -> Any:
            x[1:] += 2
            return x * 2

    first, second = Step(), Step()
    first(flow.zeros(3))
    first.save(tmp_path / "graph")
    second.load(tmp_path / "graph")
    x = flow.ones(3)
    assert second(x).tolist() == [2, 6, 6]
    assert x.tolist() == [1, 3, 3]
    assert len(second.plans) == 1


def test_a_graph_in_a_graph_writes_its_argument() -> None:
    inner = flow.compile(lambda x: x.add_(1))
    outer = flow.compile(lambda x: inner(x) * 2 + x)
    for _ in range(2):
        x = flow.ones(2)
        assert outer(x).tolist() == [6, 6]
        assert x.tolist() == [2, 2]


def test_graphs_of_oneflows_names_write_to_copies(seed, monkeypatch):
    """Without state, the first call captures; with an optimizer's, it is an eager step."""
    flow.manual_seed(seed)
    monkeypatch.setattr(nn.Graph, "apart", [True])
    x, y = flow.randn(3, 3), flow.ones(3)
    before, layer = x.numpy().copy(), nn.Linear(3, 3)

    class Added(nn.Graph):
        def build(self, x, y):
            x += y
            return x

    class Trained(nn.Graph):
        def __init__(self):
            super().__init__()
            self.layer = layer
            self.add_optimizer(flow.optim.Adam(layer.parameters()))

        def build(self, x):
            x *= 2
            loss = self.layer(x).sum()
            loss.backward()
            return loss

    added, trained = Added(), Trained()
    for _ in range(3):
        np.testing.assert_array_equal(added(x, y).numpy(), before + 1)
        trained(x)
        np.testing.assert_array_equal(x.numpy(), before)
    assert len(added.plans) == 1

    @flow.compile
    def increased(x):
        x += 1
        return x

    increased(x)
    np.testing.assert_array_equal(x.numpy(), before + 1)  # a function writes where it says
