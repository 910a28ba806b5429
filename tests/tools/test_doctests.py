"""The runner of the docstrings' examples: it finds wrong and missing examples."""

import pytest

import flowvm as flow
from tools import doctests


def test_an_example_that_prints_something_else_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctests.run("right", ">>> flow.tensor(1) + 1\ntensor(2)") == (1, 0)
    assert doctests.run("wrong", ">>> flow.tensor(1) + 1\ntensor(3)") == (1, 1)
    assert "tensor(3)" in capsys.readouterr().out


def test_examples_share_nothing() -> None:
    assert doctests.run("first", ">>> x = flow.rand(2)") == (1, 0)
    assert doctests.run("second", ">>> x\n") == (1, 1)


def test_a_name_without_an_example_is_missing() -> None:
    def bare() -> None:
        """Nothing to see."""

    def in_place() -> None:
        """In-place `add`: the result replaces the values of `x`; `x`."""

    assert not doctests.has_example("flow", bare)
    assert doctests.has_example("flow", flow.add)
    assert doctests.has_example("flow", in_place)


def test_a_complete_space_with_a_name_without_one_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Place:
        def bare(self) -> None:
            """Nothing to see."""

    monkeypatch.setitem(doctests.SPACES, "optim", doctests.Space(Place, False))
    assert doctests.main(["optim"]) == 0
    monkeypatch.setitem(doctests.SPACES, "optim", doctests.Space(Place, True))
    assert doctests.main(["optim"]) == 1
    assert "an example is missing: bare" in capsys.readouterr().out
