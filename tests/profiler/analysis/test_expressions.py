"""Expressions over columns: what they are true of, and errors with a caret under what is wrong."""

import numpy as np
import pytest

from flowvm.errors import ArgumentError
from flowvm.profiler.analysis import expressions

COLUMNS = {
    "run": np.array([1.0, 5.0, 20.0, 0.0]),
    "seq": np.array([3, 4, 5, 6]),
    "op": np.array(["add", "matmul", "add_", "mul"], object),
    "late": np.array([True, False, True, False]),
    "wait.dep": np.array([0.0, 2.0, 30.0, 0.0]),
}


def rows(text, count=4):
    return expressions.true_of(text, COLUMNS, COLUMNS.__getitem__, count).tolist()


def python(text):
    """Evaluate in Python, row by row; texts are no columns there."""
    out = []
    for k in range(4):
        names = {name.replace(".", "_"): column[k] for name, column in COLUMNS.items()}
        out.append(bool(eval(text.replace("wait.dep", "wait_dep"), names)))
    return out


@pytest.mark.parametrize(
    "text",
    [
        "run > 4", "1 < run <= 20", "run != 5 and seq < 6", "late or run == 5", "not late",
        "op == 'add'", "'add' in op", "'add' not in op", "op in ('mul', 'add')", "seq in [3, 6]",
        "seq % 2 == 0", "run * 2 + 1 > seq", "-run < -4", "run // 4 >= 1", "seq ** 2 > 20",
        "wait.dep > run", "late and late + 1 == 2", "op in 'add_matmul'", "op > 'b'", "True",
        "run / 4 > 1 and (op == 'matmul' or seq > 4)", "not (run > 4 or late)", "1 in (seq - 3,)",
    ],
)  # fmt: skip
def test_expressions_are_pythons(text):
    assert rows(text) == python(text)


def test_divisions_by_nought_are_infinite_in_columns():
    assert rows("1 / run > 100") == [False, False, False, True]
    with pytest.raises(ArgumentError, match=r"query: .*division by zero|zero"):
        rows("seq > 1 / 0")


@pytest.mark.parametrize(
    ("text", "words", "caret"),
    [
        ("runs > 4", "there is no column 'runs'; there are run, seq", "^^^^"),
        ("run = 4", "to compare, use ==", "    ^"),
        ("run >", "query is no expression", None),
        ("run", "this is no question", "^^^"),
        ("run and late", "neither true nor false", "^^^"),
        ("op > 4", "compares a text with a number", "^^^^^^"),
        ("op + 1 > 2", "this is a text, and a number is needed", "^^"),
        ("run is 4", "`is` compares objects", None),
        ("len(op) > 3", "query knows no Call", "^^^^^^^"),
        ("run in op", "`in` looks for a text in a text", "       ^^"),
        ("run in (1, 'a')", "of another kind", "           ^^^"),
        ("op.__class__ == 'a'", "there is no column 'op.__class__'", "^^^^^^^^^^^^"),
        ("'é' == op and runs", "no column 'runs'", "              ^^^^"),
        ("None", "query knows no Constant", "^^^^"),
    ],
)
def test_what_is_wrong_has_a_caret(text, words, caret):
    with pytest.raises(ArgumentError) as error:
        rows(text)
    what, line, below = str(error.value).split("\n")
    assert words in what
    assert line == f"    {text}"
    assert set(below) <= {" ", "^"}
    if caret is not None:
        assert below == f"    {caret}"


@pytest.mark.parametrize(
    "text", ["-" * 900 + "1 < 2", "not " * 490 + "late", "1" + "+1" * 900 + " > 0"]
)
def test_deep_expressions_are_an_error_in_words(text):
    with pytest.raises(ArgumentError, match="query"):
        rows(text)


def test_parentheses_are_no_depth():
    assert rows("(" * 150 + "late" + ")" * 150) == COLUMNS["late"].tolist()


def test_long_expressions_are_not_read():
    with pytest.raises(ArgumentError, match="2,001 letters; at most 2,000"):
        rows("1" * 2001)


def test_columns_are_asked_once():
    asked = []

    def column(name):
        asked.append(name)
        return COLUMNS[name]

    assert expressions.true_of("run > 1 and run < 9", COLUMNS, column, 4).tolist() == [
        False, True, False, False,
    ]  # fmt: skip
    assert asked == ["run"]
    assert expressions.true_of("True", (), column, 0).tolist() == []
