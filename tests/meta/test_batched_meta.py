"""Metas of tensors inside vmap: one example, and where the others lie."""

import pickle

import pytest

import flowvm as flow
from flowvm.meta import batched_meta
from flowvm.meta.arrays import Array
from flowvm.meta.batched_meta import (
    Axis,
    BatchedDevice,
    BatchedMeta,
    axes_of,
    base_device,
    differs_more,
    example_of,
    in_elements,
    is_batched,
    made_for,
    with_axes,
)
from flowvm.meta.meta import TensorMeta

CPU = flow.device("cpu")
PLAIN = TensorMeta.of((2, 3), flow.float32, CPU)
A, B = Axis(1, 4, 6), Axis(2, 5, 0)


def test_metas_are_one_object_for_each_set_of_levels():
    meta = with_axes(PLAIN, [B, A])
    assert isinstance(meta, BatchedMeta)
    assert axes_of(meta) == axes_of(meta.device) == (A, B)  # by their numbers
    assert with_axes(PLAIN, [A, B]) is meta
    assert meta.example is example_of(meta) is PLAIN
    assert (meta.shape, meta.stride, meta.nbytes) == (PLAIN.shape, PLAIN.stride, PLAIN.nbytes)
    assert meta != PLAIN
    assert with_axes(PLAIN, []) is PLAIN
    assert BatchedDevice.of(CPU, ()) is CPU
    assert repr(meta).endswith("for each of 4,5 shared")


def test_plain_metas_have_no_levels():
    assert axes_of(PLAIN) == axes_of(CPU) == axes_of(3) == ()
    assert not is_batched(PLAIN, CPU, 3)
    assert is_batched(PLAIN, with_axes(PLAIN, [A]))
    assert example_of(PLAIN) is PLAIN
    assert base_device(CPU) is CPU
    assert base_device(with_axes(PLAIN, [A]).device) is CPU


def test_new_tensors_lie_densely_with_all_levels():
    meta = with_axes(PLAIN, [A, B])
    made = meta.with_shape((7,), flow.int64)
    assert axes_of(made) == (Axis(1, 4, 35), Axis(2, 5, 7))
    assert made.dtype is flow.int64
    assert axes_of(meta.dense()) == (Axis(1, 4, 30), Axis(2, 5, 6))
    assert axes_of(meta.with_shape(())) == (Axis(1, 4, 5), Axis(2, 5, 1))


def test_new_tensors_have_the_levels_that_change_them():
    one, other = with_axes(PLAIN, [A]), with_axes(PLAIN, [B])
    assert made_for(PLAIN, PLAIN) is PLAIN
    assert [a.level for a in axes_of(made_for(one, other))] == [1, 2]
    assert made_for(one, one) is one
    assert differs_more(PLAIN, one)
    assert not differs_more(one, PLAIN, one)
    assert not differs_more(PLAIN, other)  # one for all examples there, too
    assert differs_more(other, with_axes(PLAIN, [B._replace(stride=3)]))


def test_distances_count_elements_of_the_view():
    device = with_axes(PLAIN, [A]).device
    assert axes_of(in_elements(device, 2)) == (A._replace(stride=12),)
    assert axes_of(in_elements(device, 1, 2)) == (A._replace(stride=3),)
    assert in_elements(CPU, 2) is CPU


def test_pickles_are_of_the_example():
    meta = with_axes(PLAIN, [A])
    assert pickle.loads(pickle.dumps(meta)) is PLAIN
    assert pickle.loads(pickle.dumps(meta.device)) is CPU
    with pytest.raises(AttributeError):
        meta.device.index = 3
    assert batched_meta.fresh(meta.device, 0) is not CPU
    assert Array is not None
