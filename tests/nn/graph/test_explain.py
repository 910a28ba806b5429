"""A new capture names the difference, once, on the user's line; `explain` keeps it."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import warnings

import pytest

import flowvm as flow
from flowvm.compiler import progress
from flowvm.errors import ArgumentError, RecaptureWarning
from flowvm.nn.graph import explain as graph_status

nn, F = flow.nn, flow.nn.functional


def line_of_caller():
    """The next line of the caller."""
    return sys._getframe(1).f_lineno + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 3), nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(self.fc(x))


class Train(nn.Graph):
    def __init__(self, **options):
        super().__init__()
        self.model = Net()
        self.optimizer = flow.optim.SGD(self.model.parameters(), lr=0.1, **options)
        self.add_optimizer(self.optimizer)
        self.scale = 1.0

    def build(self, x, y):
        loss = F.cross_entropy(self.model(x), y) * self.scale
        loss.backward()
        return loss


def called(graph, *args, **kwargs):
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph(*args, **kwargs)
    return [str(w.message) for w in caught if issubclass(w.category, RecaptureWarning)]


def test_the_first_capture_is_said_nowhere():
    graph = flow.compile(lambda x: x + 1)
    assert called(graph, flow.ones(2)) == []
    assert called(graph, flow.ones(2)) == []
    assert "again" not in graph.explain()


X = flow.ones(2, 3)
ARGUMENTS = {
    "a shape": ([X], [flow.ones(3, 3)], "argument 0 was f32[2,3], is f32[3,3]"),
    "a dtype": ([X], [X.long()], "argument 0 was f32[2,3], is i64[2,3]"),
    "strides": ([X], [flow.ones(3, 2).t()], "argument 0 was f32[2,3], is f32[2, 3] stride [1, 2]"),
    "a gradient": ([X], [flow.ones(2, 3, requires_grad=True)],
                   "argument 0 was f32[2,3], is f32[2,3] that requires grad"),
    "a number": ([X, 2], [X, 3], "argument 1 was 2, is 3"),
    "a kind of number": ([X, 2], [X, 2.0], "argument 1 was 2, is 2.0"),
    "an argument more": ([X], [X, None], "argument 1 is new: None"),
    "an argument less": ([X, X], [X], "argument 1 is gone (was f32[2,3])"),
    "a place in a tree": ([{"a": (X, 1)}], [{"a": (X, 5)}], "argument 0['a'][1] was 1, is 5"),
    "a tree": ([(X,)], [[X]], "argument 0 was a tuple of 1, is a list of 1"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "now", "message"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(before, now, message):
    @flow.compile
    def total(*args):
        """The sum of every tensor and number."""
        total = flow.zeros(())
        pending = list(args)
        while pending:
            one = pending.pop()
            if isinstance(one, dict):
                pending += one.values()
            elif isinstance(one, (list, tuple)):
                pending += one
            elif one is not None:
                total = total + (one.sum() if isinstance(one, flow.Tensor) else one)
        return total

    assert called(total, *before) == []
    (text,) = called(total, *now)
    cost = r"graph total was captured again \(plan 2, (\d[\d.]* ms|\d+\.\d\d s)\): "
    took = re.match(cost, text)
    assert took
    assert text[took.end() :] == message
    assert f"captured again: {message}  {took[1]}" in total.explain()
    assert called(total, *before) == []
    assert called(total, *now) == []


def test_a_named_argument():
    graph = flow.compile(lambda x, *, scale: x * scale)
    called(graph, X, scale=1)
    assert called(graph, X, scale=4)[0].endswith("argument 'scale' was 1, is 4")


def change_an_option(graph):
    graph.optimizer.param_groups[0]["maximize"] = True


def change_to_eval(graph):
    graph.model.drop.eval()


def change_an_attribute(graph):
    graph.scale = 2.0


def change_a_parameter(graph):
    graph.model.fc.weight = nn.Parameter(flow.ones(3, 4))
    graph.optimizer.add_param_group({"params": [graph.model.fc.weight]})


def change_a_pass(graph):
    graph.config.disable("fusion")


def change_nothing_but_numbers(graph):
    graph.optimizer.param_groups[0].update(lr=0.01, weight_decay=0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_an_option, "option maximize False -> True"),
        (change_to_eval, "model.drop.training True -> False"),
        (change_an_attribute, "Train.scale 1.0 -> 2.0"),
        (change_a_pass, "graph.config was as it comes, is without fusion"),
        (change_nothing_but_numbers, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_no_argument(change, message):
    graph, x, y = Train(), flow.ones(2, 4), flow.tensor([0, 1])
    for _ in range(3):
        assert called(graph, x, y) == []
    change(graph)
    texts = called(graph, x, y)
    if message is None:
        assert texts == []
        return
    assert message in texts[0]
    assert message in graph.explain()


def test_a_number_of_an_optimizer_is_fixed_by_what_it_decides_alone():
    graph, x, y = Train(momentum=0.9), flow.ones(2, 4), flow.tensor([0, 1])
    texts = []
    for momentum in (0.9, 0.9, 0.8, 0.7, 0.0, 0.0, 0.6):
        graph.optimizer.param_groups[0]["momentum"] = momentum
        texts.append(called(graph, x, y))
    assert [len(text) for text in texts] == [0, 0, 0, 0, 1, 0, 0]  # 0.6: as 0.9
    assert "decision `bool(momentum)` True -> False" in texts[4][0]
    assert len(graph.plans) == 2


def test_grad_mode():
    graph = flow.compile(lambda x: x * 2)
    called(graph, X)
    with flow.no_grad():
        assert "grad mode was on, is off" in called(graph, X)[0]


class Stepping(flow.optim.SGD):
    def _step_group(self, group):
        for p in group["params"]:
            state = self.state.setdefault(p, {"step": 0})
            state["step"] += 1
            if state["step"] > 4:
                p.mul_(0.5)
        super()._step_group(group)


def test_a_decision_by_a_live_number_and_its_line():
    graph, x, y = Train(), flow.ones(2, 4), flow.tensor([0, 1])
    graph.optimizer = Stepping(graph.model.parameters(), lr=0.1)
    graph._optimizers.clear()
    graph.add_optimizer(graph.optimizer)
    texts = [text for _ in range(6) for text in called(graph, x, y)]
    (text,) = texts
    line = Stepping._step_group.__code__.co_firstlineno + 4
    assert f"decision `step + 1 > 4` False -> True (test_explain.py:{line})" in text


def test_the_warning_is_on_the_users_line_and_explain_has_it():
    graph = flow.compile(lambda x: x + 1)
    graph(flow.ones(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = line_of_caller()
        graph(flow.ones(3))
    (warning,) = caught
    assert warning.category is RecaptureWarning
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert f"test_explain.py:{line}" in graph.explain()


def test_it_can_be_made_an_error_and_turned_off():
    graph = flow.compile(lambda x: x + 1)
    graph(flow.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecaptureWarning)
        with pytest.raises(RecaptureWarning):
            graph(flow.ones(3))
        warnings.simplefilter("ignore", RecaptureWarning)
        assert graph(flow.ones(4)).tolist() == [2] * 4


def test_the_call_that_is_most_alike_is_the_one_compared_with():
    graph = flow.compile(lambda x, n: x + n)
    called(graph, flow.ones(2), 1)
    called(graph, flow.ones(50, 2), 9)
    assert called(graph, flow.ones(2), 2)[0].endswith("argument 1 was 1, is 2")


def test_a_call_too_many_drops_the_plan_not_used_for_longest_and_says_so():
    graph = flow.compile(lambda x: x + 1)
    for n in range(1, 17):
        called(graph, flow.ones(n))
    called(graph, flow.ones(1))
    assert "dropped" not in graph.explain()
    texts = called(graph, flow.ones(17))
    assert "more than 16 kinds of calls" in texts[1]
    assert "dropped for want of use: 1" in graph.explain()
    assert called(graph, flow.ones(1)) == []
    assert "a call like one whose plan was dropped" in called(graph, flow.ones(2))[0]
    assert len(graph.plans) == 16


# --- the line on a terminal ---------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@contextlib.contextmanager
def terminal(monkeypatch):
    """stderr is one inside; not a fixture, because pytest puts its own there for each test."""
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        patch.setattr(sys, "__stderr__", screen)
        patch.delattr(sys, "ps1", raising=False)  # as IPython leaves it
        patch.setattr(graph_status, "PATIENCE", 0.0)
        yield screen


def shown(text):
    """Return the text that a terminal shows in the end, and each state of its line on the way."""
    states = text.split("\r\x1b[2K")
    assert "\n" not in text
    return states[-1], states


def test_a_terminal_shows_the_stages_and_nothing_in_the_end(monkeypatch):
    with terminal(monkeypatch) as screen:
        flow.compile(lambda x: (x + 1).relu())(flow.ones(3))
    last, states = shown(screen.getvalue())
    assert last == ""
    assert any(s.startswith("graph <lambda>: capturing\N{HORIZONTAL ELLIPSIS}") for s in states)
    assert any("optimizing" in s for s in states)


def test_kernels_that_are_compiled_are_counted_and_an_error_takes_the_line_away(monkeypatch):
    def compile_and_fail():
        status = graph_status.Status("Train", 0)
        with status.shown():
            status.stage("capturing")
            for name in ("one", "two"):
                with progress.compiling(name):
                    pass
            raise KeyError

    with terminal(monkeypatch) as screen, pytest.raises(KeyError):
        compile_and_fail()
    last, states = shown(screen.getvalue())
    assert last == ""
    assert "graph Train: capturing, compiling kernel 2\N{HORIZONTAL ELLIPSIS}" in states[-2]


def test_what_is_no_terminal_shows_nothing(capsys, monkeypatch):
    monkeypatch.setattr(graph_status, "PATIENCE", 0.0)
    flow.compile(lambda x: x + 1)(flow.ones(3))
    assert capsys.readouterr().err == ""


# --- debug --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_debug_says_more_the_higher_its_level(level, capsys):
    graph = flow.compile(lambda x: (x + 1).relu())
    graph.debug(level)
    graph(flow.ones(3))
    output = capsys.readouterr().err
    assert ("captured and compiled, 1 operators" in output) == (level >= 1)
    assert ("fusion " in output) == (level >= 2)
    assert ("(GRAPH:" in output) == (level >= 3)
    graph(flow.ones(3))
    assert capsys.readouterr().err == ""


def test_debug_refuses_other_levels():
    with pytest.raises(ArgumentError, match="0, 1, 2 or 3, got 4"):
        nn.Graph().debug(4)


def test_a_tensor_that_was_replaced_is_said_to_be_another():
    """Two tensors look alike: the message says that it is another one, and who wrote it."""

    class Scaled(nn.Graph):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def build(self, x):
            return self.layer(x)

    graph, x = Scaled(), flow.ones(2, 3)
    graph(x)
    graph.layer.weight = nn.Parameter(flow.rand(3, 3))
    with pytest.warns(RecaptureWarning, match="layer.weight was replaced by another tensor"):
        graph(x)
    text = str(graph.explain())
    assert "weight was replaced by another tensor f32[3,3] (of #" in text
    assert "rand, test_explain.py:" in text


def test_a_tensor_that_no_machine_holds_says_who_has_the_memory():
    tensor = flow.ones(1000, 250)
    flow.vm.sync()
    with pytest.raises(flow.errors.OutOfMemoryError) as caught:
        flow.zeros(1 << 21, 1 << 21)
    text = str(caught.value)
    assert "this machine has" in text
    assert "KiB live" in text or "MiB live" in text
    assert "test_explain.py" in text  # the line that made what is kept
    assert tensor.shape == (1000, 250)
