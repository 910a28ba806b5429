"""Tensors that become views of themselves, and tensors of another size."""

import numpy as np
import pytest

import flowvm as flow

VIEWS = {
    "t_": (), "squeeze_": (), "unsqueeze_": (1,), "transpose_": (0, 1), "swapaxes_": (0, -1),
    "swapdims_": (1, 0), "as_strided_": ((2, 2), (1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_a_tensor_becomes_the_view(name):
    x = flow.arange(6.0).reshape(2, 3)
    want = getattr(x.clone(), name[:-1])(*VIEWS[name])
    assert getattr(x, name)(*VIEWS[name]) is x
    assert x.shape == want.shape
    np.testing.assert_array_equal(x.numpy(), want.numpy())


def test_gradients_go_through_it():
    a = flow.arange(6.0).reshape(2, 3).requires_grad_()
    b = a * 2
    b.t_().unsqueeze_(0)
    (b * flow.arange(6.0).reshape(1, 3, 2)).sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), 2 * np.arange(6.0).reshape(3, 2).T)
    with pytest.raises(RuntimeError, match="leaf"):
        a.t_()


def test_resize():
    x = flow.arange(6.0)
    assert x.resize_(2, 2).tolist() == [[0.0, 1.0], [2.0, 3.0]]
    grown = x.resize_(7)
    assert grown is x
    assert grown.shape == (7,)
    assert grown[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert x.resize_as_(flow.zeros(3, 1)).shape == (3, 1)
    with pytest.raises(RuntimeError, match="requires grad"):
        flow.ones(2, requires_grad=True).resize_(3)


def test_set():
    x, source = flow.zeros(1), flow.arange(6.0)
    x.set_(source, 1, (2, 2), (2, 1))
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    x[0, 0] = 9
    assert source[1].item() == 9
    assert x.untyped_storage() == source.untyped_storage()
    assert flow.is_storage(x.untyped_storage())
    assert not flow.is_storage(x)
    assert x.untyped_storage().data_ptr() == source.data_ptr()
    assert source.set_().shape == (0,)
    with pytest.raises(TypeError, match="int64"):
        x.set_(flow.arange(3))


def test_data_becomes_what_is_assigned():
    w = flow.zeros(2, requires_grad=True)
    other = flow.ones(3)
    w.data = other
    assert w.tolist() == [1.0] * 3
    assert w.requires_grad
    other[0] = 5
    assert w[0].item() == 5.0
    with pytest.raises(RuntimeError, match="floats"):
        w.data = flow.arange(3)


@pytest.mark.parametrize(("shape", "wrap"), [((3, 3), False), ((7, 3), True), ((7, 3), False)])
def test_fill_diagonal(shape, wrap):
    want = np.zeros(shape)
    np.fill_diagonal(want, 2, wrap)
    actual = flow.zeros(shape).fill_diagonal_(2, wrap)
    np.testing.assert_array_equal(actual.numpy(), want)
    np.testing.assert_array_equal(flow.zeros(shape[::-1]).t().fill_diagonal_(2).numpy() > 0,
                                  np.eye(*shape) > 0)  # fmt: skip


def test_empty_in_other_orders():
    x = flow.empty_strided((2, 3), (1, 4))
    assert (x.shape, x.stride()) == ((2, 3), (1, 4))
    x.fill_(2)
    assert x.tolist() == [[2.0] * 3] * 2
    y = flow.empty_permuted((2, 3, 4), (1, 0, 2), dtype=flow.int64)
    assert y.shape == (2, 3, 4)
    assert y.stride() == (4, 8, 1)
    assert x.new_empty_strided((2,), (2,)).stride() == (2,)
    assert y.dim_order() == (1, 0, 2)
    for wrong in (
        lambda: flow.empty_strided((2, 3), (1,)),
        lambda: flow.empty_permuted((2, 3), (0, 0)),
    ):
        with pytest.raises(ValueError, match="empty_"):
            wrong()
