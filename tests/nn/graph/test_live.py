"""Numbers that are found anew: what is remembered of them, how they are printed and computed."""

from __future__ import annotations

import math

import pytest

from flowvm.eager.live import FUNCTIONS, Decisions, Leaf, Live, live_lines
from flowvm.errors import CaptureError


def leaves(*values):
    """A leaf for each value, of one capture, and the place where the numbers are."""
    box, guards = list(values), Decisions()
    names = "abcdef"
    return [Leaf(box, (k,), guards, ("box", k), names[k]) for k in range(len(values))], box


@pytest.mark.parametrize(
    "text",
    [
        "a * (1 - 0.9 ** b)", "a - (b - a)", "a - b - a", "(a + b) / (a * b)", "a / (b / a)",
        "-a ** 2", "(-a) ** 2", "(-2.0) ** b", "a ** b ** 2", "(a ** b) ** 2", "abs(a - 5)",
        "round(a / 7, 2)", "a // 2 % b", "-(a + b)", "1 - a", "2.5 / a",
    ],
)  # fmt: skip
def test_an_expression_prints_as_python_that_means_it(text):
    names, box = leaves(2.0, 3)
    made = eval(text, dict(zip("ab", names, strict=True)))
    assert repr(made) == text
    for values in ([2.0, 3], [0.5, 7]):
        box[:] = values
        assert made.find() == eval(text, {"a": values[0], "b": values[1]})


def test_equal_expressions_are_one():
    (a, b), _ = leaves(2.0, 3)
    assert a * b + 1 is a * b + 1
    assert a * b + 1 is not a * b + 1.0
    assert a + 0.0 is not a + -0.0
    assert a * b is not b * a


def test_the_same_decision_is_one_guard():
    (a,), _ = leaves(2.0)
    for _ in range(5):
        assert a * 2 > 3
    assert [(repr(asked), outcome) for asked, outcome in a.guards] == [("a * 2 > 3", True)]
    assert bool(a)
    assert len(a.guards) == 2


def test_all_numbers_of_a_replay_as_one_program():
    (a, b), box = leaves(2.0, 3)
    shared = 1 - 0.9**b
    values = [a * shared, shared, a, 7, math.floor(a / 3), round(a, 1), abs(-b), a < b, math.inf]
    own = {}
    lines, names = live_lines(values, own)
    program = "\n".join(lines)
    assert program.count("**") == 1
    for numbers in ([2.0, 3], [5.55, 1]):
        box[:] = numbers
        scope = dict(own)
        exec(program, scope)
        assert [scope[n] for n in names] == [v.find() if isinstance(v, Live) else v for v in values]


def test_every_function_is_written_as_it_computes():
    (a, b), _ = leaves(7, 3)
    for name, (function, form, _) in FUNCTIONS.items():
        operands = (a, b) if form.count("{}") == 2 else (a,)
        own = {}
        lines, (found,) = live_lines([Live(name, operands, Decisions())], own)
        exec("\n".join(lines), own)
        assert own[found] == function(*[o.find() for o in operands]), name


def test_a_refusal_names_the_expression():
    (a, b), _ = leaves(2.0, 3)
    with pytest.raises(CaptureError, match=r"a \* b \+ 1, 7.0 now"):
        float(a * b + 1)


def test_numbers_that_were_equal_are_asked_for_again():
    first, second = {"step": 3}, {"step": 3}
    leaf = Leaf(first, ("step",))
    leaf.others.append(second)
    assert leaf.alike()
    assert leaf.difference() == []
    second["step"] = 4
    assert not leaf.alike()
    assert "step" in leaf.difference()[0]
