"""The functions that are in-place methods."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.pointwise import in_place

OTHERS = {
    "addmv_": lambda x: (flow.ones(3, 2), flow.ones(2)), "as_strided_": lambda x: ((2,), (1,)),
    "clamp_": lambda x: (0.2, 0.8), "clamp_max_": lambda x: (0.5,),
    "clamp_min_": lambda x: (0.5,), "clip_": lambda x: (0.2, 0.8), "fill_": lambda x: (2.0,),
    "index_put_": lambda x: ((flow.tensor([0, 2]),), flow.tensor(3.0)),
    "ldexp_": lambda x: (flow.tensor([1, 2, 0]),), "resize_as_": lambda x: (flow.zeros(2),),
    "xlogy_": lambda x: (x + 1,),
}  # fmt: skip
OF_INTEGERS = {"gcd_": (6, 4, 9), "lcm_": (6, 4, 9)}


@pytest.mark.parametrize("name", in_place.METHODS.split())
def test_it_is_the_method(name):
    if name in OF_INTEGERS:
        x, others = flow.tensor(OF_INTEGERS[name]), (flow.tensor([4, 6, 3]),)
    else:
        x = flow.tensor([0.25, 0.5, 0.75]) + (1.0 if name in ("acosh_", "arccosh_") else 0.0)
        others = OTHERS.get(name, lambda x: ())(x)
    twin = x.clone()
    want = getattr(twin, name)(*others)
    assert want is twin
    assert getattr(flow, name)(x, *others) is x
    np.testing.assert_array_equal(x.numpy(), want.numpy())
    plain = getattr(flow, name[:-1], None)
    if plain is not None and name not in ("detach_", "resize_as_"):
        before = flow.tensor(OF_INTEGERS.get(name, (0.25, 0.5, 0.75)))
        before = before + (1.0 if name in ("acosh_", "arccosh_") else 0)
        np.testing.assert_allclose(x.numpy(), plain(before, *others).numpy(), rtol=1e-6)


def test_what_is_no_tensor_is_named():
    with pytest.raises(TypeError, match=r"exp_: argument 'input'"):
        flow.exp_([1.0])
