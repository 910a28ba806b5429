"""Tensors of Python numbers, made natively, and those that the Python function makes."""

import gc

import numpy as np
import pytest
import torch

import flowvm as flow
from flowvm.eager.native import constants, install
from flowvm.eager.native.objects import native_class
from flowvm.eager.native.words import SITE
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine

pytestmark = pytest.mark.skipif(bool(install.unsupported()), reason=install.unsupported())


def call(data, **options):
    """Return the second result of `flow.tensor`, and whether that call was native."""
    assert isinstance(flow.tensor, native_class())
    flow.tensor(data, **options)
    if len(hot["free"]) < 4:
        hot["free"].append(hot["refill"]())
    before = flow.tensor.words[SITE.MISSES]
    return flow.tensor(data, **options), flow.tensor.words[SITE.MISSES] == before


@pytest.mark.parametrize(
    "data",
    [
        3.5,
        -7,
        True,
        [0.1, float("nan"), 1e300, -0.0],
        (1, 2, (1 << 63) - 1, -(1 << 63)),
        [True, False, True],
        [[1.0, 2.0, 3.0], (4.0, 5.0, 6.0)],
        [[[1], [2]], [[3], [4]]],
    ],
)
def test_numbers_of_one_kind_are_native(data):
    x, native = call(data)
    expected = torch.tensor(data)
    assert native
    assert str(x.dtype).removeprefix("flow.") == str(expected.dtype).removeprefix("torch.")
    assert x.numpy().tobytes() == expected.numpy().tobytes()
    assert x.shape == tuple(expected.shape)
    assert x.is_leaf
    assert not x.requires_grad


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "uint8", "int64", "uint64"])
def test_a_dtype_that_has_room_is_native(dtype):
    x, native = call([1, 0, 100], dtype=getattr(flow, dtype))
    assert native
    assert x.dtype.name == dtype
    np.testing.assert_array_equal(x.numpy(), np.array([1, 0, 100], dtype))


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        ([1, 2.5], {}, np.float32),
        ([1.5, 2], {}, np.float32),
        ([True, 2], {}, np.int64),
        ([1.5, True], {}, np.float32),
        ([1.5], {"dtype": flow.int32}, np.int32),
        ([(1 << 60) + 1], {"dtype": flow.float32}, np.float32),
        ([1.5], {"dtype": flow.float16}, np.float16),
        ([1.0, np.float32(2)], {}, np.float32),
        ([[[[1.0]]]], {}, np.float32),
        (range(3), {}, np.int64),
    ],
)
def test_other_numbers_are_the_functions(data, options, expected):
    flow.tensor([1.0, 2.0])  # what numbers of one kind come to says nothing of these
    x, native = call(data, **options)
    assert not native
    np.testing.assert_array_equal(x.numpy(), np.array(data).astype(expected))
    assert x.numpy().dtype == expected


def test_one_that_wants_more_than_a_dtype_is_the_functions():
    x, native = call([1.0], requires_grad=True)
    assert x.requires_grad
    assert not native
    assert not call([1.0], device="cpu")[1]
    assert not call([1.0], dtype=np.float32)[1]


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        ([[1, 2], [3]], ArgumentError, "ragged"),
        ([[1, 2], 3], ArgumentError, "ragged"),
        ([1, "a"], ArgumentTypeError, "str"),
        ("a", ArgumentTypeError, "str"),
        ([1, 1 << 70], ArgumentError, "int64"),
    ],
)
def test_errors_are_the_functions_after_numbers_that_were_native(data, error, says):
    for good in ([[1, 2], [3, 4]], [1, 2]):
        assert call(good)[1]
    with pytest.raises(error, match=says):
        flow.tensor(data)
    assert call([300], dtype=flow.int16)[1]
    flow.tensor([3], dtype=flow.int8)
    with pytest.raises(ArgumentError, match="300"):
        flow.tensor([300], dtype=flow.int8)


def test_what_is_said_by_default_holds():
    assert call([1.0, 2.0])[1]
    flow.set_default_dtype(flow.float64)
    try:
        assert call([1.0, 2.0])[0].dtype is flow.float64
        assert flow.zeros(2).dtype is flow.zeros(2).dtype is flow.float64
    finally:
        flow.set_default_dtype(flow.float32)
    assert call([1.0, 2.0])[0].dtype is flow.float32
    for make in (lambda: flow.tensor([1.0, 2.0]), lambda: flow.zeros(2), lambda: flow.arange(2)):
        for _ in range(3):
            make()
        with flow.device("meta"):
            for _ in range(3):
                assert make().device.type == "meta"
        assert make().device.type == "cpu"


def test_lists_that_a_collection_changes_are_read_as_they_are_then():
    class Changing:
        def __del__(self):
            data.append("a")

    def until_changed(data):
        while flow.tensor(data).shape == (2,):
            pass

    data = [1.0, 2.0]
    assert call(data)[1]
    before = gc.get_threshold()
    cycle = Changing()
    cycle.itself = cycle
    del cycle
    gc.set_threshold(1)
    try:  # the collection that comes first may be any
        with pytest.raises(ArgumentTypeError):
            until_changed(data)
    finally:
        gc.set_threshold(*before)


def test_memory_lives_as_long_as_the_tensor_and_no_longer():
    def alive():
        gc.collect()
        engine.storages.release_dead()
        engine.waits.wait_idle()
        engine.storages.reclaim()
        return len(engine.storages.adopted)

    x = flow.tensor([1.0, 2.0, 3.0])
    x, native = call([1.0, 2.0, 3.0])
    before, view = alive(), x[1:]
    tensors = [flow.tensor([float(k), 0.0]) for k in range(3 * constants.MOST_DEAD)]
    assert [t.tolist()[0] for t in tensors] == list(range(3 * constants.MOST_DEAD))
    total = sum((t * 2 for t in tensors), flow.zeros(2))
    del tensors, x
    assert native
    assert view.tolist() == [2.0, 3.0]
    assert total.tolist() == [2.0 * sum(range(3 * constants.MOST_DEAD)), 0.0]
    assert alive() == before
    for _ in range(40 * constants.MOST_DEAD):  # and nobody calls an operator
        flow.tensor([1.0, 2.0])
    assert len(hot["dead"]) <= constants.MOST_DEAD
    view += 1
    assert view.tolist() == [3.0, 4.0]


def test_a_capture_keeps_the_values():
    class Adding(flow.nn.Graph):
        def build(self, x):
            return x + flow.tensor([1.0, 2.0])

    flow.tensor([1.0, 2.0])
    graph = Adding()
    for _ in range(2):
        assert graph(flow.ones(2)).tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: flow.zeros(3), np.zeros(3)),
        (lambda: flow.ones((2, 3), dtype=flow.int64), np.ones((2, 3))),
        (lambda: flow.full((2,), 7), np.full(2, 7)),
        (lambda: flow.full((2,), 7.0), np.full(2, 7.0)),
        (lambda: flow.arange(10), np.arange(10)),
        (lambda: flow.arange(0, 3.0, 0.5), np.arange(0, 3, 0.5)),
        (lambda: flow.arange(0, 3, 1), np.arange(0, 3, 1)),
        (lambda: flow.eye(3), np.eye(3)),
    ],
)
def test_makers_follow_their_traces(call, expected):
    results = [call() for _ in range(4)]
    assert len({id(x._meta) for x in results}) == 1
    for x in results:
        np.testing.assert_array_equal(x.numpy(), expected)
    results[0].add_(1)  # each has memory of its own
    np.testing.assert_array_equal(results[1].numpy(), expected)


def test_a_maker_is_native_and_one_of_a_leaf_is_not():
    for _ in range(3):
        flow.zeros(5)
    before = flow.zeros.words[SITE.HITS]
    flow.zeros(5)
    assert flow.zeros.words[SITE.HITS] == before + 1
    for _ in range(3):
        leaf = flow.zeros(5, requires_grad=True)
    assert leaf.requires_grad
    assert flow.zeros.words[SITE.HITS] == before + 1
