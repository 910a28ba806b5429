"""Copies between devices, as far as the CPU and the meta device show them."""

import pytest

import flowvm as flow
from flowvm.errors import ArgumentTypeError, DeviceError, ValuelessError
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare import transfers
from flowvm.ops.declare.transfers import moved, together

NOWHERE, CPU = flow.device("meta"), flow.device("cpu")


def test_tensors_that_are_there_stay():
    x = flow.ones(2)
    assert moved(x, CPU) is x


def test_tensors_go_to_the_meta_device_with_their_graph():
    w = flow.ones(2, 3, requires_grad=True)
    y = moved(w.t(), NOWHERE)
    assert (y.shape, y.device, y.requires_grad) == ((3, 2), NOWHERE, True)
    assert y.stride() == (2, 1)  # a dense copy


def test_tensors_without_values_are_not_copied():
    with pytest.raises(ValuelessError, match="no values to copy; make an empty one elsewhere"):
        moved(flow.empty(2, device="meta"), CPU)
    with pytest.raises(ArgumentTypeError, match="copy_to needs a device, got 3"):
        transfers._lower((TensorMeta.of((2,), flow.float32),), (3,))


def test_numbers_follow_the_other_operands():
    number, x, far = flow.tensor(2.0), flow.ones(3), flow.empty(3, device="meta")
    here = (number, x)
    assert together(here) is here
    first, second = together((number, far))
    assert first.device is second.device is NOWHERE
    assert second is far
    with_vector = (x, far)
    assert together(with_vector) is with_vector  # a vector is no number
    (alone,) = together((number,), NOWHERE)
    assert alone.device is NOWHERE


def test_global_tensors_stay_where_they_are():
    where = flow.placement("cpu", [0])
    x = flow.ones(2, placement=where, sbp=flow.sbp.broadcast)
    assert moved(x, CPU) is x
    assert moved(flow.ones(2), x._meta.device).is_global
    with pytest.raises(DeviceError, match="does not go to"):
        moved(x, NOWHERE)
