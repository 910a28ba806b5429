"""Tensors with levels, made by hand, and all of their examples as one array."""

import numpy as np

import flowvm as flow
from flowvm.ops.batched import calls  # noqa: F401 - it makes the calls on such tensors
from flowvm.ops.batched.levels import entered, level_as_dim


def of(array, one, dim=0):
    """A tensor whose dimension `dim` is the level's."""
    return entered(flow.tensor(array), one, dim)


def examples(x, one):
    """The array of all examples, the first dimension the level's."""
    return level_as_dim(x, one, 0).numpy()


def stacked(function, *arrays):
    """The results of a function for each first index, stacked."""
    return np.stack([function(*each) for each in zip(*arrays, strict=True)])
