"""The figures of the house: fields of classes."""

from __future__ import annotations

import ast

from tools.house import fields_of, most_fields

SOURCE = """
class Part:
    shared: ClassVar[int] = 0
    width: int
    names: list[str] = []

    def __init__(self) -> None:
        self.height = self.width
        self.first, (self.last, *rest) = 0, (1, 2)

    def grow(self, other: "Part") -> None:
        self.height += 1
        other.depth = self.unset
"""


def test_fields_are_annotated_names_and_what_methods_set_on_self() -> None:
    (node,) = ast.parse(SOURCE).body
    assert isinstance(node, ast.ClassDef)
    assert fields_of(node) == {"width", "names", "height", "first", "last"}


def test_the_largest_classes_come_first() -> None:
    counts = list(most_fields(5).values())
    assert len(counts) == 5
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] > 1
