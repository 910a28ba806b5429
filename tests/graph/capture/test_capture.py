"""Capture: nothing runs, everything is noted, and the notes give the results of eager code."""

from __future__ import annotations

import math

import numpy as np
import pytest

import flowvm as flow
from flowvm.commands.warmup import as_tensors
from flowvm.eager.live import Decisions, Leaf, Live, freeze
from flowvm.eager.modes import use_stream
from flowvm.errors import CaptureError
from flowvm.graph.capture.capture import capturing
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand
from flowvm.ops.declare.registry import SAMPLES

nn = flow.nn


def tensors_in(value):
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    return [value] if isinstance(value, flow.Tensor) else []


def outputs_of(function, args, kwargs, seed=3):
    flow.manual_seed(seed)
    return tensors_in(function(*args, **kwargs))


@pytest.mark.parametrize("known", SAMPLES, ids=lambda known: known.name)
@pytest.mark.product(4)
def test_every_op_captured_and_interpreted_gives_the_same_bits(known, rng):
    for sample in list(known.generate(rng))[:3]:
        args = [as_tensors(value, False) for value in sample.args]
        kwargs = {name: as_tensors(value, False) for name, value in sample.kwargs.items()}
        inputs = tensors_in([*args, *kwargs.values()])
        eager = [t.numpy() for t in outputs_of(known.function, args, kwargs)]
        try:
            with capturing(known.name, [(t, "") for t in dict.fromkeys(inputs)]) as capture:
                for t in outputs_of(known.function, args, kwargs):
                    capture.output(t)
        except CaptureError:  # the op's result, or its shape, depends on values
            continue
        capture.graph.check()
        results = interpret(capture.graph, list(dict.fromkeys(inputs)))
        assert len(results) == len(eager)
        for ours, theirs in zip(results, eager, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)
    flow.vm.sync()


def train(model, optimizer, x, y, capture=None):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if capture is not None:
        capture.on_step = lambda optimizer: None
    optimizer.step()
    return loss


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * 16, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["SGD", "momentum"])
def test_training_steps_replayed_are_eager_training(kind):
    """The steps after the first: momentum's buffers are there."""
    options = {"lr": 0.1, **({"momentum": 0.9} if kind == "momentum" else {})}
    losses, weights = [], []
    for captured in (False, True):
        flow.manual_seed(0)
        model = small_cnn()
        optimizer = flow.optim.SGD(model.parameters(), **options)
        x, y = flow.randn(6, 1, 8, 8), flow.randint(0, 3, (6,))
        values = [train(model, optimizer, x, y).item()]
        if captured:
            with capturing("step", [(x, "x"), (y, "y")]) as capture:
                capture.output(train(model, optimizer, x, y, capture))
            capture.graph.check()
            model.zero_grad()
            values += [interpret(capture.graph, [x, y])[0].item() for _ in range(4)]
        else:
            values += [train(model, optimizer, x, y).item() for _ in range(4)]
        losses.append(values)
        weights.append([v.numpy() for v in model.state_dict().values()])
    assert losses[0] == losses[1]
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_capture_computes_nothing_and_changes_no_variable():
    w = flow.ones(3)
    with capturing("quiet", []) as capture:
        out = w * 2
        w.add_(5)
        capture.output(out + w)
    assert w.tolist() == [1, 1, 1]
    assert [n.operator.name for n in capture.graph.nodes] == ["mul", "add", "add"]
    assert capture.graph.mutated()[0].held.id == w.storage().id
    flow.vm.sync()  # that nothing was computed is no error


def test_replay_changes_variables_in_the_captured_order():
    w, x = flow.ones(3), flow.zeros(3)
    with capturing("order", [(x, "x")]) as capture:
        first = w + x
        w.mul_(3)
        capture.output(first)
        capture.output(w + x)
    assert [t.tolist() for t in interpret(capture.graph, [flow.ones(3)])] == [[2] * 3, [4] * 3]
    assert [t.tolist() for t in interpret(capture.graph, [flow.ones(3)])] == [[4] * 3, [10] * 3]
    assert w.tolist() == [9] * 3


@pytest.mark.parametrize(
    "read",
    [lambda t: t.item(), lambda t: t.numpy(), bool, lambda t: t.tolist(), float],
    ids=["item", "numpy", "bool", "tolist", "float"],
)  # fmt: skip
def test_reading_a_value_names_the_rule_and_the_line(read):
    x = flow.ones(1)

    def build():
        with capturing("reading", []):
            read(x.sum() * 2)  # this line

    with pytest.raises(CaptureError, match="return it from build") as caught:
        build()
    assert "this line" in "\n".join(caught.value.__notes__)
    assert (flow.ones(2) + 1).tolist() == [2, 2]
    flow.vm.sync()


def test_a_tensor_that_escaped_has_no_value_for_later_code_either():
    x = flow.ones(2)
    with capturing("escape", []):
        tensor = x + 1
    later = tensor * 2
    for t in (tensor, later):
        with pytest.raises(CaptureError):
            t.numpy()
    assert (x + 1).tolist() == [2, 2]


def test_an_exception_in_the_middle_leaves_everything_usable():
    x = flow.ones(2)

    def build():
        with capturing("broken", []):
            return (x + 1) / (1 // 0)

    with pytest.raises(ZeroDivisionError):
        build()
    assert (x + 1).tolist() == [2, 2]
    with capturing("again", []) as capture:
        capture.output(x + 1)
    assert interpret(capture.graph, [])[0].tolist() == [2, 2]


def test_captures_do_not_nest():
    with pytest.raises(CaptureError, match="inner"), capturing("a", []), capturing("b", []):
        pass


def test_other_threads_go_on_computing():
    from tests.vm.live import Background

    def compute():
        return (flow.ones(4) * 3).tolist()

    with capturing("one thread", []) as capture:
        assert Background(compute).result() == [3] * 4
    assert not capture.graph.nodes


def test_views_and_streams_inside():
    x = flow.arange(12).reshape(3, 4).float()
    stream = flow.Stream("aside")
    with capturing("views", [(x, "x")]) as capture:
        y = (x.t()[1:] + 1).reshape(-1)
        with use_stream(stream.number):
            capture.output(y[::2] * 2)
    expected = ((np.arange(12.0).reshape(3, 4).T[1:] + 1).reshape(-1))[::2] * 2
    np.testing.assert_array_equal(interpret(capture.graph, [x])[0].numpy(), expected)


def test_inputs_with_another_meta_are_refused():
    x = flow.ones(2)
    with capturing("metas", [(x, "x")]) as capture:
        capture.output(x + 1)
    with pytest.raises(CaptureError, match="captured for"):
        interpret(capture.graph, [flow.ones(3)])


# --- live numbers -----------------------------------------------------------------------------


def test_live_numbers_are_found_anew():
    box, guards = [0.5], Decisions()
    rate = Leaf(box, (0,), guards)
    w, g = flow.ones(2), flow.ones(2)
    with capturing("sgd", []) as capture:
        flow.ops.sgd_step_(w, g, False, 2 * rate / 4, 0.0)
    interpret(capture.graph, [])
    assert w.tolist() == [0.75] * 2
    box[0] = 1.0
    interpret(capture.graph, [])
    assert w.tolist() == [0.25] * 2
    assert {question.function for question, _ in guards} <= {"is_float"}  # and nothing by its value


def test_arithmetic_with_live_numbers():
    step = Leaf([3], (0,))
    cases = {
        "1 - 0.9 ** step": 1 - 0.9**3, "step ** 2": 9, "7 // step": 2, "7 % step": 1,
        "-step + 1.5": -1.5, "abs(step - 5)": 2, "math.floor(step / 2)": 1, "2.0 * step": 6.0,
        "round(step / 7, 2)": 0.43,
    }  # fmt: skip
    for text, expected in cases.items():
        number = eval(text, {"step": step, "math": math})
        assert isinstance(number, Live), text
        assert freeze(number) == expected


def test_a_decision_by_a_live_number_becomes_a_guard():
    box, guards = [3], Decisions()
    step = Leaf(box, (0,), guards)
    branch = "late" if step > 2 else "early"
    assert branch == "late"
    ((find, outcome),) = guards
    assert outcome is find() is True
    box[0] = 1
    assert find() is False


# --- the checker ------------------------------------------------------------------------------


def graph_of_two():
    x = flow.ones(4)
    with capturing("two", [(x, "x")]) as capture:
        y = x + 1
        capture.output(y * 2)
    return capture.graph


def test_the_checker_accepts_what_capture_makes_and_prints_it():
    graph = graph_of_two()
    graph.check()
    text = repr(graph)
    for part in ("LogicalGraph two: 2 nodes", "in   %0 x", "add", "mul", "test_capture.py:", "out"):
        assert part in text


def broken(change):
    graph = graph_of_two()
    change(graph)
    with pytest.raises(CaptureError) as caught:
        graph.check()
    return str(caught.value)


def replace(node, **changes):
    for name, value in changes.items():
        setattr(node, name, value)


def test_the_checker_refuses_what_cannot_be():
    def swap(graph: LogicalGraph):
        graph.nodes.reverse()

    def shrink(graph: LogicalGraph):
        graph.nodes[0].outputs[0].buffer.nbytes = 8

    def twice(graph: LogicalGraph):
        graph.nodes.append(graph.nodes[0])

    def other_meta(graph: LogicalGraph):
        old = graph.nodes[1].outputs[0]
        meta = old.meta.with_shape((2,))
        replace(graph.nodes[1], outputs=(Operand(old.buffer, 0, meta),))

    def lost_output(graph: LogicalGraph):
        buffer = Buffer(99, BufferKind.TEMPORARY, 16)
        graph.outputs[0] = Operand(buffer, 0, graph.outputs[0].meta)

    assert "used before it is written" in broken(swap)
    assert "reaches from byte" in broken(shrink)
    assert "made anew" in broken(twice)
    assert "the graph says" in broken(other_meta)
    assert "written by no node" in broken(lost_output)
