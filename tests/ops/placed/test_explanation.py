"""`flow.sbp.explain`: a line a call, the boxing to the chosen signature, and its bytes."""

import numpy as np
import ranks

import flowvm as flow
from flowvm.meta.placements import broadcast, split
from flowvm.ops.placed.explanation import Explanation, explain


def explained(function, size=2):
    """Each rank's explanation of a function of a matrix whose rows are split."""

    def rank(k):
        where = flow.placement("cpu", list(range(size)))
        x = ranks.held(np.arange(16.0).reshape(4, 4), where, (split(0),))
        return explain(function, x)

    return ranks.run(size, rank)


def test_calls_are_listed_in_their_order():
    first, second = explained(lambda x: (x + x).exp())
    assert isinstance(first, Explanation)
    assert [line.op for line in first.lines] == ["add", "exp"]
    assert [line.held for line in first.lines] == [("S(0)", "S(0)"), ("S(0)",)]
    assert first.bytes == 0
    assert first.result.sbp == (split(0),)
    assert str(first).splitlines()[-1] == "each rank receives 0 B in 2 calls"
    assert [line.op for line in second.lines] == ["add", "exp"]


def test_boxing_is_named_with_its_bytes():
    def function(x):
        return x + x.to_global(sbp=broadcast)

    first, _ = explained(function)
    line = next(line for line in first.lines if line.op == "add")
    assert line.held == ("S(0)", "B")
    assert line.choice.bytes == 0  # a rank cuts its part of what it has whole
    text = str(first)
    assert repr(first) == text
    assert "add" in text
    assert first._repr_html_().count("<") > 0


def test_calls_with_an_entry_are_asked_about_again():
    def function(x):
        return x * x

    for _ in range(2):
        first, _ = explained(function)
        assert [line.op for line in first.lines] == ["mul"]
