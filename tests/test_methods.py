"""Methods that are functions, too."""

import contextlib

import numpy as np
import pytest

import flowvm as flow
from flowvm import methods

HERE = flow.placement("cpu", [0])
CALLS = {
    "contiguous": (),
    "div_": (2.0,),
    "erfinv_": (),
    "expand": (4, 2, 2),
    "gt_": (0.3,),
    "index_add_": (0, flow.tensor([1]), flow.ones(1, 2)),
    "lerp_": (flow.ones(2, 2), 0.5),
    "masked_fill_": (flow.tensor([True, False]), 0.0),
    "new_empty": ((2, 3),),
    "new_full": ((2, 3), 7.0),
    "new_ones": ((2, 3),),
    "new_zeros": ((2, 3),),
    "normal_": (0.0, 1.0),
    "repeat": (1, 2),
    "to_global": (HERE, flow.sbp.broadcast),
    "view": (4,),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_the_method(name):
    results = []
    for call in (getattr(flow, name), getattr(flow.Tensor, name)):
        flow.manual_seed(0)
        x = flow.tensor([[0.25, 0.5], [0.75, -0.5]])
        out = call(x, *CALLS[name])
        assert (out is x) == (name.endswith("_") or name == "contiguous")
        results.append(out.to_local() if out.is_global else out)
    assert results[0].shape == results[1].shape
    if name != "new_empty":
        np.testing.assert_array_equal(results[0].numpy(), results[1].numpy())
    with pytest.raises(TypeError, match=f"{name}.*int"):
        getattr(flow, name)(3, *CALLS[name])


@pytest.mark.parametrize("name", ["new_empty", "new_ones", "new_zeros"])
def test_new_tensors_are_of_the_size_that_is_said(name):
    x = flow.ones(2, 3)
    call, method = getattr(flow, name), getattr(x, name)
    for out in (call(x), call(x, None), call(x, size=None), call(x, dtype=flow.int32)):
        assert out.shape == (2, 3)
    for out in (call(x, 4, 5), call(x, (4, 5)), call(x, size=(4, 5)), method(4, 5)):
        assert out.shape == (4, 5)
    assert call(x, ()).shape == method(()).shape == ()
    with pytest.raises(TypeError, match="size is needed"):
        method()


@pytest.mark.parametrize("name", ["zeros", "ones", "empty", "rand", "randn"])
def test_what_has_no_size_is_an_error(name):
    with pytest.raises(TypeError, match=f"{name}: a size is needed"):
        getattr(flow, name)()
    assert getattr(flow, name)(()).shape == ()


ARGUMENTS = [
    (), (1,), ((3, 2),), (0, 1), (2, 3), (1.5,), (flow.float64,), (flow.ones(2, 3),),
    (0, flow.tensor([1, 0])),
]  # fmt: skip
BOTH = sorted(
    name
    for name in dir(flow.Tensor)
    if not name.startswith("_")
    and all(callable(getattr(of, name, None)) for of in (flow, flow.Tensor))
    and not isinstance(getattr(flow, name), type)
)
# their arguments differ: several ints or a tuple, another order, OneFlow's `inplace`, patches
APART = {"flip", "permute", "polygamma", "relu", "reshape", "unfold", "where"}


def outcome(call, arguments):
    flow.manual_seed(0)
    x = flow.tensor([[0.25, 0.5, 1.0], [0.75, -0.5, 2.0]])
    try:
        out = call(x, *arguments)
        parts = out if isinstance(out, (tuple, list)) else [out]
        return [
            (p.shape, p.dtype, p.stride(), "empty" in call.__name__ or p.tolist())
            if isinstance(p, flow.Tensor)
            else str(p)
            for p in parts
        ]
    except Exception:
        with contextlib.suppress(Exception):  # nobody else shall hear of it
            flow.vm.sync()
        return "an error"


@pytest.mark.parametrize("name", [n for n in BOTH if n not in APART])
def test_functions_and_methods_of_a_name_agree(name):
    alike = 0
    for arguments in ARGUMENTS:
        if not arguments and name in ("new_empty", "new_ones", "new_zeros"):
            continue  # OneFlow's functions take the tensor's size, PyTorch's methods none
        function = outcome(getattr(flow, name), arguments)
        method = outcome(getattr(flow.Tensor, name), arguments)
        assert str(function) == str(method), arguments
        alike += 1
    assert alike


def test_between_local_and_global():
    x = flow.local_to_global(flow.ones(2), placement=HERE, sbp=flow.sbp.split(0))
    assert x.is_global
    y = flow.global_to_global(x, HERE, flow.sbp.broadcast)
    assert y.sbp == (flow.sbp.broadcast,)
    np.testing.assert_array_equal(flow.to_local(y).numpy(), np.ones(2))
    with pytest.raises(ValueError, match="use global_to_global"):
        flow.local_to_global(x, HERE, flow.sbp.broadcast)
    with pytest.raises(ValueError, match="use local_to_global"):
        flow.global_to_global(flow.ones(2), HERE, flow.sbp.broadcast)


def test_cast():
    x = flow.tensor([1.5, -1.5])
    assert flow.cast(x, flow.int32).tolist() == [1, -1]
    assert flow.cast(x, flow.float32) is x
    with pytest.raises(TypeError, match="cast"):
        flow.cast([1], flow.int32)


def test_what_is_none():
    with pytest.raises(AttributeError, match="explode"):
        getattr(methods, "explode")  # noqa: B009
