"""Operations of products by hand: 2 a multiplication."""

import pytest

import flowvm as flow
from flowvm.vm.watch.work import flops_of


def metas(*shapes):
    return [flow.empty(shape)._meta for shape in shapes]


@pytest.mark.parametrize(
    ("name", "shapes", "count"),
    [
        ("matmul", [(2, 4), (2, 3), (3, 4)], 2 * 2 * 3 * 4),
        ("bmm", [(5, 2, 4), (5, 2, 3), (5, 3, 4)], 5 * 2 * 2 * 3 * 4),
        ("conv", [(1, 8, 6, 6), (1, 3, 8, 8), (8, 3, 3, 3)], 2 * 8 * 36 * 27),
        ("relu", [(2, 2), (2, 2)], 0),
        ("add", [(2, 2), (2, 2), (2, 2)], 0),
    ],
)
def test_work_of_an_instruction(name, shapes, count):
    assert flops_of(name, metas(*shapes)) == count
