"""Functions of several kernels on float16 and bfloat16, at values whose squares, sums or cubes are
outside of the dtype: they compute in float32 from end to end and round once, gradients, too.

PyTorch's own samples of each function, scaled up and down, against PyTorch in float64 on the same
rounded numbers.  What a result of 16 bits cannot hold is infinite and not compared.
"""

import itertools
import warnings

import numpy as np
import pytest

import flowvm as flow

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")

from torch_samples import AbsentError, called, converted, flat  # noqa: E402

NAMES = {
    # reductions and what is made of them
    "sum", "mean", "prod", "amax", "amin", "std", "var", "std_mean", "var_mean", "logsumexp",
    "nansum", "nanmean", "norm", "linalg.vector_norm", "linalg.norm", "linalg.matrix_norm",
    "renorm", "dist", "cdist", "cov", "cumsum", "cumprod", "logcumsumexp", "trapezoid",
    "cumulative_trapezoid", "gradient", "max", "min", "median", "softmax", "log_softmax", "trace",
    "linalg.vecdot", "linalg.cross", "linalg.multi_dot", "linalg.matrix_power", "linalg.vander",
    "addmv", "addr", "addbmm", "baddbmm", "addmm", "vdot", "mv", "dot", "inner", "outer",
    "index_reduce", "cross", "mvlgamma", "round",
    # pointwise, for their gradients
    "pow", "acosh", "asinh", "atan", "atan2", "hypot", "rsqrt", "reciprocal", "square", "div",
    "mul", "logaddexp", "logaddexp2", "log1p", "asin", "special.erfcx", "addcdiv",
    "addcmul",
    *(f"nn.functional.{name}" for name in (
        "cosine_similarity", "pairwise_distance", "pdist", "normalize", "bilinear", "mse_loss",
        "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy_with_logits",
        "margin_ranking_loss", "hinge_embedding_loss", "soft_margin_loss",
        "triplet_margin_loss", "poisson_nll_loss", "gaussian_nll_loss", "multi_margin_loss",
        "multilabel_margin_loss", "multilabel_soft_margin_loss", "cross_entropy", "nll_loss",
        "local_response_norm", "layer_norm", "group_norm", "instance_norm", "avg_pool1d",
        "avg_pool2d", "avg_pool3d", "adaptive_avg_pool3d", "softmin", "linear_cross_entropy",
        "glu",
    )),
}  # fmt: skip
OPS = [
    op for op in invocations.op_db
    if op.name in NAMES and not op.variant_test_name and called(op) is not None
]  # fmt: skip
SCALES = {"float16": (300.0, 1e-4), "bfloat16": (1.0, 3e19)}
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
MOST = {"float16": 65504.0, "bfloat16": 3.38e38}
LEAST = {"float16": 6e-8, "bfloat16": 1e-38}
# (op, dtype), and why the two differ
DIFFERENT = {
    ("cov", "bfloat16"): "infinite in float32, too",
    ("linalg.matrix_power", "bfloat16"): "infinite in float32, too",
    ("linalg.multi_dot", "bfloat16"): "infinite in float32, too",
}


def mapped(value, f):
    if isinstance(value, torch.Tensor):
        return f(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(mapped(v, f) for v in value)
    if isinstance(value, dict):
        return {k: mapped(v, f) for k, v in value.items()}
    return value


def check(what, actual, want, dtype, roundings, noise=0.0):
    """Compare with the number that float64 gives, within its roundings to the dtype, and `noise`,
    which float32 has where terms cancel.
    """
    own = actual.dtype.name
    a, b = actual.detach().double().numpy(), want.detach().numpy(force=True)
    assert a.shape == b.shape, what
    held = np.isfinite(b) & (np.abs(b) < MOST[dtype])
    if not held.any():
        return
    unit = UNIT[dtype] * 1.01 if own == dtype else 1e-6
    least = 2e-6 * min(np.abs(b[held]).max(), MOST[dtype]) + roundings * LEAST[dtype]
    with np.errstate(all="ignore"):
        wrong = held & ~(np.abs(a - b) <= roundings * unit * np.abs(b) + least + noise)
    assert not wrong.any(), f"{what}: {a[wrong][:3]}, float64 gives {b[wrong][:3]}"


def compared(op, sample, scale, dtype):
    """Compare a sample, and return whether that was possible; a wrong result fails."""
    kind, function = getattr(torch, dtype), called(op)
    base = mapped(
        (sample.input, tuple(sample.args), sample.kwargs),
        lambda t: (t.detach() * scale).to(kind) if t.dtype == torch.float32 else t,
    )
    inputs = []
    mapped(base, lambda t: inputs.append(t) if t.dtype == kind else t)
    if any(t.isinf().any() for t in inputs):
        return False
    leaves, pairs = [], []
    wide = mapped(base, lambda t: t.double().requires_grad_() if t.dtype == kind else t)
    mapped(wide, lambda t: leaves.append(t) if t.requires_grad else None)
    half = mapped(base, lambda t: t.clone().requires_grad_() if t.dtype == kind else t)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = flat(op(wide[0], *wide[1], **wide[2]))
        mine = converted(half, pairs)
    except (AbsentError, RuntimeError, ValueError):
        return False
    actual = flat(function(mine[0], *mine[1], **mine[2]))
    outs = [
        (g, w) for g, w in zip(actual, want, strict=True)
        if isinstance(w, torch.Tensor) and w.dtype == torch.float64
    ]  # fmt: skip
    what = f"{op.name} of {dtype}, scaled by {scale}: {mine}"
    for g, w in outs:
        check(f"value of {what}", g, w, dtype, 1)
    outs = [(g, w) for g, w in outs if w.requires_grad and g.requires_grad]
    if outs:
        starts = [torch.ones_like(w) for _, w in outs]
        theirs = torch.autograd.grad([w for _, w in outs], leaves, starts, allow_unused=True)
        ones = [flow.ones_like(g) for g, _ in outs]
        ours = flow.autograd.grad(
            [g for g, _ in outs], [x for _, x in pairs], ones, allow_unused=True
        )
        for k, (g, w) in enumerate(zip(ours, theirs, strict=True)):
            if g is not None and w is not None:
                check(f"gradient {k} of {what}", g, w, dtype, 4, 2e-6 / scale)
    return True


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
@pytest.mark.product(4)
def test_rounds_once(op, dtype):
    if (op.name, dtype) in DIFFERENT:
        pytest.skip(DIFFERENT[op.name, dtype])
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", torch.float32, requires_grad=False)
    count = 0
    for sample in itertools.islice(samples, 3):
        count += any(compared(op, sample, scale, dtype) for scale in SCALES[dtype])
    if not count:
        pytest.skip("no sample of it is of such tensors")


def test_sums_of_many_elements():
    x = flow.full((70000,), 3.0, dtype=flow.float16, requires_grad=True)
    mean = x.mean()
    mean.backward()
    assert mean.item() == 3.0
    assert x.norm().item() == pytest.approx(3 * 70000**0.5, rel=1e-3)
    assert x.std().item() == 0
    y = flow.ones(70000, dtype=flow.float16, requires_grad=True)
    y.max().backward()
    assert y.grad[0].item() == pytest.approx(1 / 70000, abs=6e-8)
