"""Reductions, scans, norms and losses of rows where numbers end: infinities, NaN, zeros, ties, the
largest and the smallest numbers; values and gradients, against PyTorch in float64.

DIFFERENT says where flowvm gives something else on purpose, and why.
"""

import warnings

import numpy as np
import pytest

import flowvm as flow

torch = pytest.importorskip("torch")

inf, nan = np.inf, np.nan
ROWS = np.array([
    [inf, 1, 2], [-inf, 1, 2], [inf, inf, 1], [-inf, -inf, -inf], [inf, -inf, 1], [nan, 1, 2],
    [nan, nan, nan], [nan, inf, 1], [3, nan, nan], [1, 1, nan],  # 10 that are not finite
    [0, 0, 0], [-0.0, 0, 1], [2, 2, 1], [2, 2, 2], [1, 0, 3], [0, 0, 3], [-1, -2, -2],
    [1e-45, 1e-40, 0], [1e-30, 2e-30, 3e-30], [3e38, 3e38, 1], [1e30, -1e30, 1e30],
], np.float32).astype(np.float64)  # fmt: skip
SOUND = slice(10, 17)  # those of usual numbers


def _method(name, *args, **options):
    def call(t, x):
        result = getattr(t, name)(x, *args, **options)
        return result[0] if isinstance(result, tuple) else result

    return call


def _nn(name, *args, **options):
    return lambda t, x: getattr(t.nn.functional, name)(x, *args, **options)


def _each(name):
    return lambda t, x: t.stack([getattr(t, name)(row) for row in x])


def _to_class(name, **options):
    def call(t, x):
        target = t.zeros(len(x), dtype=t.int64)
        return getattr(t.nn.functional, name)(x, target, reduction="none", **options)

    return call


OF_ROWS = {
    **{
        name: _method(name, dim=1)
        for name in (
            "sum",
            "mean",
            "prod",
            "amax",
            "amin",
            "std",
            "var",
            "logsumexp",
            "nansum",
            "nanmean",
            "median",
            "nanmedian",
            "max",
            "min",
            "cumsum",
            "cumprod",
            "logcumsumexp",
            "cummax",
            "cummin",
            "softmax",
            "log_softmax",
            "sort",
            "argmax",
            "argmin",
            "count_nonzero",
            "any",
            "all",
            "diff",
            "trapezoid",
            "aminmax",
        )
    },
    **{
        f"{n} of all": _each(n)
        for n in (
            "median",
            "nanmedian",
            "max",
            "min",
            "sum",
            "prod",
            "std",
            "var",
            "norm",
            "mean",
            "amax",
        )
    },
    **{f"norm {p}": _method("norm", p, 1) for p in (0.5, 1, 2, 3, inf, -inf)},
    "quantile": _method("quantile", 0.5, dim=1),
    "nanquantile": _method("nanquantile", 0.25, dim=1),
    "topk": _method("topk", 2, 1),
    "sort, descending": lambda t, x: t.sort(x, dim=1, descending=True, stable=True)[1],
    "argsort": lambda t, x: t.argsort(x, dim=1, stable=True),
    "msort": _method("msort"),
    "clamp": _method("clamp", 0.0, 2.0),
    "clamp by tensors": lambda t, x: t.clamp(
        x, t.zeros(3, dtype=x.dtype), t.ones(3, dtype=x.dtype)
    ),
    "where": lambda t, x: t.where(x > 0, t.sqrt(x), t.zeros_like(x)),
    "nan_to_num": _method("nan_to_num"),
    "softmin": _nn("softmin", 1),
    "max_pool1d": lambda t, x: t.nn.functional.max_pool1d(x[None], 2, 1),
    "avg_pool1d": lambda t, x: t.nn.functional.avg_pool1d(x[None], 2),
    "cross_entropy": _to_class("cross_entropy"),
    "nll_loss": _to_class("nll_loss"),
    "glu": lambda t, x: t.nn.functional.glu(t.cat([x, x.flip(0)], 1), 1),
    "lerp": lambda t, x: t.lerp(x, x.flip(0), 0.3),
    "gradient": lambda t, x: t.gradient(x, dim=1)[0],
    "bucketize": lambda t, x: t.bucketize(x, t.tensor([0.0, 1.0, 2.0], dtype=x.dtype)),
}
OF_SOUND = {
    "normalize": _nn("normalize", dim=1),
    "cdist": lambda t, x: t.cdist(x, x),
    "cdist 1": lambda t, x: t.cdist(x, x, p=1.0),
    "cdist 3": lambda t, x: t.cdist(x, x, p=3.0),
    "pdist": lambda t, x: t.nn.functional.pdist(x),
    "pairwise_distance": lambda t, x: t.nn.functional.pairwise_distance(x, x.flip(0), eps=0.0),
    "cosine_similarity": lambda t, x: t.nn.functional.cosine_similarity(x, x.flip(0), 1),
    "cov": _method("cov"),
    "matrix norm": lambda t, x: t.linalg.matrix_norm(x),
    "matrix norm 1": lambda t, x: t.linalg.matrix_norm(x, 1),
    "dist": lambda t, x: t.dist(x, x * 1),
    "renorm": _method("renorm", 2, 0, 1.0),
    "multi_margin_loss": _to_class("multi_margin_loss"),
    "triplet_margin_loss": lambda t, x: t.nn.functional.triplet_margin_loss(
        x, x * 1, x.flip(0), eps=0.0
    ),
    "layer_norm": _nn("layer_norm", (3,)),
    "scatter amax": lambda t, x: t.zeros(len(x), 2, dtype=x.dtype).scatter_reduce(
        1, t.zeros(len(x), 3, dtype=t.int64), x, "amax"
    ),
    "scatter prod": lambda t, x: t.ones(len(x), 2, dtype=x.dtype).scatter_reduce(
        1, t.zeros(len(x), 3, dtype=t.int64), x, "prod"
    ),
    "cumprod of columns": _method("cumprod", 0),
    "logcumsumexp of columns": _method("logcumsumexp", 0),
}
LARGE = "what is added is less than a rounding: the shares of equals, where PyTorch gives each all"
INFINITE = "the share of each, where PyTorch has infinity over infinity"
NEIGHBOUR = "products of the others alone, where PyTorch divides by what is infinite or NaN"
DIFFERENT = {
    ("logsumexp", "gradient"): (LARGE, [0, 2, 4, 19, 20]),
    ("logcumsumexp", "gradient"): (INFINITE, [0, 2, 4, 7, 19, 20]),
    ("nanmean", "gradient"): ("0, as of nansum, where PyTorch has 0 / 0", [6]),
    ("prod", "gradient"): (NEIGHBOUR, range(10)),
    ("prod of all", "gradient"): (NEIGHBOUR, range(10)),
    ("cumprod", "gradient"): (NEIGHBOUR, range(10)),
    **{
        (f"norm {p}", "gradient"): ("NaN of NaN, where PyTorch has 0", range(5, 10))
        for p in (inf, -inf)
    },
}  # fmt: skip
TOLERANCES = {"float32": (3e-5, 3e-7), "float64": (1e-9, 1e-12)}


def results(t, function, rows, dtype):
    x = t.tensor(rows.astype(dtype)).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = function(t, x)
    arrays = {"value": out.detach().numpy()}
    if out.requires_grad:
        out.backward(t.ones_like(out))
        arrays["gradient"] = x.grad.numpy()
    return arrays


def compare(name, function, rows):
    for dtype in ("float32", "float64"):
        actual = results(flow, function, rows, dtype)
        narrow, wide = (results(torch, function, rows, d) for d in (dtype, "float64"))
        relative, absolute = TOLERANCES[dtype]
        for what, want in wide.items():
            a = actual[what].astype(float)
            fine = np.zeros(a.shape, bool)
            for b in (want, narrow[what]):
                with np.errstate(all="ignore"):
                    b = b.astype(dtype).astype(float) if b.dtype.kind == "f" else b
                    fine |= (a == b) | (np.isnan(a) & np.isnan(b))
                    fine |= np.abs(a - b) <= relative * np.abs(b) + absolute
            for row in np.unique(np.argwhere(~fine)[:, 0]) if fine.ndim else []:
                if (name, what) in DIFFERENT and row in DIFFERENT[name, what][1]:
                    continue
                pytest.fail(
                    f"{what} of {name} of {rows[row]} in {dtype}: {a[row]}, PyTorch {want[row]}"
                )
            assert fine.ndim or fine, f"{what} of {name}: {a}, PyTorch {want}"


@pytest.mark.parametrize("name", OF_ROWS)
def test_of_rows(name):
    compare(name, OF_ROWS[name], ROWS)


@pytest.mark.parametrize("name", OF_SOUND)
def test_of_zeros_and_ties(name):
    compare(name, OF_SOUND[name], ROWS[SOUND])


def test_infinite_terms_share_the_gradient_of_a_log_of_a_sum():
    for row, want in (([inf, 1, 2], [1, 0, 0]), ([inf, inf, 1], [0.5, 0.5, 0])):
        x = flow.tensor(row, requires_grad=True)
        flow.logsumexp(x, 0).backward()
        assert x.grad.tolist() == want
