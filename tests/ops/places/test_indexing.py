"""Every kind of index, read and written, against NumPy; gradients of both; and errors."""

import numpy as np
import pytest
from op_calls import as_tensor, flow, mapped

from flowvm.autograd import gradcheck, gradgradcheck
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, AutogradError, DTypeError, OutOfRangeError, ShapeError
from flowvm.nn import functional as F
from flowvm.vm.engine.engine import engine

N = np.arange(120.0).reshape(2, 3, 4, 5)


def at(*values):
    return np.array(values, np.int64)


BASIC = [
    np.s_[0],
    np.s_[-1],
    np.s_[..., 0],
    np.s_[0, 1:3, ::2],
    np.s_[None, 0, ..., None, 2],
    np.s_[5:1],
    np.s_[()],
    np.s_[0, 0, 0, 0],
    np.s_[:, -2:],
    np.s_[np.int64(1), 0],
    np.s_[::-1],
    np.s_[::-1, ..., None, 3::-2],
    np.s_[None, 0, -1:-9:-2, ..., 2],
    np.s_[0:2:-1],
]
ADVANCED = [
    np.s_[at(1, 0, 1)],
    np.s_[[1, 0]],
    np.s_[[]],
    np.s_[[True, False]],
    np.s_[:, at(1, 2)],
    np.s_[at(0, 1), :, at(2, 3)],
    np.s_[:, at(1, -1), at(0, -4)],
    np.s_[1:, at([0, 1], [2, 2]), ::2],
    np.s_[at(0, 1)[:, None], at(0, 1, 2)],
    np.s_[:, None, at(1, 2), None],
    np.s_[..., at(1, 4)],
    np.s_[at(1), ..., at(0, 1, 2)],
    ((0, 1),),
    (slice(None), (0, 0, 2)),
    ((),),
    np.s_[True],
    np.s_[False],
    np.s_[:, np.array(1)],
    np.s_[at(1).astype(np.int32)],
    (N[:, :, 0, 0] > 30,),
    (N > 50,),
    (N < 0,),
    (slice(None), N[0, :, :, 0] > 25),
    (N[:, 0, 0, 0] >= 0, slice(None), at(0, 1)),
    (Ellipsis, N[0, 0, 0] > 1),
]


def key_of(key, f=as_tensor):
    return (
        mapped(key, f) if isinstance(key, tuple) else f(key) if isinstance(key, np.ndarray) else key
    )


def check(actual, expected):
    assert actual.shape == expected.shape
    assert np.array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
def test_reading(key):
    check(as_tensor(N)[key_of(key)], N[key])
    check(as_tensor(N)[key], N[key])  # NumPy's arrays and lists index too


def test_backward_slices_that_are_turned_down():
    with pytest.raises(ArgumentError, match="must not be 0"):
        _ = as_tensor(N)[::0]
    with pytest.raises(ArgumentError, match="does not stand beside tensors"):
        _ = as_tensor(N)[::-1, [0, 1]]


def test_an_int_next_to_tensors_selects_first_as_in_pytorch():
    assert as_tensor(N)[0, :, at(1, 2)].shape == (3, 2, 5)


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_writing(key, strided, rng):
    part = N[key]
    for value in (7.5, rng.standard_normal(part.shape), rng.standard_normal((1,) * part.ndim)):
        x, expected = as_tensor(N), N.copy()
        if strided:
            x = as_tensor(N.transpose(1, 3, 0, 2).copy()).permute(2, 0, 3, 1)
        x[key_of(key)] = as_tensor(np.asarray(value)) if isinstance(value, np.ndarray) else value
        expected[key] = value
        check(x, expected)


def test_writing_converts_and_takes_lists_and_arrays():
    x = as_tensor(np.arange(6))
    x[1] = 2.9
    x[2:4] = [7, 8]
    x[at(4, 5)] = np.array([1.5, -1.5])
    assert x.tolist() == [0, 2, 7, 8, 1, -1]
    b = as_tensor(np.zeros(2, bool))
    b[0] = 3
    assert b.tolist() == [True, False]


def test_the_last_of_several_values_for_a_place_stays():
    x = as_tensor(np.zeros(2))
    x[at(0, 0, 0)] = as_tensor(np.array([1.0, 2.0, 3.0]))
    assert x.tolist() == [3.0, 0.0]


@pytest.mark.parametrize("dtype", ["float16", "bool", "uint8", "int32", "int64", "float32"])
def test_every_dtype_is_moved(dtype):
    a = (np.arange(12).reshape(3, 4) % 3).astype(dtype)
    check(as_tensor(a)[at(2, 0)], a[at(2, 0)])
    x, expected = as_tensor(a), a.copy()
    x[:, at(1, 3)], expected[:, at(1, 3)] = as_tensor(a[:, :2]), a[:, :2]
    check(x, expected)


# --- gradients ----------------------------------------------------------------------------------

SMALL = [
    np.s_[1],
    np.s_[::-1, ::-2],
    np.s_[:, 1:, None],
    np.s_[at(1, 0, 1)],
    np.s_[:, at(2, 0)],
    np.s_[at(0, 1), at(2, 2)],
    (np.array([[True, False, True], [False, True, False]]),),
    (slice(None), np.array([True, False, True])),
]


@pytest.mark.parametrize("key", SMALL, ids=str)
def test_gradients_of_reading(key, rng):
    x = as_tensor(rng.standard_normal((2, 3))).requires_grad_()
    k = key_of(key)
    gradcheck(lambda t: t[k] * t[k], [x])
    gradgradcheck(lambda t: t[k] * t[k], [x])


@pytest.mark.parametrize("key", SMALL, ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_gradients_of_writing(key, whole, rng):
    """Writing has gradients to the tensor before, and to the value."""
    k, first = key_of(key), rng.standard_normal((2, 3))
    if not whole and isinstance(key, np.ndarray) and len(set(key.tolist())) < len(key):
        return  # several places in the value for one element
    if whole and isinstance(key, np.ndarray):
        k = key_of(at(1, 0))
    shape = first[key if not isinstance(k, Tensor) else k.numpy()].shape
    x = as_tensor(first).requires_grad_()
    v = as_tensor(rng.standard_normal(shape if whole else ())).requires_grad_()

    def assign(t, value):
        y = t * t
        y[k] = value * value
        return y * y

    gradcheck(assign, [x, v])
    gradgradcheck(assign, [x, v])


def test_writing_several_times():
    x = as_tensor(np.array([1.0, 2.0, 3.0])).requires_grad_()
    y = x * 2
    y[0] = x[1] * 10
    y[1:] = y[1:] + y[1:] + y[1:]
    y[at(2)] = 0.0
    (y * as_tensor(np.array([1.0, 1.0, 1.0]))).sum().backward()
    assert x.grad.tolist() == [0.0, 16.0, 0.0]


def test_a_leaf_that_requires_grad_is_not_written():
    x = as_tensor(np.zeros(3)).requires_grad_()
    with pytest.raises(AutogradError, match="leaf"):
        x[0] = 1.0
    with flow.no_grad():
        x[0] = 1.0
    assert x.tolist() == [1.0, 0.0, 0.0]
    assert x.requires_grad


def test_a_value_that_requires_grad_makes_the_tensor_require_it():
    x, v = as_tensor(np.zeros(3)), as_tensor(np.array(2.0)).requires_grad_()
    x[1] = v
    x.sum().backward()
    assert v.grad.item() == 1.0


def test_embedding_leaves_out_the_padding_row(rng):
    weight = as_tensor(rng.standard_normal((4, 2))).requires_grad_()
    out = F.embedding(as_tensor(at(1, 2, 1, 3)), weight, padding_idx=-1)
    out.sum().backward()
    assert weight.grad.tolist() == [[0, 0], [2, 2], [1, 1], [0, 0]]
    weight.grad = None
    F.embedding(as_tensor(at(1, 2, 1)), weight, scale_grad_by_freq=True).sum().backward()
    assert weight.grad.tolist() == [[0, 0], [1, 1], [1, 1], [0, 0]]


def test_embedding_scales_long_rows_down():
    weight = as_tensor(np.array([[3.0, 4.0], [0.3, 0.4], [30.0, 40.0]]))
    out = F.embedding(as_tensor(at(0, 1, 0)), weight, max_norm=1.0)
    expected = np.array([[0.6, 0.8], [0.3, 0.4], [30.0, 40.0]])
    assert np.allclose(weight.numpy(), expected)
    assert np.allclose(out.numpy(), expected[[0, 1, 0]])


# --- in place -----------------------------------------------------------------------------------


def test_in_place_forms_change_their_tensor_and_are_recorded(rng):
    v = as_tensor(rng.standard_normal((2, 3))).requires_grad_()
    x = as_tensor(rng.standard_normal((4, 3))).requires_grad_()
    index = as_tensor(at(2, 0))
    wide = as_tensor(np.array([[2, 0, 1], [0, 3, 3]]))
    mask = as_tensor(rng.random((4, 3)) < 0.5)
    forms = [
        lambda t, u: t.index_add_(0, index, u, alpha=2),
        lambda t, u: t.index_copy_(0, index, u),
        lambda t, u: t.index_fill_(0, index, u.sum()),
        lambda t, u: t.index_put_((index,), u),
        lambda t, u: t.index_put_((index,), u, accumulate=True),
        lambda t, u: t.scatter_(0, as_tensor(np.array([[2, 0, 1], [0, 3, 3]])), u),
        lambda t, u: t.scatter_add_(0, wide, u),
        lambda t, u: t.scatter_reduce_(0, wide, u, "mean"),
        lambda t, u: t.masked_fill_(mask, u.sum()),
        lambda t, u: t.masked_scatter_(mask, flow.cat([u, u])),
    ]
    for form in forms:
        y = x.detach().clone()
        assert form(y, v.detach()) is y
        assert y.version > 0

        def function(t, u, form=form):
            return form(t * 1, u) * 2

        gradcheck(function, [x, v])


def test_accumulation_does_not_depend_on_threads(rng):
    values = rng.standard_normal((4000, 40)).astype(np.float32)
    index = as_tensor(rng.integers(0, 7, 4000))
    zeros = np.zeros((7, 40), np.float32)

    def add():
        return flow.index_add(as_tensor(zeros), 0, index, as_tensor(values)).numpy().tobytes()

    threaded = {add() for _ in range(5)}
    with engine.sequential.region():
        assert threaded == {add()}


# --- what waits, and what goes wrong ------------------------------------------------------------


def test_a_result_without_a_shape_waits_for_it_only_when_asked(rng):
    a = rng.standard_normal((20, 5))
    x = as_tensor(a)
    chosen = x[x > 0]
    with pytest.raises(AttributeError):
        object.__getattribute__(chosen, "_meta")
    assert chosen.shape == a[a > 0].shape
    check(chosen, a[a > 0])
    assert flow.nonzero(as_tensor(np.zeros((3, 2)))).shape == (0, 2)
    assert flow.unique(as_tensor(np.array([2.0, np.nan, 2.0]))).shape == (2,)


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (np.s_[5], OutOfRangeError, "index 5 is out of bounds for dimension 0 with size 2"),
        (np.s_[::0], ArgumentError, "must not be 0"),
        (np.s_[0, 0, 0, 0, 0], OutOfRangeError, "too many indices"),
        (np.s_[1.5], TypeError, "float"),
        (np.s_["a"], TypeError, "str"),
        (np.array([1.5]), DTypeError, "float64"),
        ((N[:, :2, 0, 0] > 0,), OutOfRangeError, "mask"),
        (np.s_[..., ...], OutOfRangeError, "Ellipsis"),
        (np.s_[at(0, 1), at(0, 1, 2)], OutOfRangeError, "broadcast"),
    ],
    ids=str,
)
def test_wrong_indices_raise_at_the_call(key, error, text):
    with pytest.raises(error, match=text):
        as_tensor(N)[key]
    with pytest.raises(error, match=text):
        as_tensor(N)[key] = 0.0


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (at(5), "index 5 is out of bounds for dimension 0 with size 2"),
        (np.s_[:, at(0), at(9)], "index 9 is out of bounds for dimension 2 with size 4"),
        (np.s_[at(-3), :, at(0)], "index -3 is out of bounds for dimension 0 with size 2"),
    ],
    ids=str,
)
def test_wrong_indices_in_the_data_raise_at_the_sync_point(key, text):
    result = as_tensor(N)[key]
    with pytest.raises(IndexError, match=text):
        result.numpy()


def test_a_value_must_fit():
    with pytest.raises(ShapeError, match=r"\(7,\)"):
        as_tensor(N)[0] = as_tensor(np.ones(7))
    with pytest.raises(TypeError, match="dict"):
        as_tensor(N)[0] = {}


def test_sorting_puts_nan_last_and_keeps_ties_in_order():
    a = np.array([np.nan, 1.0, -np.inf, 1.0, np.inf, np.nan])
    values, indices = flow.sort(as_tensor(a))
    assert indices.tolist() == [2, 1, 3, 4, 0, 5]
    assert flow.sort(as_tensor(a), descending=True).indices.tolist() == [0, 5, 4, 1, 3, 2]
    assert flow.topk(as_tensor(a), 3).indices.tolist() == [0, 5, 4]
    assert np.array_equal(values.numpy(), np.sort(a), equal_nan=True)


@pytest.mark.parametrize("n", [1, 24, 25, 96, 97, 1000])
def test_sorting_rows_of_any_length(n, rng):
    a = rng.integers(0, max(2, n // 2), (3, n)).astype(np.float32)
    values, indices = flow.sort(as_tensor(a))
    assert np.array_equal(indices.numpy(), np.argsort(a, -1, kind="stable"))
    assert np.array_equal(values.numpy(), np.sort(a, -1))


def test_a_list_of_more_than_numbers_is_a_tuple_of_keys():
    x = flow.arange(24).reshape(2, 3, 4)
    for key in ([slice(None), 0], [None, 0], [..., 0], [[0, 1], [1, 2]], [flow.tensor([1]), 0]):
        assert x[key].tolist() == x[tuple(key)].tolist()
    y = x.clone()
    y[[slice(None), [0, 2]]] = 0
    assert y.sum().item() == x[:, 1].sum().item()
    assert x[[1, 0]].shape == (2, 3, 4)
