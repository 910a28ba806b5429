"""`flow._foreach_add` and the like beside PyTorch's."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.foreach import NAMES, foreach

SHAPES = ((3,), (2, 2), ())


def inputs(lib, name, seed):
    """Arguments and keyword arguments of several calls."""
    rng = np.random.default_rng(seed)

    def some():
        return [lib.tensor(rng.random(shape) * 0.8 + 0.1) for shape in SHAPES]

    bare = name.removeprefix("_foreach_").rstrip("_")
    if bare in ("addcdiv", "addcmul"):
        yield (some(), some(), some()), {}
        yield (some(), some(), some(), 0.5), {}
        yield (some(), some(), some(), [1.0, 2.0, 3.0]), {}
        yield (some(), some(), some(), lib.tensor([1.0, 2.0, 3.0])), {}
    elif bare in ("add", "sub"):
        yield (some(), some()), {"alpha": 2.0}
        yield (some(), 1.5), {}
        yield (some(), [1.0, 2.0, 3.0]), {}
    elif bare in ("mul", "div", "pow", "maximum", "minimum", "clamp_max", "clamp_min"):
        yield (some(), some()), {}
        yield (some(), 0.5), {}
    elif bare == "lerp":
        yield (some(), some(), 0.25), {}
        yield (some(), some(), some()), {}
    elif bare == "norm":
        for order in (1, 2, float("inf")):
            yield (some(), order), {}
    elif bare == "copy":
        yield (some(), some()), {}
    elif bare == "mm":
        yield ([lib.tensor(rng.random((2, 3)))], [lib.tensor(rng.random((3, 2)))]), {}
    else:
        yield (some(),), {}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_as_in_pytorch(name, seed):
    torch = pytest.importorskip("torch")
    pairs = zip(inputs(flow, name, seed), inputs(torch, name, seed), strict=True)
    for (args, kwargs), (theirs, _) in pairs:
        results = getattr(flow, name)(*args, **kwargs)
        expected = getattr(torch, name)(*theirs, **kwargs)
        for x, y in zip(results, expected, strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-12)
        if name.endswith("_"):
            assert results[0] is args[0][0]


def test_a_number_to_the_powers_of_tensors():
    results = flow._foreach_pow(2.0, [flow.tensor([1.0, 3.0]), flow.tensor(2.0)])
    assert [t.tolist() for t in results] == [[2.0, 8.0], 4.0]


def test_misuse():
    with pytest.raises(ValueError, match="lists of"):
        flow._foreach_add([flow.ones(1)], [flow.ones(1)] * 2)
    with pytest.raises(ValueError, match="empty"):
        foreach("_foreach_exp")([])
    with pytest.raises(TypeError, match="needs a list"):
        flow._foreach_exp(3)
    with pytest.raises(AttributeError, match="_foreach_nothing"):
        flow._foreach_nothing  # noqa: B018
