"""Numbers that each replay computes anew: their records, their printing and their values."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from struct import pack

import numpy as np
import pytest

from flowvm.eager.live import FUNCTIONS, Alike, Decisions, Leaf, Live, live_lines
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
    value = eval(text, dict(zip("ab", names, strict=True)))
    assert repr(value) == text
    for values in ([2.0, 3], [0.5, 7]):
        box[:] = values
        assert value.find() == eval(text, {"a": values[0], "b": values[1]})


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
    assert [(repr(question), outcome) for question, outcome in a.guards] == [("a * 2 > 3", True)]
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
        lines, (name_of_value,) = live_lines([Live(name, operands, Decisions())], own)
        exec("\n".join(lines), own)
        assert own[name_of_value] == function(*[o.find() for o in operands]), name


PLAIN = {
    "float": (float, 2.5), "int": (int, 2.5), "complex": (complex, 2.5),
    "index": (operator.index, 4),
    "sqrt": (math.sqrt, 2.5), "log": (math.log, 2.5), "isnan": (math.isnan, math.nan),
    "isfinite": (math.isfinite, 2.5), "range": (lambda n: list(range(n)), 3),
    "list": (lambda n: [7, 8, 9][n], 1), "key": (lambda n: {2.5: "a"}[n], 2.5),
    "numpy": (np.sqrt, 2.5),
    "array": (lambda n: np.asarray(n).dtype, 2.5), "single": (lambda n: np.float32(3) * n, 0.1),
    "complex product": (lambda n: n * 2j, 2.5), "fraction": (lambda n: Fraction(1, 2) * n, 3),
    "whole": (lambda n: n.is_integer(), 2.5), "bits": (lambda n: n.bit_length(), 6),
    "shift": (lambda n: (n << 2, 1 << n, n & 3, 7 ^ n, ~n), 5),
    "struct": (lambda n: pack("d", n), 2.5),
    "signed zero": (lambda n: math.copysign(1.0, n), -0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_number_is_a_guard(name):
    function, value = PLAIN[name]
    (a,), box = leaves(value)
    assert repr(function(a)) == repr(function(value))
    assert all(guard.holds() for guard in a.guards)
    for other in (value + 1, 0.0, math.nan, str(value)):
        if repr(other) == repr(value):
            continue
        box[0] = other
        assert not all(guard.holds() for guard in a.guards), f"{name} of {value}, then {other}"


def test_what_is_only_shown_is_no_guard():
    (a,), _ = leaves(2.0)
    assert f"{a * 2:.2f} {a * 2}" == "4.00 a * 2"
    assert not a.guards


def test_comparisons_and_choices_are_of_the_number():
    (a, b), box = leaves(2.0, 3)
    assert min(a, b) is a
    assert max(a, 2.5, b) is b
    assert (a in (1, 2.0), b in {1, 2}, divmod(b, 2)[1].find()) == (True, False, 1)
    assert isinstance(a, float)
    assert isinstance(b, int)
    assert not isinstance(b, (float, bool, str))
    box[:] = [5.0, 3]
    assert not all(guard.holds() for guard in a.guards)


def test_another_kind_of_number_is_another_decision():
    (a,), box = leaves(2.0)
    assert isinstance(a * 3, float)
    box[0] = 2
    assert not all(guard.holds() for guard in a.guards)


def test_nothing_is_a_guard_behind_a_capture():
    (a,), _ = leaves(2.0)
    a.guards.open = False
    assert (float(a), a > 1, str(a), isinstance(a, float)) == (2.0, True, "a", True)
    assert not a.guards


def test_a_draw_is_no_plain_number():
    drawn = Leaf([3], (0,), Decisions(), ("draw", 0, 1), "call0")
    with pytest.raises(CaptureError, match=r"call0 \+ 1"):
        float(drawn + 1)


def test_a_guard_without_an_answer_is_not_met():
    (a, b), box = leaves(2.0, 3)
    assert a / b < 1
    box[1] = 0
    assert not all(guard.holds() for guard in a.guards)


def test_numbers_that_were_equal_are_asked_for_again():
    first, second = {"step": 3}, {"step": 3}
    leaf = Leaf(first, ("step",))
    leaf.others.append(second)
    alike = Alike(leaf)
    assert alike.holds()
    second["step"] = 4
    assert not alike.holds()
    assert "step" in alike.difference()
