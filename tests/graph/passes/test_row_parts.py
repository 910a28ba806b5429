"""The checks of a saved program on rows: parts that are no graph, or of other operands."""

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, FlowError
from flowvm.graph.passes.row_layout import Part, RowParts
from flowvm.graph.passes.row_parts import PARTS, check_parts, check_places
from flowvm.meta.meta import TensorMeta
from flowvm.ops.pointwise.arithmetic import _add

META = TensorMeta.of((2, 3), flow.float32)
SHORT = TensorMeta.of((3,), flow.float32)
ADD = _add.operator

# place 0 is the output, 1 and 2 are inputs, -1 is made and read inside
GOOD = (
    (ADD, (), ((-1, META), (1, META), (2, SHORT)), ()),
    (ADD, (), ((0, META), (-1, META), (1, META)), ()),
)


def test_a_graph_passes():
    check_parts("good", GOOD, 1, 2, 0)


@pytest.mark.parametrize(
    ("parts", "counts", "words"),
    [
        (((ADD, (), ((0, META), (1, META)), ()),), (1, 1, 0), "part 0 has 2 operands"),
        (((*GOOD[0][:3], (0,)), GOOD[1]), (1, 2, 1), "part 0, add, cannot be fused"),
        (GOOD, (1, 2, 1), "its parts do not take 1 numbers"),
        (GOOD, (1, 3, 0), r"its parts have operands \[0, 1, 2\]"),
        (
            ((ADD, (), ((-1, SHORT), (1, SHORT), (1, SHORT)), ()),
             (ADD, (), ((0, META), (-1, META), (1, META)), ())),
            (1, 1, 0), "part 0 makes fewer bytes than others read",
        ),
    ],
)  # fmt: skip
def test_other_parts_are_refused(parts, counts, words):
    with pytest.raises(ArgumentError, match=words):
        check_parts("bad", parts, *counts)


def test_parts_are_read_behind_their_maker():
    with pytest.raises(FlowError):
        check_parts("turned", GOOD[::-1], 1, 2, 0)


def test_rows_of_the_file_are_of_their_kinds():
    name, parts, *_ = PARTS
    name("a name", "name")
    parts(GOOD, "parts")
    for wrong in ((), [GOOD[0]], ((None, *GOOD[0][1:]),), ((ADD, (), ((0, "meta"),), ()),)):
        with pytest.raises(ArgumentError):
            parts(wrong, "parts")


def program():
    return RowParts(tuple(Part(*part) for part in GOOD), 1)


def test_operands_of_a_node_fit_the_places():
    check_places(program(), [META], [META, SHORT])
    long = TensorMeta.of((9, 3), flow.float32)
    check_places(program(), [META], [META, long])  # of which a part is read
    with pytest.raises(ArgumentError, match="a program on rows takes"):
        check_places(program(), [META], [SHORT, SHORT])
    other = TensorMeta.of((2, 3), flow.float64)
    with pytest.raises(ArgumentError, match="a program on rows takes"):
        check_places(program(), [META], [META, TensorMeta.of((3,), flow.float64)])
    with pytest.raises(ArgumentError):
        check_places(program(), [other], [META, SHORT])
    with pytest.raises(ArgumentError, match="makes no outputs"):
        check_places(program(), [long], [META, SHORT])
