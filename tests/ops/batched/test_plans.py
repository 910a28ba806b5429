"""Plans: the form that a call takes, the attributes that it moves, and the calls that have none."""

import pytest

import flowvm as flow
from flowvm.eager.declaration import Kernel, Signature
from flowvm.errors import ShapeError
from flowvm.meta.batched_meta import Axis, axes_of, with_axes
from flowvm.meta.meta import TensorMeta
from flowvm.ops.batched import plans
from flowvm.ops.batched.plans import plan_of, results_of
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.pointwise.arithmetic import _add
from flowvm.ops.rows import softmax

CPU = flow.device("cpu")
LEVEL = Axis(1, 4, 6)


def meta(shape, level=LEVEL, dtype=flow.float32, stride=None):
    local = TensorMeta.of(shape, dtype, CPU, stride)
    return with_axes(local, [level]) if level else local


def test_operands_that_are_alike_are_called_once():
    shared = LEVEL._replace(stride=0)
    plan = plan_of(_add.operator, (meta((2, 3), shared), meta((3,), None)), (), (shared,))
    assert [m.shape for m in plan.metas] == [(2, 3), (3,)]
    assert not plan.dense
    out = plan.wrap(0, plan.metas[0])
    assert axes_of(out) == (shared,)


def test_elementwise_calls_broadcast_levels():
    plan = plan_of(_add.operator, (meta((2, 3)), meta((3,), None)), (), ())
    assert [m.shape for m in plan.metas] == [(4, 2, 3), (3,)]
    plan = plan_of(_add.operator, (meta((3,), Axis(1, 4, 3)), meta((2, 3), None)), (), ())
    assert [m.shape for m in plan.metas] == [(4, 1, 3), (2, 3)]
    out = plan.wrap(0, TensorMeta.of((4, 2, 3), flow.float32))
    assert (tuple(out.shape), axes_of(out)) == ((2, 3), (Axis(1, 4, 6),))


def test_numbers_that_would_change_the_dtype_have_no_plan():
    number = meta((), Axis(1, 4, 1), flow.float64)
    assert plan_of(_add.operator, (meta((2, 3)), number), (), ()) is None
    assert plan_of(_add.operator, (meta((2, 3), dtype=flow.float64), number), (), ()) is not None


def test_errors_are_those_of_one_example():
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        plan_of(_add.operator, (meta((2, 3)), meta((4,))), (), ())


class Named:
    """An operator of some attributes, for `moved_attrs`."""

    def __init__(self, shaped="", **said):
        def infer(): ...

        infer.__annotations__ = said
        self.signature = Signature((), (), attrs=tuple(said), shaped=shaped)
        self.kernel = Kernel(infer, infer)


def test_attributes_that_name_dimensions_are_moved():
    op = Named(dim="int", dims="Dims", where="Dim", other="int")
    axes = (LEVEL, Axis(2, 5, 24))
    assert plans.moved_attrs(op, (1, (0, 2), -1, 7), axes, 3) == (3, (2, 4), -1, 7)
    assert plans.moved_attrs(op, (0, (), 0, 7), axes, 0) == (2, (), 2, 7)
    shaped = Named(shaped="size", size="Shape")
    assert plans.moved_attrs(shaped, ((2, 3),), axes, 2) == ((4, 5, 2, 3),)


def test_operands_with_gaps_are_copied():
    plain, apart = meta((2, 3), None), TensorMeta.of((2, 3), flow.float32, CPU, (1, 2))
    dense, metas = plans.laid((plain, apart))
    assert dense == ((1, apart),)
    assert [m.contiguous for m in metas] == [True, True]


@pytest.mark.parametrize("dim", [0, 1])
def test_dimensions_of_rows_are_moved(dim):
    """The levels in front: a softmax computes them apart, as its letters say."""
    x = meta((2, 3))
    plan = plan_of(operator_of(softmax._softmax), (x,), (dim,), ())
    assert [m.shape for m in plan.metas] == [(4, 2, 3)]
    assert plan.attrs == (dim + 1,)
    (out,) = results_of(operator_of(softmax._softmax), plan.metas, plan.attrs)
    assert tuple(plan.wrap(0, out).shape) == (2, 3)
