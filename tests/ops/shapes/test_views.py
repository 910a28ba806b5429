"""Views share memory, version and gradients with their base, and issue nothing."""

import numpy as np
import pytest
from op_calls import as_tensor, flow

from flowvm.autograd import grad, gradcheck
from flowvm.eager.tensor import base_of
from flowvm.errors import AutogradError, ShapeError
from flowvm.vm.callers.hot import hot


def numbers(*shape):
    return as_tensor(np.arange(float(np.prod(shape))).reshape(shape))


VIEWS = [
    lambda x: x.view(6, 4),
    lambda x: x.reshape(-1),
    lambda x: x.permute(2, 0, 1),
    lambda x: x.T,
    lambda x: x.mT,
    lambda x: x.unsqueeze(1),
    lambda x: x[1],
    lambda x: x[:, 1:, ::2],
    lambda x: x[None, ..., -1],
    lambda x: x.select(2, 3),
    lambda x: x.narrow(0, 1, 1),
    lambda x: x.diagonal(0, 1, 2),
    lambda x: x.split(2, 2)[1],
    lambda x: x.unbind(1)[2],
    lambda x: x.detach(),
    lambda x: x.as_strided((2, 2), (12, 1), 3),
    lambda x: x.unflatten(2, (2, 2)),
    lambda x: x.movedim(0, 2).flatten(0, 1),
    lambda x: x.swapaxes(0, 1).squeeze(),
]


@pytest.mark.parametrize("view", VIEWS)
def test_writing_through_a_view_changes_the_base(view):
    x = numbers(2, 3, 4)
    y = view(x)
    before = x.numpy().copy()
    y.copy_(as_tensor(np.array(-1.0)))
    assert (y.numpy() == -1).all()
    assert (x.numpy() == -1).sum() == y.numel()
    assert np.array_equal(x.numpy()[x.numpy() != -1], before[x.numpy() != -1])
    assert x.version == y.version == 1


@pytest.mark.parametrize("view", VIEWS)
def test_the_gradient_of_a_view(view):
    x = numbers(2, 3, 4).requires_grad_()
    if view(x.detach()).numel():
        (g,) = grad([view(x).sum()], [x]) if view(x).requires_grad else (None,)
        if g is not None:
            touched = numbers(2, 3, 4)
            touched.copy_(as_tensor(np.array(0.0)))
            view(touched).copy_(as_tensor(np.array(1.0)))
            assert np.array_equal(g.numpy(), touched.numpy())


def test_a_view_issues_nothing():
    x = numbers(2, 3, 4)
    x.numpy()
    before = repr(hot["counter"])
    for view in VIEWS:
        view(x)
    assert repr(hot["counter"]) == before


def test_a_view_of_a_view_has_the_first_base():
    x = numbers(2, 3, 4)
    y = x[1].T[1:]
    assert base_of(y) is x
    assert y.storage_offset() == 13


def test_reshape_views_whatever_strides_allow():
    rng = np.random.default_rng(0)
    for _ in range(200):
        base = np.arange(2 * 3 * 4 * 2).reshape(2, 3, 4, 2)
        array = base.transpose(rng.permutation(4))[..., :: int(rng.integers(1, 3))]
        x = as_tensor(base).permute(*np.argsort([0, 1, 2, 3]).tolist())
        x = as_tensor(base).as_strided(array.shape, [s // 8 for s in array.strides])
        sizes = [d for d in array.shape for d in (1, d)]
        shape = tuple(np.array(sizes)[np.sort(rng.permutation(len(sizes)))].tolist())
        merged = (int(np.prod(array.shape[:2])), *array.shape[2:])
        for target in (shape, merged, (-1,)):
            expected = array.reshape(target)
            assert np.array_equal(x.reshape(target).numpy(), expected)
            shares = x.reshape(target).storage() is x.storage()
            assert shares == np.shares_memory(expected, base) or not array.size


def test_view_refuses_to_copy():
    with pytest.raises(ShapeError, match="use reshape"):
        numbers(2, 3).T.view(6)


def test_a_saved_tensor_changed_through_a_view_is_noticed():
    x = numbers(3).requires_grad_()
    y = x * 2
    z = (y * y).sum()
    with flow.no_grad():
        y[0] = 5.0
    with pytest.raises(AutogradError, match="changed in place"):
        z.backward()


def test_writing_through_a_view_is_recorded_in_its_base():
    x, v = numbers(3).requires_grad_(), numbers(2).requires_grad_()
    y = x * 2
    y[1:].copy_(v)
    (y * 3).sum().backward()
    assert x.grad.tolist() == [6, 0, 0]
    assert v.grad.tolist() == [3, 3]


def test_writing_through_a_piece_is_recorded_in_its_base():
    x = numbers(4).requires_grad_()
    y = x * 2
    first, second = y.split(2)
    first.copy_(second)
    (y * as_tensor(np.array([1.0, 2.0, 4.0, 8.0]))).sum().backward()
    assert x.grad.tolist() == [0, 0, 10, 20]


def test_pieces_are_one_node():
    x = numbers(4, 2).requires_grad_()
    a, b = x.split(2)
    assert a.grad_fn is b.grad_fn
    a.sum().backward()
    assert x.grad.tolist() == [[1.0, 1.0]] * 2 + [[0.0, 0.0]] * 2


def test_a_tensor_is_iterated_over_and_unpacked():
    a, b = numbers(2, 3)
    assert a.tolist() == [0, 1, 2]
    assert b.tolist() == [3, 4, 5]
    with pytest.raises(TypeError):
        list(numbers(1).reshape(()))


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.bool_, np.uint8])
def test_views_of_every_element_size(dtype):
    array = (np.arange(24).reshape(2, 3, 4) % 3).astype(dtype)
    x = as_tensor(array)
    assert np.array_equal(x[1, :, 2:].T.numpy(), array[1, :, 2:].T)
    assert np.array_equal(
        x.permute(2, 0, 1).reshape(4, -1).numpy(), array.transpose(2, 0, 1).reshape(4, -1)
    )


def test_overlapping_windows_share_their_gradient():
    x = numbers(5).requires_grad_()
    gradcheck(lambda t: t.unfold(0, 3, 1) * t.unfold(0, 3, 1), [x])
    x.unfold(0, 3, 1).sum().backward()
    assert x.grad.tolist() == [1, 2, 3, 2, 1]


def test_the_same_bytes_as_another_dtype():
    array = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    x = as_tensor(array)
    for kind, same in (
        (flow.int32, np.int32), (flow.uint8, np.uint8), (flow.float64, np.float64),
        (flow.complex64, np.complex64), (flow.int16, np.int16),
    ):  # fmt: skip
        part = x.view(kind)
        assert part.dtype is kind
        np.testing.assert_array_equal(part.numpy(), array.view(same))
        assert part.data_ptr() == x.data_ptr()
    inner = x[1:, 2:].view(flow.float64)
    np.testing.assert_array_equal(inner.numpy(), array[1:, 2:].copy().view(np.float64))
    x.view(dtype=flow.int32)[0, 1] = 0x40000000
    assert x[0, 1].item() == 2.0
    assert x.view(size=(12,)).shape == (12,)
    half = x.bfloat16()
    assert half.view(flow.uint16).view(flow.bfloat16).tolist() == half.tolist()
    assert not x.requires_grad_().view(flow.float32).requires_grad


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: flow.tensor(1.0).view(flow.uint8), "0-d"),
        (lambda: flow.zeros(2, 3).t().view(flow.uint8), "stride 3"),
        (lambda: flow.zeros(2, 3).view(flow.float64), "not multiples of 8 bytes"),
        (lambda: flow.zeros(2, 4)[:, 1:3].view(flow.float64), "storage offset 1"),
    ],
)
def test_bytes_that_are_no_elements_of_another_dtype(make, says):
    with pytest.raises(ShapeError, match=says):
        make()


def test_a_graph_keeps_the_order_of_bytes_seen_as_two_dtypes():
    def step(x):
        y = x * 2
        y.view(flow.int32).add_(1)
        return y * 1

    x = as_tensor(np.array([3.0, 0.1], np.float32))
    compiled = flow.compile(step)
    expected = (x.numpy() * 2).view(np.int32) + 1
    for _ in range(3):
        np.testing.assert_array_equal(compiled(x).numpy().view(np.int32), expected)


def test_parts_of_a_shape_are_shapes():
    shape = flow.ones(2, 3, 4).shape
    for size in (shape[1:], shape + shape[:1], (1,) + shape, 2 * shape, shape * 1):  # noqa: RUF005
        assert type(size) is flow.Size
    assert shape[1:].numel() == 12
    assert shape + shape[:1] == (2, 3, 4, 2)
    with pytest.raises(TypeError):
        shape + [1]  # noqa: RUF005
