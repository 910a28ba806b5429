"""The functions that copy a view."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.shapes import scatter_views

ARGUMENTS = {
    "as_strided": ((2, 2), (2, 1)), "diagonal": (1,), "expand": (2, 3, 4), "narrow": (1, 1, 2),
    "permute": ((1, 0),), "select": (1, -1), "split": (2,), "split_with_sizes": ((1, 2),),
    "squeeze": (), "t": (), "transpose": (0, 1), "unbind": (1,), "unfold": (1, 2, 1),
    "unsqueeze": (0,), "view": ((2, 6),), "alias": (), "detach": (),
}  # fmt: skip


@pytest.mark.parametrize("view", ARGUMENTS)
def test_it_is_the_view_copied(view):
    x = flow.arange(12.0).reshape(3, 4)
    args = ARGUMENTS[view]
    actual = getattr(flow, f"{view}_copy")(x, *args)
    want = x if view == "alias" else getattr(x, view)(*args)
    parts = actual if isinstance(actual, tuple) else (actual,)
    for mine, theirs in zip(parts, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
        assert mine.untyped_storage() != x.untyped_storage()


def test_all_of_them_are_here():
    names = {n.removesuffix("_copy") for n in vars(scatter_views) if n.endswith("_copy")}
    assert names == {*ARGUMENTS, "slice"}


@pytest.mark.parametrize("name", ["chunk", "split", "split_with_sizes"])
def test_unsafe_parts(name):
    x = flow.arange(6.0)
    arg = (2, 4) if name == "split_with_sizes" else 2
    for mine, theirs in zip(
        getattr(flow, f"unsafe_{name}")(x, arg), getattr(x, name)(arg), strict=True
    ):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
