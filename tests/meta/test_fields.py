"""Classes of rows: an `__init__` made of annotated fields."""

import inspect

import pytest

from flowvm.fields import fields_of, give_init


class Base:
    def __init__(self):
        self.begun = True


class Row(Base):
    rate: float
    _: object
    steps: int = 3


def test_fields_become_the_arguments_of_init():
    assert fields_of(Row) == ["rate", "_", "steps"]
    give_init(
        Row,
        fields_of(Row),
        ["super(cls, self).__init__()", "self.rate, self.steps = rate, steps"],
        {},
    )
    assert str(inspect.signature(Row)).startswith("(rate")
    row = Row(0.5, steps=7)
    assert (row.begun, row.rate, row.steps, Row(1.0).steps) == (True, 0.5, 7, 3)
    with pytest.raises(TypeError):
        Row(0.5, 7)  # steps is a keyword
