"""Values and gradients of pointwise ops where numbers end: zeros of both signs, the smallest and
the largest numbers, infinities, NaN, poles, corners and borders of domains, and pairs of these.

Every op whose samples are one or two tensors is compared with PyTorch's function of its name in
float64, of inputs in float32 and in float64.  DIFFERENT says where flowvm gives something else on
purpose, and why; an entry that is not needed any more fails.
"""

import warnings

import numpy as np
import op_calls
import pytest

import flowvm as flow
from flowvm.eager.tensor import Tensor

torch = pytest.importorskip("torch")

HALF_LINE = [
    0.0, 1e-45, 1e-40, 1.1754944e-38, 1e-30, 1e-20, 1e-10, 1e-7, 1e-3, 0.1, 0.25, 0.5, 0.70710678,
    0.9999999, 1.0, 1.0000001, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 9.0, 13.0, 20.0, 25.0, 40.0,
    88.0, 90.0, 104.0, 170.5, 500.0, 709.0, 746.0, 1e4, 1e7, 1e10, 1e15, 1e20, 1e30, 3e38, np.inf,
]  # fmt: skip
LINE = np.array([*HALF_LINE, *[-v for v in HALF_LINE], np.nan], np.float32).astype(np.float64)
FEW = [0.0, 1e-45, 1e-30, 1e-3, 0.5, 0.9999999, 1.0, 1.5, 2.0, 3.5, 40.0, 1e10, 3e38, np.inf]
_few = np.array([*FEW, *[-v for v in FEW], np.nan], np.float32).astype(np.float64)
PLANE = tuple(m.ravel() for m in np.meshgrid(_few, _few, indexing="ij"))
TOLERANCES = {"float32": (3e-5, 2e-6), "float64": (1e-6, 1e-9)}

EXTRA = {"threshold": (0.5, 2.0), "clamp": (-1.0, 1.0), "clip": (-1.0, 1.0), "polygamma": None}
UNSET = {
    "bernoulli", "dropout", "rrelu", "gumbel_softmax", "empty_like", "rand_like", "randn_like",
    "complex", "polar", "tril", "triu",  # which are not of each number alone, or not numbers
}  # fmt: skip


def torch_function(name):
    """PyTorch's function under the name of an op, or None."""
    for place in (torch, torch.special, torch.nn.functional):
        if callable(function := getattr(place, name, None)):
            return function
    return None


def is_pointwise(reference, arrays):
    """Return True if each number of the result depends only on the numbers at its place."""
    changed = [a.copy() for a in arrays]
    for a in changed:
        a.flat[-1] *= 0.97
    before, after = (reference(*args) for args in (arrays, changed))
    if not isinstance(before, np.ndarray) or before.shape != arrays[0].shape:
        return False
    return bool((before.flat[:-1] == after.flat[:-1]).all())


def pointwise(count):
    """Return (name, flowvm's function, PyTorch's) of the ops of `count` tensors of one shape."""
    pairs = {}
    for _, op in op_calls.all_samples():
        theirs = torch_function(op.name)
        if theirs is None or op.name in pairs or op.name in UNSET or not op.grad:
            continue
        sample = next(iter(op.generate(np.random.default_rng(0))))
        floats = [isinstance(a, np.ndarray) and a.dtype.kind == "f" for a in sample.args]
        if sample.kwargs or floats != [True] * count or len({a.shape for a in sample.args}) > 1:
            continue
        shape = sample.args[0].shape
        if len(shape) == 0 or 0 in shape:
            continue
        if is_pointwise(op.reference, sample.args):
            pairs[op.name] = (op.function, theirs)
    return [(name, *pair) for name, pair in sorted(pairs.items())]


ONE, TWO = pointwise(1), pointwise(2)
LOSSES = [
    "l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss",
    "binary_cross_entropy_with_logits", "poisson_nll_loss", "hinge_embedding_loss",
]  # fmt: skip
ALSO_ONE = [
    n for n in (
        "relu", "relu6", "gelu", "silu", "mish", "elu", "selu", "celu", "softplus", "softsign",
        "hardswish", "hardsigmoid", "hardtanh", "hardshrink", "softshrink", "tanhshrink",
        "leaky_relu", "logsigmoid", "sigmoid", "tanh", "expit", "ndtr", "log_ndtr", "ndtri", "entr",
        "erfcx", "i0", "i0e", "i1", "i1e", "digamma", "lgamma", "erfinv", "logit", "sinc",
        "nan_to_num",
    ) if n not in {name for name, *_ in ONE}
]  # fmt: skip


def ours(name):
    for place in (flow, flow.special, flow.nn.functional):
        if callable(function := getattr(place, name, None)):
            return function
    return None


ONE += [(n, ours(n), torch_function("logsigmoid" if n == "logsigmoid" else n)) for n in ALSO_ONE]


def everywhere(*arrays):
    return np.ones(arrays[0].shape, bool)


def infinite(*arrays):
    return np.any([np.isinf(a) for a in arrays], 0)


def missing(*arrays):
    return np.any([np.isnan(a) for a in arrays], 0)


def pole(x):
    with np.errstate(invalid="ignore"):
        return (x <= 0) & ((x == np.floor(x)) | (x < -1e6)) | (np.abs(x) < 1e-30)


# (op, what): where, and why
DIFFERENT = {
    **{
        (name, what): (infinite, "the limit, where PyTorch has NaN")
        for name in ("i0", "i1", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "softsign",
                     "modified_bessel_i0", "modified_bessel_i1")
        for what in ("value", "gradient 0")
    },
    **{
        (name, "gradient 0"): (missing, "NaN has the gradient NaN, where PyTorch has a constant")
        for name in ("elu", "celu", "selu", "hardswish", "i1e")
    },
    ("i1", "gradient 0"): (
        lambda x: infinite(x) | missing(x), "the limit, and NaN, where PyTorch has NaN and 1/2",
    ),
    ("digamma", "gradient 0"): (pole, "infinite at poles, where PyTorch's sine is not quite 0"),
    ("lgamma", "gradient 0"): (pole, "likewise"),
    ("log_ndtr", "gradient 0"): (
        lambda x: x < -1e3, "-x far out, where PyTorch loses digits, and all of them in the end",
    ),
    ("erfcx", "gradient 0"): (infinite, "the limit, where PyTorch has NaN"),
    ("copysign", "gradient 0"): (
        lambda x, y: np.isinf(x), "the sign, where PyTorch divides infinities",
    ),
    ("kl_div", "gradient 1"): (
        lambda x, y: (y <= 0) | np.isinf(y) | np.isinf(x), "the limit, where PyTorch has NaN",
    ),
    ("binary_cross_entropy_with_logits", "value"): (
        lambda x, y: np.abs(x) > 1e30, "the limit, where PyTorch has infinity times 0 or no digits",
    ),
    ("soft_margin_loss", "gradient 0"): (
        lambda x: x < -80, "the limit, where PyTorch divides infinities",
    ),
}  # fmt: skip


def results(t, function, arrays, dtype, options):
    """The value, and the gradients by each argument, of NumPy's numbers."""
    inputs = [t.tensor(a.astype(dtype)).requires_grad_() for a in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = function(*inputs, **options)
    outcome = {"value": out.detach().numpy()}
    if out.requires_grad:
        out.backward(t.ones_like(out))
        for k, x in enumerate(inputs):
            if x.grad is not None:
                outcome[f"gradient {k}"] = x.grad.numpy()
    return outcome


def close(actual, want, dtype):
    relative, absolute = TOLERANCES[dtype]
    with np.errstate(all="ignore"):
        want = want.astype(dtype)  # what overflows is infinite
        near = np.abs(actual - want) <= relative * np.abs(want) + absolute
        return (actual == want) | (np.isnan(actual) & np.isnan(want)) | near


used = set()


def compare(name, mine, theirs, arrays, **options):
    for dtype in ("float32", "float64"):
        actual = results(flow, mine, arrays, dtype, options)
        try:
            narrow = results(torch, theirs, arrays, dtype, options)
            wide = results(torch, theirs, arrays, "float64", options)
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"PyTorch: {str(error)[:80]}")
        for what in wide:
            if what not in actual:
                assert not wide[what].any(), f"{name}: {what} is missing"
                continue
            fine = close(actual[what], wide[what], dtype) | close(actual[what], narrow[what], dtype)
            if not fine.all() and (name, what) in DIFFERENT:
                used.add((name, what))
                fine |= DIFFERENT[name, what][0](*arrays)
            if not fine.all():
                k = np.flatnonzero(~fine)[0]
                at = ", ".join(f"{a[k]!r}" for a in arrays)
                pytest.fail(
                    f"{what} of {name}({at}) in {dtype}: {actual[what][k]!r}, "
                    f"PyTorch {wide[what][k]!r}; {np.count_nonzero(~fine)} such"
                )


@pytest.mark.parametrize("name", [name for name, *_ in ONE])
@pytest.mark.product(4)
def test_of_one_number(name):
    (pair,) = [(mine, theirs) for n, mine, theirs in ONE if n == name]
    extra = EXTRA.get(name, ())
    functions = [lambda x, f=f: f(x, *extra) for f in pair] if extra else pair
    compare(name, *functions, (LINE,))


@pytest.mark.parametrize("name", [name for name, *_ in TWO if name not in LOSSES])
def test_of_two_numbers(name):
    (pair,) = [(mine, theirs) for n, mine, theirs in TWO if n == name]
    compare(name, *pair, PLANE)


@pytest.mark.parametrize("name", LOSSES)
def test_of_losses(name):
    functions = [getattr(t.nn.functional, name) for t in (flow, torch)]
    x, y = PLANE
    if name == "soft_margin_loss":  # PyTorch has no gradient by its target
        y = np.ones_like(y)
        functions = [
            lambda a, f=f, t=t: f(a, t.ones_like(a.detach()), reduction="none")
            for f, t in zip(functions, (flow, torch), strict=True)
        ]
        compare(name, *functions, (x,))
        return
    compare(name, *functions, (x, y), reduction="none")


def test_there_are_many_ops():
    assert len(ONE) > 60
    assert len(TWO) > 15
    assert all(isinstance(f(flow.tensor([0.5])), Tensor) for _, f, _ in ONE[:3])
