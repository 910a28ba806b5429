"""The debugger: its stops, its views, and unchanged results of programs."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.vm.engine.debugger import Stop
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.prompt import StepEnded


def line_here() -> int:
    return sys._getframe(1).f_lineno


def program(x: flow.Tensor) -> flow.Tensor:
    y = x @ x
    z = y + 1
    z.mul_(2.0)
    return z.sum()


def test_every_instruction_in_order() -> None:
    x = flow.ones(2, 2)
    stops: list[Stop] = []
    with flow.vm.step(on=stops.append) as stepping:
        actual = program(x)
    assert actual.item() == 24.0
    assert [s.op for s in stops] == ["matmul", "add", "mul", "sum"]
    assert stepping.stops == 4
    assert not any(s.over for s in stops)
    assert [s.line.split(":")[0] for s in stops] == ["test_stepping.py"] * 4
    lines = [int(s.line.split(":")[1]) for s in stops]
    assert lines == list(range(lines[0], lines[0] + 4))
    product, add, scaled, total = stops
    np.testing.assert_array_equal(product["input"].value, np.ones((2, 2)))
    assert product["out"].value is None
    assert product["out"].access == "mut"
    np.testing.assert_array_equal(add["x"].value, np.full((2, 2), 2.0))
    np.testing.assert_array_equal(total["x"].value, np.full((2, 2), 6.0))
    assert scaled.frame is not None
    assert scaled.frame.f_code is program.__code__
    assert engine.sequential.stepping is None
    assert "in front of" in repr(product)
    assert "float32[2, 2]" in repr(product)
    with pytest.raises(ArgumentError, match="matmul has no operand 'w'"):
        product["w"]


def test_breakpoints() -> None:
    x, stops = flow.ones(2, 2), []
    with flow.vm.step(op="sum", on=stops.append):
        program(x)
    assert [s.op for s in stops] == ["sum"]
    stops.clear()
    with flow.vm.step(storage=x, on=stops.append):
        program(x)
    assert [s.op for s in stops] == ["matmul"]
    number = line_here()
    for line in (number + 4, f"test_stepping.py:{number + 4}", f"{__file__}:{number + 4}"):
        stops.clear()
        with flow.vm.step(line=line, on=stops.append):
            y = x * 3
            y + 1
        assert len(stops) == 1
    assert stops[0].why.startswith("line ")


def test_behind_what_made_a_nan() -> None:
    x, stops = flow.zeros(3), []
    with flow.vm.step(nan=True, on=stops.append):
        y = x + 1
        z = x / x
        (z * 2).sum()  # has one already
        y.log()
    (stop,) = stops
    assert (stop.op, stop.over, stop.why) == ("div", True, "a NaN")
    assert np.isnan(stop["out"].value).all()
    assert "behind" in repr(stop)


def test_operands_are_as_they_lie_in_memory() -> None:
    base = flow.arange(12, dtype=flow.bfloat16).reshape(3, 4)
    stops: list[Stop] = []
    with flow.vm.step(op="exp", on=stops.append):
        base[1:].t().exp()
    np.testing.assert_array_equal(stops[0]["x"].value, np.arange(12).reshape(3, 4)[1:].T)


def test_backward_and_other_threads() -> None:
    w = flow.ones(3, requires_grad=True)
    stops: list[Stop] = []
    with flow.vm.step(on=stops.append):
        loss = (w * w).sum()
        other = threading.Thread(target=lambda: flow.ones(4).exp().sum().item())
        other.start()
        other.join()
        loss.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2.0] * 3
    assert "exp" not in [s.op for s in stops]
    assert stops[0].op == "mul"
    assert len(stops) > 3


def test_what_is_issued_at_a_stop_comes_behind_it() -> None:
    x, results = flow.full((2,), 3.0), []

    def look(stop: Stop) -> None:
        results.append((stop.op, (x * 10).tolist()))

    with flow.vm.step(op="add", on=look):
        y = x + 1
    assert results == [("add", [30.0, 30.0])]
    assert y.tolist() == [4.0, 4.0]


def test_an_error_of_the_handler_or_of_a_kernel_leaves_nothing_behind() -> None:
    x = flow.ones(3)

    def fail(stop: Stop) -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"), flow.vm.step(on=fail):
        x + 1
    assert engine.sequential.stepping is None
    with pytest.raises(IndexError), flow.vm.step(on=lambda stop: None):
        x[flow.tensor([7])]
    assert (x * 2).tolist() == [2.0] * 3
    assert bool(engine.threads.vetoes) == (flow.config.engine == "sequential" or flow.config.sync)


def test_one_inside_the_other() -> None:
    x, outer, inner = flow.ones(2), [], []
    with flow.vm.step(op="exp", on=outer.append):
        x.exp()
        with flow.vm.step(op="add", on=inner.append):
            x.exp()
            x + 1
        x.exp()
    assert [s.op for s in outer] == ["exp", "exp"]
    assert [s.op for s in inner] == ["add"]


def answer_with(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_the_prompt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    x = flow.ones(2, 2)
    answer_with(monkeypatch, "p input\np x\np out\np nothing\nw\nhelp next\n\nc\n")
    with flow.vm.step(op="matmul"):
        actual = program(x)
    output = capsys.readouterr().out
    assert actual.item() == 24.0
    assert output.count("in front of #") == 2  # matmul, and behind `next` the add
    assert "[[1. 1.]\n [1. 1.]]" in output
    assert output.count("[[1. 1.]\n [1. 1.]]") == 2  # the variable of the frame, too
    assert "not made yet" in output
    assert "no operand and no variable 'nothing': out, input, other" in output
    assert "in program" in output
    assert "run this instruction" in output


@pytest.mark.parametrize("text", ["q\n", ""])
def test_the_prompt_is_left(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    answer_with(monkeypatch, text)
    x: Any = flow.ones(2)
    with pytest.raises(StepEnded), flow.vm.step():
        x + 1
    assert (x + 1).tolist() == [2.0, 2.0]


def test_what_is_no_breakpoint_is_said() -> None:
    for arguments, text in (
        ({"op": 3}, "name of an operator"),
        ({"line": 1.5}, "line is a number"),
        ({"line": True}, "line is a number"),
        ({"storage": 3}, "storage is a tensor"),
        ({"on": "print"}, "on is called"),
    ):
        with pytest.raises(ArgumentError, match=text):
            flow.vm.step(**arguments)
