"""Matrices in every layout that a product takes its own path for."""

import numpy as np

import flowvm as flow


def tensor(array):
    return flow.from_numpy(np.array(array))


def laid_out(array, layout):
    """A tensor with `array`'s values, its last two dimensions stored as `layout` says."""
    if layout == "rows":
        return tensor(array)
    if layout == "columns":
        return tensor(np.swapaxes(array, -1, -2)).transpose(-2, -1)
    if layout == "wide rows":
        return flow.cat([tensor(array)] * 2, -1)[..., : array.shape[-1]]
    return flow.stack([tensor(array)] * 2, -1)[..., 0]  # "gaps": no dimension of stride 1


LAYOUTS = ("rows", "columns", "wide rows", "gaps")
